"""Bytes per rank by term, for the rank that needs most. Pure; many layouts at once.

Axes: C = candidate layout, S = pipeline stage considered. Activations follow Korthikanti et al. (2022), "Reducing
Activation Recomputation in Large Transformer Models", equations 1 to 6, generalised to grouped-query attention, gated
MLPs and experts. Dropout masks are counted as there, so that a model without dropout needs slightly less.
``Recompute.NONE`` stores the attention scores; a fused attention kernel never does, which is what ``SELECTIVE``
describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.layout import ParallelLayout, Recompute
from airflow_llmsched.domain.workload import ModelShape, Positions
from airflow_llmsched.planner.layout_table import RECOMPUTE_ORDER, IntArray, LayoutTable
from airflow_llmsched.planner.perf.job import (
    FORMAT_BYTES,
    OPTIMIZER_STATES,
    TransformerJob,
)
from airflow_llmsched.planner.perf.layers import LayerKind, distinct_kinds
from airflow_llmsched.planner.perf.parameters import (
    LayerParameters,
    count_lora_parameters,
    layer_parameters,
    norm_parameters,
    num_mlp_matrices,
)
from airflow_llmsched.planner.perf.stages import StageLayers, telling_stages

SELECTIVE, FULL = RECOMPUTE_ORDER.index(Recompute.SELECTIVE), RECOMPUTE_ORDER.index(Recompute.FULL)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankParameters:
    """Parameters that one rank of a stage computes with, before any ZeRO sharding. Axis: C.

    ``dense_C`` are data parallel over all of dp * cp, ``expert_C`` over dp * cp / ep. ``largest_unit_C`` is the largest
    piece that fully sharded data parallelism gathers at once: a layer, an embedding or the output head.
    """

    dense_C: IntArray
    expert_C: IntArray
    largest_unit_C: IntArray

    @property
    def total_C(self) -> IntArray:
        """Both kinds."""
        return self.dense_C + self.expert_C


def memory_terms(
    job: TransformerJob, table: LayoutTable, *, reserved_bytes: int = 0, sequence_parallel: bool = True
) -> dict[str, IntArray]:
    """Return bytes per rank by term for the heaviest pipeline stage of each candidate; they add up to the rank's total.

    Args:
        job: What is trained.
        table: The candidates.
        reserved_bytes: What the runtime holds before the first tensor.
        sequence_parallel: Whether tensor-parallel ranks also split norms and dropouts along the sequence (Megatron-LM's
            ``--sequence-parallel``), as is usual today.
    """
    terms_S = [
        _stage_terms(job, table, stage, sequence_parallel=sequence_parallel)
        for stage in telling_stages(job.model, table)
    ]
    totals_SC = np.array([sum(terms.values()) for terms in terms_S])
    worst_C = np.argmax(totals_SC, axis=0)
    columns = np.arange(len(table))
    terms = {name: np.array([terms[name] for terms in terms_S])[worst_C, columns] for name in terms_S[0]}
    return terms | {"runtime": np.full(len(table), reserved_bytes, dtype=np.int64)}


def memory_breakdown(
    job: TransformerJob, layout: ParallelLayout, *, reserved_bytes: int = 0, sequence_parallel: bool = True
) -> Mapping[str, int]:
    """Return :func:`memory_terms` of one layout."""
    terms = memory_terms(
        job, LayoutTable.of([layout]), reserved_bytes=reserved_bytes, sequence_parallel=sequence_parallel
    )
    return {name: int(values[0]) for name, values in terms.items()}


def rank_parameters(model: ModelShape, table: LayoutTable, stage: StageLayers) -> RankParameters:
    """Count what one rank of ``stage`` multiplies with. Uneven tensor-parallel shares are rounded up."""
    layers = [layer_parameters(model, kind) for kind in distinct_kinds(model)]
    layer_KC = np.array([_layer_dense_C(layer, table) for layer in layers])
    expert_KC = np.array([
        _ceil(_ceil(layer.experts_split, table.tp_C) + layer.expert_biases_replicated, table.ep_C) for layer in layers
    ])  # fmt: skip
    table_C = _ceil(model.vocab_size, table.tp_C) * model.hidden_size
    positions = model.max_positions * model.hidden_size if model.positions is Positions.LEARNED else 0
    has_own_head_C = stage.is_last_C & (~stage.is_first_C | (not model.tied_embeddings))
    dense_C = (
        (stage.num_KC * layer_KC).sum(axis=0)
        + np.where(stage.is_first_C, table_C + positions, 0)
        + np.where(has_own_head_C, table_C, 0)
        + np.where(stage.is_last_C, norm_parameters(model), 0)
    )
    layer_unit_C = np.where(stage.num_KC > 0, layer_KC + expert_KC, 0).max(axis=0)
    end_unit_C = np.where(stage.is_first_C | stage.is_last_C, table_C, 0)
    return RankParameters(
        dense_C=dense_C,
        expert_C=(stage.num_KC * expert_KC).sum(axis=0),
        largest_unit_C=np.maximum(layer_unit_C, end_unit_C),
    )


def layer_activation_bytes(
    job: TransformerJob, table: LayoutTable, kind: LayerKind, *, scores: bool, sequence_parallel: bool = True
) -> IntArray:
    """Return bytes that one layer keeps for the backward pass of one micro-batch, with or without attention scores.

    Per token, with e bytes a value: 4 e h for norms and inputs and 2 h for dropout masks (split only by sequence
    parallelism); e (2 q + 2 kv) for attention and e f for each MLP matrix's wide side (split by tensor parallelism).
    For a plain MLP and q = kv = h, f = 4 h this is s b h (10 + 24 / t), and (2 e + 1) a s^2 b / t for the scores.
    """
    model, e = job.model, job.compute_bytes
    q, kv = model.num_heads * model.head_size, model.num_kv_heads * model.head_size
    tokens_C = _tokens_C(job, table)
    experts = model.experts if kind.is_moe else None
    num_copies = experts.num_active + (1 if experts.num_shared else 0) if experts else 1
    width = (experts.num_active + experts.num_shared) * experts.expert_hidden_size if experts else model.ffn_hidden_size
    unsplit = (3 + num_copies) * e * model.hidden_size + 2 * model.hidden_size
    unsplit += 4 * experts.num_routed if experts else 0
    split = e * (2 * q + 2 * kv + num_mlp_matrices(model) * width) + (e * (q + kv) if model.qk_norm else 0)
    unsplit_bytes_C = unsplit * tokens_C
    if sequence_parallel:
        unsplit_bytes_C = _ceil(unsplit_bytes_C, table.tp_C)
    bytes_C = unsplit_bytes_C + _ceil(split * tokens_C, table.tp_C)
    if scores:
        bytes_C = bytes_C + _ceil((2 * e + 1) * model.num_heads * job.sequence_length_tokens * tokens_C, table.tp_C)
    return bytes_C


def _stage_terms(
    job: TransformerJob, table: LayoutTable, stage: StageLayers, *, sequence_parallel: bool
) -> dict[str, IntArray]:
    parameters = rank_parameters(job.model, table, stage)
    return _state_terms(job, table, parameters) | _activation_terms(
        job, table, stage, sequence_parallel=sequence_parallel
    )


def _state_terms(job: TransformerJob, table: LayoutTable, parameters: RankParameters) -> dict[str, IntArray]:
    """Weights, gradients and optimizer state under ZeRO (Rajbhandari et al. 2020, section 5 and figure 1)."""
    precision, optimizer = job.precision, job.optimizer
    weight_bytes = FORMAT_BYTES[precision.parameters]
    gradient_bytes = FORMAT_BYTES[precision.gradients]
    state_format_bytes = FORMAT_BYTES[optimizer.state_format]
    keeps_master = optimizer.master_weights and precision.parameters is not optimizer.state_format
    state_bytes = state_format_bytes * (OPTIMIZER_STATES[optimizer.kind] + keeps_master)
    is_cast = job.compute_bytes < weight_bytes
    trained = _trained(job, table, parameters)
    unit_bytes = min(weight_bytes, job.compute_bytes) if is_cast else weight_bytes
    gathered_C = np.select(
        [table.zero_C == 3, table.zero_C == 2],
        [
            parameters.largest_unit_C * (2 * unit_bytes + (gradient_bytes if job.lora_rank is None else 0)),
            np.minimum(parameters.largest_unit_C, trained.total_C) * gradient_bytes,
        ],
        default=0,
    )
    adapters_C = trained.total_C if job.lora_rank is not None else np.zeros_like(trained.total_C)
    whole_weights = RankParameters(
        dense_C=parameters.dense_C + adapters_C,
        expert_C=parameters.expert_C,
        largest_unit_C=parameters.largest_unit_C,
    )
    return {
        "weights": weight_bytes * _sharded_C(whole_weights, table, from_stage=3),
        "compute_copies": np.where(table.zero_C < 3, parameters.total_C * job.compute_bytes, 0) * int(is_cast),
        "gradients": gradient_bytes * _sharded_C(trained, table, from_stage=2),
        "optimizer": state_bytes * _sharded_C(trained, table, from_stage=1),
        "sharding_buffers": gathered_C,
    }


def _activation_terms(
    job: TransformerJob, table: LayoutTable, stage: StageLayers, *, sequence_parallel: bool
) -> dict[str, IntArray]:
    model, e = job.model, job.compute_bytes
    tokens_C = _tokens_C(job, table)

    def layer_KC(*, scores: bool) -> IntArray:
        return np.array([
            layer_activation_bytes(job, table, kind, scores=scores, sequence_parallel=sequence_parallel)
            for kind in distinct_kinds(model)
        ])  # fmt: skip

    def stage_C(*, scores: bool) -> IntArray:
        return np.asarray((stage.num_KC * layer_KC(scores=scores)).sum(axis=0))

    def largest_layer_C(*, scores: bool) -> IntArray:
        return np.asarray(np.where(stage.num_KC > 0, layer_KC(scores=scores), 0).max(axis=0))

    split_C = table.tp_C if sequence_parallel else np.ones_like(table.tp_C)
    inputs_C = stage.num_layers_C * _ceil(e * model.hidden_size * tokens_C, split_C)
    is_full_C, is_selective_C = table.recompute_C == FULL, table.recompute_C == SELECTIVE
    kept_C = np.select([is_full_C, is_selective_C], [inputs_C, stage_C(scores=False)], default=stage_C(scores=True))
    scores_C = largest_layer_C(scores=True) - largest_layer_C(scores=False)
    embedded_C = np.where(stage.is_first_C, _ceil(model.hidden_size * tokens_C, split_C), 0)
    head_C = _ceil(2 * e * model.hidden_size * tokens_C, split_C) + _ceil(8 * model.vocab_size * tokens_C, table.tp_C)
    return {
        "activations": np.ceil(stage.num_in_flight_C * (kept_C + embedded_C)).astype(np.int64),
        "recomputed_layer": np.select([is_full_C, is_selective_C], [largest_layer_C(scores=True), scores_C], default=0),
        "logits": np.where(stage.is_last_C, head_C, 0),
    }


def _trained(job: TransformerJob, table: LayoutTable, parameters: RankParameters) -> RankParameters:
    """Parameters with gradients: all, or LoRA's factors, which tensor and expert parallelism are taken not to split."""
    if job.lora_rank is None:
        return parameters
    factors_C = _ceil(count_lora_parameters(job.model, rank=job.lora_rank), table.pp_C)
    return RankParameters(dense_C=factors_C, expert_C=np.zeros_like(factors_C), largest_unit_C=factors_C)


def _sharded_C(parameters: RankParameters, table: LayoutTable, *, from_stage: int) -> IntArray:
    replicas_C = np.where(table.zero_C >= from_stage, table.dp_C * table.cp_C, 1)
    expert_replicas_C = np.where(table.zero_C >= from_stage, np.maximum(table.dp_C * table.cp_C // table.ep_C, 1), 1)
    return _ceil(parameters.dense_C, replicas_C) + _ceil(parameters.expert_C, expert_replicas_C)


def _layer_dense_C(layer: LayerParameters, table: LayoutTable) -> IntArray:
    return _ceil(layer.attention_split + layer.mlp_split, table.tp_C) + layer.replicated


def _tokens_C(job: TransformerJob, table: LayoutTable) -> IntArray:
    return table.micro_batch_C * _ceil(job.sequence_length_tokens, table.cp_C)


def _ceil(numerator: int | IntArray, denominator: IntArray) -> IntArray:
    return -(-numerator // denominator)
