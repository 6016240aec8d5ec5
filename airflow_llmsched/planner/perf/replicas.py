"""Traffic between replicas, and the optimizer: what a step does once, or for each micro-batch where ZeRO shards more.

Pure. Axis: C = candidate layout. Rajbhandari et al. (2020), section 7, for volumes; Zhao et al. (2023), FSDP, for how
gathers are prefetched; Zhang et al. (2022), MiCS, for shards over a part of the replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.planner.factored import factor
from airflow_llmsched.planner.layout_table import FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.collectives import Span, all_gather_s, all_reduce_s, reduce_scatter_s
from airflow_llmsched.planner.perf.compression import METHODS, compress_s, exchange_s
from airflow_llmsched.planner.perf.job import FORMAT_BYTES, OPTIMIZER_STATES, TransformerJob
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.memory_states import rank_parameters
from airflow_llmsched.planner.perf.micro_batch import MicroBatch, exposed_s
from airflow_llmsched.planner.perf.stages import telling_stages

BUCKET_PARAMETERS = 4e7
"""Parameters that are reduced together at least (Megatron-Core's default)."""

PARAMETER_COLUMNS = ("tp_C", "pp_C", "vp_C", "ep_C", "etp_C")
ENDS_COLUMNS = ("dp_C", "tp_C", "cp_C", "pp_C")
TRAFFIC_COLUMNS = ("dp_C", "cp_C", "tp_C", "pp_C", "vp_C", "ep_C", "etp_C", "zero_C", "shard_C")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeaviestRank:
    """Parameters of the rank with most, which decides traffic and optimizer. ``trained_*`` are those with gradients."""

    dense_C: FloatArray
    expert_C: FloatArray
    trained_dense_C: FloatArray
    trained_expert_C: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Seconds of one reduction and one gather of everything a rank holds, in ``units_C`` pieces."""

    reduce_s_C: FloatArray
    gather_s_C: FloatArray
    once_s_C: FloatArray
    compress_s_C: FloatArray
    units_C: FloatArray


def heaviest_rank(job: TransformerJob, table: LayoutTable) -> HeaviestRank:
    """Return the largest counts among stages."""
    found = factor(table, PARAMETER_COLUMNS)
    few = replace(found.table, num_micro_batches_C=np.ones(len(found.first_U), dtype=np.int64))
    ranks = [rank_parameters(job.model, few, stage) for stage in telling_stages(job.model, few)]
    dense_U = np.max([rank.dense_C for rank in ranks], axis=0).astype(np.float64)
    expert_U = np.max([rank.expert_C for rank in ranks], axis=0).astype(np.float64)
    trained_U, trained_expert_U = dense_U, expert_U
    if job.lora_rank is not None:
        trained_U = np.ceil(job.num_adapter_parameters / few.pp_C)
        trained_expert_U = np.zeros_like(trained_U)
    return HeaviestRank(
        dense_C=found.spread(dense_U),
        expert_C=found.spread(expert_U),
        trained_dense_C=found.spread(trained_U),
        trained_expert_C=found.spread(trained_expert_U),
    )


def data_parallel_s(job: TransformerJob, table: LayoutTable, machine: Machine, micro_batch: MicroBatch) -> FloatArray:
    """Return the seconds of gradient and weight traffic in a step that computation does not hide.

    Stage 0 all-reduces gradients once; 1 reduce-scatters them and gathers weights once; 2 reduce-scatters for every
    micro-batch; 3 also gathers weights twice for each. Reductions run beside the backward pass of the (last)
    micro-batch, gathers beside the forward pass of the (first) one. The first gather and the last reduction have
    nothing beside them.
    """
    traffic = _traffic(job, table, machine)
    zero_C, m_C = table.zero_C, table.num_micro_batches_C
    times_C = np.ones_like(m_C) if job.software.keeps_gathered_weights else m_C
    reduce_s = np.where(zero_C >= 2, times_C, 1) * traffic.reduce_s_C
    gather_s = np.select([zero_C == 3, zero_C >= 1], [times_C * traffic.gather_s_C, traffic.gather_s_C], 0.0)
    regather_s = np.where((zero_C == 3) & (times_C == m_C), m_C * traffic.gather_s_C, 0.0)
    if not job.software.overlaps_data_parallel or _waits_for_all(job):
        return reduce_s + gather_s + regather_s + traffic.once_s_C
    backward_s = np.where(zero_C >= 2, m_C, 1) * micro_batch.backward_s_C
    forward_s = np.where(zero_C == 3, m_C, 1) * micro_batch.forward_s_C
    behind_s = exposed_s(reduce_s + regather_s + traffic.once_s_C, backward_s, machine, num_pieces=traffic.units_C)
    ahead_s = exposed_s(gather_s, forward_s, machine, num_pieces=traffic.units_C)
    return behind_s + ahead_s


def compression_s(job: TransformerJob, table: LayoutTable, machine: Machine) -> FloatArray:
    """Return the seconds that compressing gradients takes, and restoring what others sent."""
    return np.zeros(len(table)) if job.compression is None else _traffic(job, table, machine).compress_s_C


def optimizer_s(job: TransformerJob, table: LayoutTable, machine: Machine) -> FloatArray:
    """Bound by memory: what every pass over gradients, states and weights reads and writes.

    Gradients are copied to the format of the states where they differ; read for their norm, scaled in place (twice with
    FP16, whose loss is scaled) and read by the step, as in Megatron-LM. Those of all that a rank computes with are
    cleared.
    """
    rank = heaviest_rank(job, table)
    replicas_C = np.where(table.zero_C >= 1, table.shard_C, 1)
    expert_replicas_C = np.where(table.zero_C >= 1, np.maximum(_expert_replicas_C(table), 1), 1)
    optimizer, precision = job.optimizer, job.precision
    gradient_bytes, weight_bytes = FORMAT_BYTES[precision.gradients], FORMAT_BYTES[precision.parameters]
    keeps_master = optimizer.master_weights and precision.parameters is not optimizer.state_format
    num_states = OPTIMIZER_STATES[optimizer.kind] + keeps_master
    state_bytes = FORMAT_BYTES[optimizer.state_format]
    is_copied = gradient_bytes < state_bytes
    num_gradient_passes = 4 + 2 * (precision.compute is NumberFormat.FP16)
    bytes_per_parameter = (
        (gradient_bytes + state_bytes if is_copied else 0)
        + num_gradient_passes * max(gradient_bytes, state_bytes)
        + weight_bytes * (1 if keeps_master else 2)
        + 2 * num_states * state_bytes
    )
    own_C = rank.trained_dense_C / replicas_C + rank.trained_expert_C / expert_replicas_C
    cleared_C = gradient_bytes * (rank.trained_dense_C + rank.trained_expert_C)
    bandwidth = machine.shape.accelerator.memory_bandwidth_bytes_per_s * machine.reached.memory_ratio
    return np.asarray((own_C * bytes_per_parameter + cleared_C) / bandwidth)


def tied_embedding_s(job: TransformerJob, table: LayoutTable, machine: Machine) -> FloatArray:
    """First and last stage add up their gradients of a tied embedding, once a step."""
    if not job.model.tied_embeddings:
        return np.zeros(len(table))
    found = factor(table, ENDS_COLUMNS, beside=machine.places_C)
    few = found.table
    num_bytes = FORMAT_BYTES[job.precision.gradients] * job.model.vocab_size * job.model.hidden_size / few.tp_C
    ends = machine.take(found.first_U).span(
        stride_C=few.tp_C * few.cp_C * few.dp_C * np.maximum(few.pp_C - 1, 1), size_C=np.minimum(few.pp_C, 2)
    )
    return found.spread(all_reduce_s(num_bytes=num_bytes, span=ends))


def _traffic(job: TransformerJob, table: LayoutTable, machine: Machine) -> Traffic:
    found = factor(table, TRAFFIC_COLUMNS, beside=machine.places_C)
    few, here = found.table, machine.take(found.first_U)
    rank = heaviest_rank(job, few)
    dense = _group_traffic(
        job, few, here, rank.dense_C, rank.trained_dense_C, stride_C=few.tp_C, size_C=few.dp_C * few.cp_C
    )
    if job.model.experts is None:
        return _spread(dense, found.spread)
    experts = _group_traffic(
        job, few, here, rank.expert_C, rank.trained_expert_C, stride_C=few.etp_C * few.ep_C,
        size_C=np.maximum(_expert_replicas_C(few), 1),
    )  # fmt: skip
    both = Traffic(
        reduce_s_C=dense.reduce_s_C + experts.reduce_s_C,
        gather_s_C=dense.gather_s_C + experts.gather_s_C,
        once_s_C=dense.once_s_C + experts.once_s_C,
        compress_s_C=dense.compress_s_C + experts.compress_s_C,
        units_C=np.maximum(dense.units_C, experts.units_C),
    )
    return _spread(both, found.spread)


def _group_traffic(
    job: TransformerJob, table: LayoutTable, machine: Machine, held_C: FloatArray, trained_C: FloatArray, *,
    stride_C: IntArray, size_C: IntArray,
) -> Traffic:  # fmt: skip
    """Price one kind of group. Shards over a part of the replicas leave an all-reduce of each shard over the copies."""
    gradient_bytes = trained_C * FORMAT_BYTES[job.precision.gradients]
    weight_bytes = min(FORMAT_BYTES[job.precision.parameters], job.compute_bytes)
    is_whole_C = table.zero_C == 3
    gathered_bytes = np.where(is_whole_C, held_C, trained_C) * weight_bytes
    num_layers_C = job.model.num_layers / table.pp_C
    buckets_C = np.maximum(1, trained_C / np.maximum(BUCKET_PARAMETERS, 1e6 * size_C))
    units_C = np.where(is_whole_C, num_layers_C + 1, buckets_C)
    shard_C = np.where(table.zero_C >= 1, np.minimum(table.shard_C, size_C), size_C)
    shards = machine.span(stride_C=stride_C, size_C=shard_C)
    copies = machine.span(stride_C=stride_C * shard_C, size_C=size_C // shard_C)
    reduce_s = np.where(
        table.zero_C >= 1,
        _in_pieces(reduce_scatter_s, gradient_bytes, units_C, shards),
        _in_pieces(all_reduce_s, gradient_bytes, units_C, shards),
    )
    packing_s = np.zeros_like(reduce_s)
    if job.compression is not None:
        is_unsharded_C = table.zero_C == 0
        exchanged_s = exchange_s(
            job.compression, trained_C, shards, hidden_size=job.model.hidden_size, split_C=table.tp_C
        )
        reduce_s = np.where(is_unsharded_C, exchanged_s, reduce_s)
        packing_s = np.where(is_unsharded_C, compress_s(job.compression, trained_C, size_C, machine), 0.0)
    return Traffic(
        reduce_s_C=reduce_s,
        compress_s_C=packing_s,
        gather_s_C=_in_pieces(all_gather_s, gathered_bytes, units_C, shards),
        once_s_C=_in_pieces(all_reduce_s, gradient_bytes / shard_C, units_C, copies),
        units_C=units_C,
    )


def _waits_for_all(job: TransformerJob) -> bool:
    """Whether compression needs the whole gradient before anything is sent."""
    return job.compression is not None and not METHODS[job.compression.kind].is_hidden


def _in_pieces(
    collective: Callable[..., FloatArray], num_bytes: FloatArray, units_C: FloatArray, span: Span
) -> FloatArray:
    return units_C * collective(num_bytes=num_bytes / units_C, span=span)


def _expert_replicas_C(table: LayoutTable) -> IntArray:
    return table.dp_C * table.cp_C * table.tp_C // (table.etp_C * table.ep_C)


def _spread(traffic: Traffic, spread: Callable[[FloatArray], FloatArray]) -> Traffic:
    return Traffic(
        reduce_s_C=spread(traffic.reduce_s_C),
        gather_s_C=spread(traffic.gather_s_C),
        once_s_C=spread(traffic.once_s_C),
        compress_s_C=spread(traffic.compress_s_C),
        units_C=spread(traffic.units_C),
    )
