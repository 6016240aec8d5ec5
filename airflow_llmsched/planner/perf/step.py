"""Seconds of one optimizer step by term. Pure; many layouts at once. Axis: C = candidate layout.

A step is the slowest stage's micro-batches one after the other, what the pipeline adds, what replicas exchange and the
optimizer. Each of these has a module of its own; this one adds them up.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape, NumberFormat
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, LayoutTable
from airflow_llmsched.planner.perf.calibration import HOST_BOUND_RATIO
from airflow_llmsched.planner.perf.flops import flops_per_token, part_flop
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.loading import exposed_loading_s, loading_s
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.memory_offload import offload_terms_s
from airflow_llmsched.planner.perf.memory_states import state_away
from airflow_llmsched.planner.perf.micro_batch import exposed_s, recomputed_share_C, slowest_micro_batch
from airflow_llmsched.planner.perf.pipeline import bubble_s, transfer_s
from airflow_llmsched.planner.perf.replicas import compression_s, data_parallel_s, optimizer_s, tied_embedding_s
from airflow_llmsched.planner.perf.stragglers import STRAGGLERS, straggler_s


def step_terms(job: TransformerJob, table: LayoutTable, machine: Machine) -> dict[str, FloatArray]:
    """Return seconds by term, which add up to the step. Raises ``KeyError`` if the accelerator lacks the format.

    Traffic is charged as far as computation does not hide it. Not modelled: contention between gangs.
    """
    micro_batch = slowest_micro_batch(job, table, machine)
    m_C = table.num_micro_batches_C
    moved_s = offload_terms_s(job, table, machine.shape)
    is_updated_away_C = state_away(table)["optimizer"]
    terms = {
        **{name: m_C * seconds for name, seconds in micro_batch.terms_s.items()},
        "pipeline_bubble": bubble_s(table, micro_batch),
        "pipeline_transfer": transfer_s(job, table, machine, micro_batch),
        "data_parallel": data_parallel_s(job, table, machine, micro_batch) + tied_embedding_s(job, table, machine),
        "optimizer": np.where(is_updated_away_C, 0.0, optimizer_s(job, table, machine)),
        "offload_traffic": exposed_s(moved_s["offload_traffic"], m_C * micro_batch.total_s_C, machine),
        "offload_update": moved_s["offload_update"],
    }
    if job.compression is not None:
        terms["compression"] = compression_s(job, table, machine)
    terms[STRAGGLERS] = straggler_s(terms, table, machine)
    leaves_domain_C = table.world_size_C > machine.domain_ranks_C
    load_s = loading_s(
        job, table, machine, offloaded_s=moved_s["offload_traffic"],
        network_s=np.where(leaves_domain_C, terms["data_parallel"], 0.0),
    )  # fmt: skip
    return terms | {"data_loading": exposed_loading_s(job, load_s, terms)}


def waits_for_host(terms_s: Mapping[str, FloatArray]) -> BoolArray:
    """Say which steps wait so long for the host that this decides how far predictions are off."""
    return np.asarray(terms_s["launch"] > HOST_BOUND_RATIO * np.sum(list(terms_s.values()), axis=0))


def step_breakdown(
    job: TransformerJob, layout: ParallelLayout, *, shape: NodeShape, ranks_per_node: int
) -> Mapping[str, float]:
    """Return :func:`step_terms` of one layout."""
    machine = Machine(shape=shape, ranks_per_node_C=np.array([ranks_per_node], dtype=np.int64))
    terms = step_terms(job, LayoutTable.of([layout]), machine)
    return {name: float(values[0]) for name, values in terms.items()}


def model_flop_per_step(job: TransformerJob) -> int:
    """Operations that MFU counts: forward and backward of the global batch, scores included, nothing recomputed."""
    return job.tokens_per_step * model_flop_per_token(job)


def model_flop_per_token(job: TransformerJob) -> int:
    """Operations that MFU counts, of one token: of what LoRA leaves as it is, no gradients to weights."""
    per_token = flops_per_token(job.model, sequence_length_tokens=job.sequence_length_tokens)
    if job.lora_rank is None:
        return per_token.training_flop
    adapters = 6 * job.num_adapter_parameters
    frozen = 2 * per_token.forward_without_scores_flop + 3 * per_token.scores_flop
    return frozen + adapters


def hardware_flop_per_step(job: TransformerJob, table: LayoutTable) -> FloatArray:
    """Operations that HFU counts: those of :func:`model_flop_per_step`, and matrix products computed again."""
    parts = part_flop(job.model, sequence_length_tokens=job.sequence_length_tokens)
    again_C = sum(flop * recomputed_share_C(job, table, part) for part, flop in parts.items())
    return np.asarray(model_flop_per_step(job) + job.tokens_per_step * again_C)


def peak_flop_per_s(shape: NodeShape, number_format: NumberFormat) -> float:
    """Return the accelerator's peak for a format. Raises ``KeyError`` when it has none."""
    return shape.accelerator.peak_flop_per_s[number_format]
