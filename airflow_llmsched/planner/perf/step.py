"""Seconds of one optimizer step by term: a roofline, ring collectives, a 1F1B bubble. Pure; many layouts at once.

Axis: C = candidate layout. Ranks are numbered with tensor parallelism fastest, then context, expert, data and pipeline
parallelism, and fill nodes in order, as in Megatron-LM: so a group's stride and size say which links it crosses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape, NumberFormat
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.layout_table import FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.collectives import (
    Link,
    all_to_all_s,
    point_to_point_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    ring_reduce_scatter_s,
)
from airflow_llmsched.planner.perf.flops import LayerFlops, flops_per_token, layer_flops
from airflow_llmsched.planner.perf.job import (
    FORMAT_BYTES,
    OPTIMIZER_STATES,
    TransformerJob,
)
from airflow_llmsched.planner.perf.layers import distinct_kinds, num_dense_layers
from airflow_llmsched.planner.perf.memory_activations import FULL, SELECTIVE, layer_activation_bytes
from airflow_llmsched.planner.perf.memory_states import RankParameters, rank_parameters
from airflow_llmsched.planner.perf.parameters import count_lora_parameters
from airflow_llmsched.planner.perf.stages import StageLayers, telling_stages

ERROR_RATIO = 0.5
"""Half-width of the band that predictions claim: a step takes 0.5 to 1.5 times the prediction. Not calibrated."""

NUM_KERNELS_PER_LAYER = 40
"""Kernels of one layer and micro-batch, forward and backward, without fusion beyond attention: an assumption."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    """Where candidates run: one node shape, and how many consecutive ranks share a node. Axis: C.

    ``ranks_per_node_C`` is the smallest such number of a placement: the node with fewest ranks has fewest links.
    """

    shape: NodeShape
    ranks_per_node_C: IntArray

    def link(self, *, stride_C: IntArray, size_C: IntArray) -> Link:
        """Return the slowest link in groups of ``size_C`` ranks, ``stride_C`` apart.

        A group inside a node has the node's own links. One that leaves it has as many network links as it has
        members in a node, since NCCL builds a ring per network card (nccl-tests, PERFORMANCE.md).
        """
        span_C = stride_C * size_C
        inside_C = (span_C <= self.ranks_per_node_C) & (self.ranks_per_node_C % np.maximum(span_C, 1) == 0)
        members_C = np.clip(self.ranks_per_node_C // np.maximum(stride_C, 1), 1, size_C)
        ratio = self.shape.achievable_bandwidth_ratio
        inner = self.shape.intra_node_bandwidth_bytes_per_s * ratio
        outer_C = np.minimum(inner, self.shape.inter_node_bandwidth_bytes_per_s * ratio * members_C)
        return Link(
            bytes_per_s=np.where(inside_C, inner, outer_C),
            latency_s=np.where(inside_C, self.shape.intra_node_latency_s, self.shape.inter_node_latency_s),
        )


def step_terms(job: TransformerJob, table: LayoutTable, machine: Machine) -> dict[str, FloatArray]:
    """Return seconds by term, which add up to the step. Raises ``KeyError`` if the accelerator lacks the format.

    Only the part of data-parallel traffic that compute cannot hide is charged; tensor, context and expert parallel
    traffic is charged whole. Not modelled: data loading, stragglers, contention between gangs.
    """
    forward_s, recompute_s = _compute_per_micro_batch_s(job, table, machine)
    inner = {
        "tensor_parallel": _tensor_parallel_s(job, table, machine),
        "context_parallel": _context_parallel_s(job, table, machine),
        "expert_parallel": _expert_parallel_s(job, table, machine),
    }
    micro_batch_s = forward_s + recompute_s + sum(inner.values())
    m_C = table.num_micro_batches_C
    return {
        "compute": m_C * forward_s,
        "recompute": m_C * recompute_s,
        **{name: m_C * seconds for name, seconds in inner.items()},
        "pipeline_bubble": (table.pp_C - 1) * micro_batch_s,
        "pipeline_transfer": _pipeline_transfer_s(job, table, machine),
        "data_parallel": _data_parallel_s(job, table, machine, compute_s=forward_s + recompute_s),
        "optimizer": _optimizer_s(job, table, machine),
    }


def step_breakdown(
    job: TransformerJob, layout: ParallelLayout, *, shape: NodeShape, ranks_per_node: int
) -> Mapping[str, float]:
    """Return :func:`step_terms` of one layout."""
    machine = Machine(shape=shape, ranks_per_node_C=np.array([ranks_per_node], dtype=np.int64))
    terms = step_terms(job, LayoutTable.of([layout]), machine)
    return {name: float(values[0]) for name, values in terms.items()}


def model_flop_per_step(job: TransformerJob) -> int:
    """Operations that MFU counts: forward and backward of the global batch, scores included, nothing recomputed."""
    per_token = flops_per_token(job.model, sequence_length_tokens=job.sequence_length_tokens)
    if job.lora_rank is None:
        return job.tokens_per_step * per_token.training_flop
    adapters = 6 * count_lora_parameters(job.model, rank=job.lora_rank)
    frozen = 2 * per_token.forward_without_scores_flop + 3 * per_token.scores_flop
    return job.tokens_per_step * (frozen + adapters)


def peak_flop_per_s(shape: NodeShape, number_format: NumberFormat) -> float:
    """Return the accelerator's peak for a format. Raises ``KeyError`` when it has none."""
    return shape.accelerator.peak_flop_per_s[number_format]


def _compute_per_micro_batch_s(
    job: TransformerJob, table: LayoutTable, machine: Machine
) -> tuple[FloatArray, FloatArray]:
    """Time of one micro-batch on the slowest stage, and the recomputation in it.

    A roofline by kind of operation (Williams et al. 2009): matrix products are bound by their rate, everything between
    them by memory, and the two take turns, so their times add up. Each weight is read for the forward pass, for the
    input gradient and (in shape) for the weight gradient; each kept activation is written once and read once. Starting
    the kernels costs its share of a layer whatever the micro-batch.
    """
    accelerator = machine.shape.accelerator
    rate = peak_flop_per_s(machine.shape, job.precision.compute) * accelerator.achievable_compute_ratio
    bandwidth = accelerator.memory_bandwidth_bytes_per_s * machine.shape.achievable_bandwidth_ratio
    tokens_C = table.micro_batch_C * job.sequence_length_tokens / table.cp_C
    kinds = distinct_kinds(job.model)
    flops = [layer_flops(job.model, kind, sequence_length_tokens=job.sequence_length_tokens) for kind in kinds]
    kept_KC = np.array([layer_activation_bytes(job, table, kind, scores=False) for kind in kinds])
    worst_s, worst_recompute_s = np.zeros(len(table)), np.zeros(len(table))
    for stage in telling_stages(job.model, table):
        trained_C, again_C = _stage_flop_per_token(job, table, stage, flops)
        parameters = rank_parameters(job.model, table, stage)
        moved_C = 3 * parameters.total_C * job.compute_bytes + 2 * (stage.num_KC * kept_KC).sum(axis=0)
        again_s = again_C * tokens_C / table.tp_C / rate
        launches_s = NUM_KERNELS_PER_LAYER * stage.num_layers_C * accelerator.kernel_overhead_s
        stage_s = trained_C * tokens_C / table.tp_C / rate + moved_C / bandwidth + launches_s
        is_worse_C = stage_s + again_s > worst_s + worst_recompute_s
        worst_s = np.where(is_worse_C, stage_s, worst_s)
        worst_recompute_s = np.where(is_worse_C, again_s, worst_recompute_s)
    return worst_s, worst_recompute_s


def _stage_flop_per_token(
    job: TransformerJob, table: LayoutTable, stage: StageLayers, flops: Sequence[LayerFlops]
) -> tuple[FloatArray, FloatArray]:
    logits = 2 * job.model.hidden_size * job.model.vocab_size
    products_C = np.array([each.matmul_flop for each in flops]) @ stage.num_KC
    scores_C = np.array([each.scores_flop for each in flops]) @ stage.num_KC
    again_C = np.select(
        [table.recompute_C == FULL, table.recompute_C == SELECTIVE], [products_C + scores_C, scores_C], 0
    )
    products_C = products_C + np.where(stage.is_last_C, logits, 0)
    if job.lora_rank is None:
        trained_C = 3 * products_C + 3 * scores_C
    else:
        adapters = count_lora_parameters(job.model, rank=job.lora_rank) * table.tp_C // table.pp_C
        trained_C = 2 * products_C + 3 * scores_C + 6 * adapters
    return trained_C.astype(np.float64), again_C.astype(np.float64)


def _tensor_parallel_s(job: TransformerJob, table: LayoutTable, machine: Machine) -> FloatArray:
    """Per micro-batch: 2 all-reduces a layer forward, 2 backward, 2 more when layers run twice (Shoeybi et al. 2019).

    With sequence parallelism each is an all-gather and a reduce-scatter of the same volume (Korthikanti et al. 2022).
    """
    link = machine.link(stride_C=np.ones_like(table.tp_C), size_C=table.tp_C)
    num_per_layer_C = np.where(table.recompute_C == FULL, 6, 4)
    one_s = ring_all_reduce_s(num_bytes=_hidden_bytes_C(job, table), group_size=table.tp_C, link=link)
    return num_per_layer_C * (job.model.num_layers // table.pp_C) * one_s


def _context_parallel_s(job: TransformerJob, table: LayoutTable, machine: Machine) -> FloatArray:
    """Per micro-batch: keys and values go round a ring forward, with their gradients backward (Liu et al. 2023)."""
    link = machine.link(stride_C=table.tp_C, size_C=table.cp_C)
    kv_bytes_C = (
        2 * job.compute_bytes * table.micro_batch_C * job.sequence_length_tokens
        * job.model.num_kv_heads * job.model.head_size / table.tp_C
    )  # fmt: skip
    one_s = ring_all_gather_s(num_bytes=kv_bytes_C, group_size=table.cp_C, link=link)
    return np.where(table.recompute_C == FULL, 4, 3) * (job.model.num_layers // table.pp_C) * one_s


def _expert_parallel_s(job: TransformerJob, table: LayoutTable, machine: Machine) -> FloatArray:
    """Per micro-batch: tokens go to experts and back, in both passes (Lepikhin et al. 2020). Load is balanced."""
    if job.model.experts is None:
        return np.zeros(len(table))
    link = machine.link(stride_C=table.tp_C * table.cp_C, size_C=table.ep_C)
    num_layers_C = np.minimum(job.model.num_layers // table.pp_C, job.model.num_layers - num_dense_layers(job.model))
    one_s = all_to_all_s(
        num_bytes=_hidden_bytes_C(job, table) * job.model.experts.num_active / table.tp_C,
        group_size=table.ep_C,
        link=link,
    )
    return np.where(table.recompute_C == FULL, 6, 4) * num_layers_C * one_s


def _pipeline_transfer_s(job: TransformerJob, table: LayoutTable, machine: Machine) -> FloatArray:
    """Activations forward and gradients backward of every micro-batch; each rank of a tensor group sends its share."""
    stride_C = table.tp_C * table.cp_C * table.dp_C
    link = machine.link(stride_C=stride_C, size_C=table.pp_C)
    one_s = point_to_point_s(num_bytes=_hidden_bytes_C(job, table) / table.tp_C, link=link)
    return np.where(table.pp_C > 1, 2 * table.num_micro_batches_C * one_s, 0.0)


def _data_parallel_s(job: TransformerJob, table: LayoutTable, machine: Machine, *, compute_s: FloatArray) -> FloatArray:
    """Gradient and weight traffic per step that stays exposed.

    Stage 0 all-reduces gradients once; 1 reduce-scatters them and gathers weights once; 2 reduce-scatters every
    micro-batch; 3 also gathers weights twice for each (Rajbhandari et al. 2020, section 7; Zhao et al. 2023, FSDP).
    What runs beside it can hide it, but for the share of one layer: the last gradient bucket, the first gather.
    """
    stages = [rank_parameters(job.model, table, stage) for stage in telling_stages(job.model, table)]
    dense_C = np.max([stage.dense_C for stage in stages], axis=0)
    expert_C = np.max([stage.expert_C for stage in stages], axis=0)
    trained = RankParameters(dense_C=dense_C, expert_C=expert_C, ends_C=dense_C, layer_C=dense_C)
    replicas_C = table.dp_C * table.cp_C
    total_s = _replica_traffic_s(job, table, machine, trained.dense_C, stride_C=table.tp_C, size_C=replicas_C)
    if job.model.experts is not None:
        total_s = total_s + _replica_traffic_s(
            job, table, machine, trained.expert_C, stride_C=table.tp_C * table.ep_C,
            size_C=np.maximum(replicas_C // table.ep_C, 1),
        )  # fmt: skip
    if not machine.shape.overlaps_communication:
        return total_s
    per_micro_batch_C = np.where(table.zero_C >= 2, table.num_micro_batches_C, 1)
    never_hidden_s = total_s / (job.model.num_layers // table.pp_C + 1)
    return np.maximum(total_s - per_micro_batch_C * compute_s, never_hidden_s)


def _replica_traffic_s(
    job: TransformerJob, table: LayoutTable, machine: Machine, parameters_C: IntArray, *, stride_C: IntArray,
    size_C: IntArray,
) -> FloatArray:  # fmt: skip
    link = machine.link(stride_C=stride_C, size_C=size_C)
    trained_C = parameters_C
    if job.lora_rank is not None:
        trained_C = -(-count_lora_parameters(job.model, rank=job.lora_rank) // table.pp_C)
    gradient_bytes_C = trained_C * FORMAT_BYTES[job.precision.gradients]
    weight_bytes = min(FORMAT_BYTES[job.precision.parameters], job.compute_bytes)
    m_C = table.num_micro_batches_C
    reduced_s = ring_reduce_scatter_s(num_bytes=gradient_bytes_C, group_size=size_C, link=link)
    regathered_s = ring_all_gather_s(num_bytes=trained_C * weight_bytes, group_size=size_C, link=link)
    gathered_s = ring_all_gather_s(num_bytes=parameters_C * weight_bytes, group_size=size_C, link=link)
    by_zero_stage = [
        ring_all_reduce_s(num_bytes=gradient_bytes_C, group_size=size_C, link=link),
        reduced_s + regathered_s,
        m_C * reduced_s + regathered_s,
        m_C * (reduced_s + 2 * gathered_s),
    ]
    return np.choose(table.zero_C, by_zero_stage)


def _optimizer_s(job: TransformerJob, table: LayoutTable, machine: Machine) -> FloatArray:
    """Bound by memory: gradients and weights are read, states and master copies read and written, weights written."""
    stages = [rank_parameters(job.model, table, stage) for stage in telling_stages(job.model, table)]
    trained_C = np.max([stage.total_C for stage in stages], axis=0)
    if job.lora_rank is not None:
        trained_C = -(-count_lora_parameters(job.model, rank=job.lora_rank) // table.pp_C)
    local_C = trained_C / np.where(table.zero_C >= 1, table.dp_C * table.cp_C, 1)
    optimizer, precision = job.optimizer, job.precision
    keeps_master = optimizer.master_weights and precision.parameters is not optimizer.state_format
    num_states = OPTIMIZER_STATES[optimizer.kind] + keeps_master
    bytes_per_parameter = (
        FORMAT_BYTES[precision.gradients]
        + 2 * FORMAT_BYTES[precision.parameters]
        + 2 * num_states * FORMAT_BYTES[optimizer.state_format]
    )
    bandwidth = machine.shape.accelerator.memory_bandwidth_bytes_per_s * machine.shape.achievable_bandwidth_ratio
    return np.asarray(local_C * bytes_per_parameter / bandwidth)


def _hidden_bytes_C(job: TransformerJob, table: LayoutTable) -> FloatArray:
    tokens_C = table.micro_batch_C * job.sequence_length_tokens / table.cp_C
    return np.asarray(job.compute_bytes * job.model.hidden_size * tokens_C)
