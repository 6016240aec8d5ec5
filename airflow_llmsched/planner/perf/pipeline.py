"""What a pipeline adds to its slowest stage: filling and draining it, and sending between stages. Pure.

Axis: C = candidate layout. Narayanan et al. (2019) for one forward, one backward; Narayanan et al. (2021), section 2.2,
for chunks; Qi et al. (2023), section 2.3, for gradients to weights that fill the bubble.
"""

from __future__ import annotations

import numpy as np

from airflow_llmsched.domain.layout import PipelineSchedule
from airflow_llmsched.planner.factored import factor
from airflow_llmsched.planner.layout_table import SCHEDULE_ORDER, FloatArray, LayoutTable
from airflow_llmsched.planner.perf.collectives import point_to_point_s
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.micro_batch import MicroBatch

TRANSFER_COLUMNS = ("dp_C", "tp_C", "cp_C", "pp_C", "micro_batch_C")

ZERO_BUBBLE = SCHEDULE_ORDER.index(PipelineSchedule.ZERO_BUBBLE)


def bubble_s(table: LayoutTable, micro_batch: MicroBatch) -> FloatArray:
    """One micro-batch through all other stages: while the slowest stage waits for its first, and after its last.

    With chunks each wait is that of one chunk. ZB-H1 keeps forward and input gradients of each other stage in it, and
    gradients to weights fill what they can: F + B - W instead of F + B + W. They fill no more than that. The first
    stage has none to do before its first backward pass, for which it waits a whole pipeline of F and B with only the
    forward passes of min(m, p) micro-batches to do; and each micro-batch but one fills a wait once.
    """
    others_s = micro_batch.whole_model_s_C - micro_batch.total_s_C
    weight_s = micro_batch.weight_gradient_s_C
    filled_C = (np.minimum(table.num_micro_batches_C, table.pp_C) - 1) / np.maximum(table.pp_C - 1, 1)
    waiting_s = micro_batch.total_s_C - weight_s - filled_C * np.minimum(weight_s, micro_batch.forward_s_C)
    kept_ratio = waiting_s / np.maximum(micro_batch.total_s_C, 1e-30)
    share_C = np.where(table.schedule_C == ZERO_BUBBLE, kept_ratio, 1 / table.vp_C)
    return np.where(table.pp_C > 1, others_s * share_C, 0.0)


def transfer_s(job: TransformerJob, table: LayoutTable, machine: Machine, micro_batch: MicroBatch) -> FloatArray:
    """Activations forward and gradients backward between neighbours.

    Each rank of a tensor group sends its share, whether the sequence is split or not: where it is not, the receivers
    gather it (Narayanan et al. 2021, section 4.1). Without chunks both wait for
    each other in every micro-batch. With chunks a message travels beside the next chunk (Megatron-Core's default),
    and only filling and draining wait for it.
    """
    found = factor(table, TRANSFER_COLUMNS, beside=machine.places_C)
    one_s = found.spread(_one_transfer_s(job, found.table, machine.take(found.first_U)))
    m_C = table.num_micro_batches_C
    is_hidden_C = (table.vp_C > 1) & machine.shape.overlaps_communication
    beside_s = machine.reached.hidden_ratio * micro_batch.total_s_C / table.vp_C
    each_s = np.where(is_hidden_C, np.maximum(2 * one_s - beside_s, 0.0) * table.vp_C, 2 * one_s)
    return np.where(table.pp_C > 1, m_C * each_s + 2 * (table.pp_C - 1) * one_s, 0.0)


def _one_transfer_s(job: TransformerJob, table: LayoutTable, machine: Machine) -> FloatArray:
    """Seconds of one message to a neighbour."""
    tokens_C = table.micro_batch_C * job.sequence_length_tokens / table.cp_C
    num_bytes = job.compute_bytes * job.model.hidden_size * tokens_C / table.tp_C
    span = machine.span(stride_C=table.tp_C * table.cp_C * table.dp_C, size_C=table.pp_C)
    return point_to_point_s(num_bytes=num_bytes, link=span.farthest)
