"""Bytes of weights, gradients and optimizer state per rank of a stage, and what sharding them needs besides. Pure.

Axes: C = candidate layout, K = layer kind. Sharding follows ZeRO (Rajbhandari et al. 2020, section 5 and figure 1);
with a shard group smaller than the replicas, each group has a copy (HSDP, Zhao et al. 2023, section 3.2.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload
from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.layout_table import OFFLOAD_ORDER, BoolArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.compression import kept_bytes
from airflow_llmsched.planner.perf.job import FORMAT_BYTES, OPTIMIZER_STATES, TransformerJob
from airflow_llmsched.planner.perf.layers import distinct_kinds, layer_kinds
from airflow_llmsched.planner.perf.parameters import (
    LayerParameters,
    head_parameters,
    layer_parameters,
    norm_parameters,
    position_parameters,
    predict_ahead_parameters,
)
from airflow_llmsched.planner.perf.stages import StageLayers

STATE_COLUMNS = ("tp_C", "pp_C", "vp_C", "ep_C", "etp_C", "zero_C", "shard_C", "offload_C")
"""What :func:`state_terms` reads of a layout, the columns of its stage included."""

NUM_GATHERED_LAYERS = 2
"""Layers whose weights are whole at once under ZeRO 3: the one that computes, and the next, fetched meanwhile."""

QUANTISED_BLOCK_SIZE = 256
"""8-bit optimizer states share an FP32 scale among this many values (bitsandbytes, torchao; Dettmers et al. 2021)."""

_OPTIMIZER_AWAY = tuple(
    OFFLOAD_ORDER.index(each)
    for each in (Offload.OPTIMIZER_HOST, Offload.OPTIMIZER_NVME, Offload.PARAMETERS_HOST, Offload.PARAMETERS_NVME)
)
_PARAMETERS_AWAY = tuple(OFFLOAD_ORDER.index(each) for each in (Offload.PARAMETERS_HOST, Offload.PARAMETERS_NVME))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankParameters:
    """Parameters that one rank of a stage computes with, before any ZeRO sharding. Axis: C.

    ``dense_C`` are data parallel over all of dp * cp, ``expert_C`` over dp * cp * tp / (ep * etp). ``ends_C`` are those
    of ``dense_C`` outside layers (embedding, head, last norm), ``layer_C`` those of the largest layer: fully sharded
    data parallelism gathers each layer, and the ends together.
    """

    dense_C: IntArray
    expert_C: IntArray
    ends_C: IntArray
    layer_C: IntArray

    @property
    def total_C(self) -> IntArray:
        """Both kinds."""
        return self.dense_C + self.expert_C

    @property
    def largest_unit_C(self) -> IntArray:
        """The most that sharding gathers or reduces in one piece."""
        return np.maximum(self.ends_C, self.layer_C)


def rank_parameters(model: ModelShape, table: LayoutTable, stage: StageLayers) -> RankParameters:
    """Count what one rank of ``stage`` multiplies with. Uneven tensor-parallel shares are rounded up.

    An encoder is on the first stage, whole on each rank; blocks that predict further ahead are on the last.
    """
    layers = [layer_parameters(model, kind) for kind in distinct_kinds(model)]
    layer_KC = np.array([_layer_dense_C(layer, table) for layer in layers])
    expert_KC = np.array([_layer_expert_C(layer, table) for layer in layers])
    num_KC = layers_with_ahead(model, stage)
    ends_C = np.where(stage.is_first_C, _inputs_C(model, table), 0) + np.where(
        stage.is_last_C, _outputs_C(model, table, stage), 0
    )
    return RankParameters(
        dense_C=(num_KC * layer_KC).sum(axis=0) + ends_C,
        expert_C=(num_KC * expert_KC).sum(axis=0),
        ends_C=ends_C,
        layer_C=np.where(num_KC > 0, layer_KC + expert_KC, 0).max(axis=0),
    )


def layers_with_ahead(model: ModelShape, stage: StageLayers) -> IntArray:
    """Count a stage's layers of each kind, those of multi-token prediction included: on the last, like its last."""
    if not model.num_predict_ahead_layers:
        return stage.num_KC
    is_like = [kind == layer_kinds(model)[-1] for kind in distinct_kinds(model)]
    return np.asarray(stage.num_KC + model.num_predict_ahead_layers * np.outer(is_like, stage.is_last_C))


def trained_parameters(
    job: TransformerJob, table: LayoutTable, stage: StageLayers, parameters: RankParameters
) -> RankParameters:
    """Return those of a stage with gradients: all, or LoRA's factors, which tp and ep are taken not to split.

    An encoder that keeps its weights has none.
    """
    if job.lora_rank is None:
        if job.model.encoder is None or not job.freezes_encoder:
            return parameters
        frozen_C = np.where(stage.is_first_C, job.model.encoder.num_parameters, 0)
        return replace(parameters, dense_C=parameters.dense_C - frozen_C, ends_C=parameters.ends_C - frozen_C)
    factors_C = ceil_div(job.num_adapter_parameters, table.pp_C)
    nothing_C = np.zeros_like(factors_C)
    layer_C = ceil_div(factors_C, np.maximum(job.model.num_layers // table.pp_C, 1))
    return RankParameters(dense_C=factors_C, expert_C=nothing_C, ends_C=nothing_C, layer_C=layer_C)


def state_terms(job: TransformerJob, table: LayoutTable, stage: StageLayers) -> dict[str, IntArray]:
    """Return bytes in the accelerator's memory by term. What is offloaded is not in it.

    Under ZeRO 3 the ends (embedding, head) stay gathered through a step, as the root of FSDP does, and gathering and
    reducing have a buffer each beside the tensors that they fill: their streams do not share the allocator's blocks.
    """
    parameters = rank_parameters(job.model, table, stage)
    trained = trained_parameters(job, table, stage, parameters)
    local = sharded_state_bytes(job, table, parameters, trained)
    away = state_away(table)
    terms = {
        "weights": np.where(away["weights"], 0, local["weights"]),
        "compute_copies": np.where(table.zero_C < 3, _copies_C(job, parameters), 0),
        "gradients": np.where(away["gradients"], 0, local["gradients"]),
        "optimizer": np.where(away["optimizer"], 0, local["optimizer"]),
        "sharding_buffers": _buffers_C(job, table, parameters, trained),
    }
    if job.compression is not None:
        terms["compression"] = np.where(table.zero_C == 0, kept_bytes(job.compression, trained.total_C), 0)
    return terms


def sharded_state_bytes(
    job: TransformerJob, table: LayoutTable, parameters: RankParameters, trained: RankParameters
) -> dict[str, IntArray]:
    """Return bytes of one rank's weights, gradients and optimizer state, wherever they are kept."""
    adapters_C = trained.total_C if job.lora_rank is not None else np.zeros_like(trained.total_C)
    dense_C = parameters.dense_C + adapters_C
    return {
        "weights": FORMAT_BYTES[job.precision.parameters] * sharded(dense_C, parameters.expert_C, table, from_stage=3),
        "gradients": FORMAT_BYTES[job.precision.gradients]
        * sharded(trained.dense_C, trained.expert_C, table, from_stage=2),
        "optimizer": np.ceil(
            optimizer_bytes_per_parameter(job) * sharded(trained.dense_C, trained.expert_C, table, from_stage=1)
        ).astype(np.int64),
    }


def optimizer_bytes_per_parameter(job: TransformerJob) -> float:
    """State values and a master copy. States of 8 bits have scales, and their master copy is in FP32."""
    optimizer = job.optimizer
    state_bytes = float(FORMAT_BYTES[optimizer.state_format])
    master_bytes = state_bytes
    if optimizer.state_format is NumberFormat.FP8:
        state_bytes += FORMAT_BYTES[NumberFormat.FP32] / QUANTISED_BLOCK_SIZE
        master_bytes = FORMAT_BYTES[NumberFormat.FP32]
    keeps_master = optimizer.master_weights and FORMAT_BYTES[job.precision.parameters] < master_bytes
    return OPTIMIZER_STATES[optimizer.kind] * state_bytes + keeps_master * master_bytes


def gathered_bytes(job: TransformerJob) -> int:
    """Bytes of a weight as it is gathered and multiplied: cast first where it is stored wider."""
    return min(FORMAT_BYTES[job.precision.parameters], job.compute_bytes)


def state_away(table: LayoutTable) -> Mapping[str, BoolArray]:
    """Tell of each candidate what is outside the accelerator's memory between its uses.

    Gradients go where the optimizer is as soon as a rank has only its own shard of them.
    """
    optimizer_C = np.isin(table.offload_C, _OPTIMIZER_AWAY)
    return {
        "weights": np.isin(table.offload_C, _PARAMETERS_AWAY),
        "gradients": optimizer_C & (table.zero_C >= 2),
        "optimizer": optimizer_C,
    }


def ceil_div(numerator: int | IntArray, denominator: int | IntArray) -> IntArray:
    """Divide and round up."""
    return np.asarray(-(-numerator // denominator))


def _copies_C(job: TransformerJob, parameters: RankParameters) -> IntArray:
    """Return bytes of copies that products read: in 16 bits if stored wider; in FP8 as is and transposed.

    Transformer Engine keeps both layouts of an FP8 weight from one micro-batch to the next; embeddings and heads have
    none.
    """
    stored_bytes = FORMAT_BYTES[job.precision.parameters]
    wide_C = parameters.total_C * (job.compute_bytes if job.compute_bytes < stored_bytes else 0)
    if FORMAT_BYTES[job.precision.compute] > 1:
        return wide_C
    wide_C = parameters.ends_C * (job.compute_bytes if job.compute_bytes < stored_bytes else 0)
    return wide_C + (parameters.total_C - parameters.ends_C) * (2 - (stored_bytes == 1))


def _buffers_C(
    job: TransformerJob, table: LayoutTable, parameters: RankParameters, trained: RankParameters
) -> IntArray:
    weight_bytes, gradient_bytes = gathered_bytes(job), FORMAT_BYTES[job.precision.gradients]
    reduced_C = trained.largest_unit_C * gradient_bytes
    if job.software.keeps_gathered_weights:
        held_C = weight_bytes * parameters.total_C + gradient_bytes * trained.total_C
    elif job.software.has_sharding_buffers:
        held_C = weight_bytes * (
            parameters.ends_C + NUM_GATHERED_LAYERS * parameters.layer_C + trained.layer_C
        )  # fmt: skip
    else:
        largest_C = np.maximum(parameters.ends_C, NUM_GATHERED_LAYERS * parameters.layer_C)
        return np.select([table.zero_C == 3, table.zero_C == 2], [weight_bytes * largest_C + reduced_C, reduced_C], 0)
    apart_C = weight_bytes * parameters.largest_unit_C
    return np.select([table.zero_C == 3, table.zero_C == 2], [held_C + apart_C + reduced_C, reduced_C], default=0)


def sharded(dense_C: IntArray, expert_C: IntArray, table: LayoutTable, *, from_stage: int) -> IntArray:
    """Return what one rank has of these parameters, sharded from a ZeRO stage on."""
    is_sharded_C = table.zero_C >= from_stage
    shards_C = np.where(is_sharded_C, table.shard_C, 1)
    expert_shards_C = np.where(is_sharded_C, expert_shards(table), 1)
    return ceil_div(dense_C, shards_C) + ceil_div(expert_C, expert_shards_C)


def expert_shards(table: LayoutTable) -> IntArray:
    """Return over how many ranks ZeRO shards an expert: those of the shard group that have the same experts."""
    return np.maximum(table.shard_C * table.tp_C // (table.ep_C * table.etp_C), 1)


def _inputs_C(model: ModelShape, table: LayoutTable) -> IntArray:
    width = model.embedding_size or model.hidden_size
    rows_C = ceil_div(model.vocab_size + model.num_extra_embedding_rows, table.tp_C)
    encoder = model.encoder.num_parameters if model.encoder else 0
    norm = norm_parameters(model) if model.embedding_norm else 0
    return rows_C * width + position_parameters(model) + encoder + norm


def _outputs_C(model: ModelShape, table: LayoutTable, stage: StageLayers) -> IntArray:
    """Head and last norm, and what multi-token prediction has beside its layers. A tied head is the first stage's."""
    width = model.embedding_size or model.hidden_size
    rows_C = ceil_div(model.vocab_size, table.tp_C)
    has_table_C = ~stage.is_first_C | (not model.tied_embeddings)
    without_table = replace(model, tied_embeddings=True)  # what a head has beside its table: a bias, projections
    ahead = predict_ahead_parameters(model) - layer_parameters(model, layer_kinds(model)[-1]).total
    norm = norm_parameters(model) if model.final_norm else 0
    others = head_parameters(without_table) + norm + model.num_predict_ahead_layers * ahead
    return np.where(has_table_C, rows_C * width, 0) + others


def _layer_dense_C(layer: LayerParameters, table: LayoutTable) -> IntArray:
    return ceil_div(layer.attention_split + layer.mlp_split, table.tp_C) + layer.replicated


def _layer_expert_C(layer: LayerParameters, table: LayoutTable) -> IntArray:
    return ceil_div(ceil_div(layer.experts_split, table.etp_C) + layer.expert_biases_replicated, table.ep_C)
