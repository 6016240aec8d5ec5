"""Which layouts are legal, rule by rule, each with the reason that people read. Pure.

Axis: C = candidate layout. A rule says which candidates pass; it is asked only of those that the rules before it left,
at the stage where all that it reads is known: the degrees, then batch and schedule, then what replicas shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from airflow_llmsched.domain.layout import Offload, PipelineSchedule
from airflow_llmsched.domain.workload import ExpertShape, ModelShape, ParallelismWish, WorkloadSpec
from airflow_llmsched.planner.layout_table import OFFLOAD_ORDER, SCHEDULE_ORDER, BoolArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.layers import num_dense_layers

ONE_F_ONE_B = SCHEDULE_ORDER.index(PipelineSchedule.ONE_F_ONE_B)
INTERLEAVED = SCHEDULE_ORDER.index(PipelineSchedule.INTERLEAVED)
PARAMETERS_AWAY = [OFFLOAD_ORDER.index(each) for each in (Offload.PARAMETERS_HOST, Offload.PARAMETERS_NVME)]

TILE_TOKENS = 128
"""Queries that a fused attention kernel takes at once (FlashAttention-2 and -3, head size 128): fewer leave it idle."""


class LayoutRule(StrEnum):
    """Why a layout is not legal. The value is the reason as people read it."""

    DP_IS_PINNED = "dp is pinned to another value"
    SHIPPED_TRAINER = "the shipped trainer splits by data parallelism only"
    NO_MODEL = "a job without a model is split by data parallelism only"
    TP_DIVIDES_HEADS = "tp does not divide the attention heads"
    TP_SUITS_KV_HEADS = "tp neither divides the key and value heads nor is a multiple of them"
    TP_DIVIDES_FFN = "tp does not divide the MLP width"
    TP_INSIDE_DOMAIN = "tp does not fit into a domain of the fastest links (NVLink)"
    PP_HAS_LAYERS = "pp is more than the layers"
    PP_KEEPS_STAGES_FULL = "pp makes stages so uneven that more than an eighth of the pipeline would stand idle"
    CP_DIVIDES_SEQUENCE = "the sequence does not divide into 2 * cp parts"
    CP_KEEPS_TILES = f"cp leaves parts of the sequence shorter than an attention kernel's tile of {TILE_TOKENS} tokens"
    TP_DIVIDES_SEQUENCE = "tp does not divide the sequence of a context-parallel rank"
    EP_NEEDS_EXPERTS = "ep needs a mixture of experts"
    EP_DIVIDES_EXPERTS = "ep does not divide the experts"
    EXPERT_TP_DIVIDES_FFN = "expert-tp does not divide the experts' width"
    EXPERT_TP_INSIDE_DOMAIN = "expert-tp does not fit into a domain of the fastest links (NVLink)"
    EP_DIVIDES_RANKS = "ep * expert-tp does not divide dp * tp * cp, the ranks of a pipeline stage"
    BATCH_DIVIDES = "the global batch does not divide by dp * micro-batch"
    SCHEDULE_NEEDS_PIPELINE = "interleaved and zero-bubble schedules need a pipeline"
    CHUNKS_INTERLEAVE = "several chunks on a stage, and only those, are interleaved"
    CHUNKS_HAVE_LAYERS = "a chunk of the pipeline would have no layer"
    INTERLEAVING_COMES_IN_ROUNDS = "interleaving needs micro-batches in multiples of pp"
    SHIPPED_TRAINER_SHARDS = "the shipped trainer shards over all replicas, and keeps everything in place"
    SHARD_NEEDS_ZERO = "a pinned shard size needs ZeRO"
    SHARD_DIVIDES = "the shard size does not divide dp * cp, or is no multiple of cp"
    EXPERTS_INSIDE_SHARD = "the copies of an expert do not divide into groups as those of other weights do"
    OFFLOAD_NEEDS_ZERO_3 = "parameters leave the accelerator only where ZeRO 3 shards them"
    ZERO_NEEDS_REPLICAS = "ZeRO needs more than one replica to shard over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the rules need to know besides the candidates.

    ``slots_per_domain`` are the accelerators that the fastest links join: those of a node, or of several.
    """

    workload: WorkloadSpec
    slots_per_node: int
    slots_per_domain: int

    @property
    def model(self) -> ModelShape | None:
        """What is trained, if it is known."""
        return self.workload.model

    @property
    def experts(self) -> ExpertShape | None:
        """The mixture of experts, if there is one."""
        return self.model.experts if self.model else None

    @property
    def pins(self) -> ParallelismWish:
        """Degrees of which no other value is tried."""
        return self.workload.parallelism

    @property
    def uses_shipped_trainer(self) -> bool:
        """Whether the gang runs the trainer that comes with the package."""
        return self.model is not None and not self.workload.launcher.command


Rule = Callable[[Question, LayoutTable], BoolArray]


def _dp_is_as_pinned(question: Question, table: LayoutTable) -> BoolArray:
    return np.asarray(table.dp_C == (question.pins.dp or table.dp_C))


def _is_data_parallel_only(table: LayoutTable) -> BoolArray:
    return np.asarray(table.tp_C * table.pp_C * table.cp_C * table.ep_C == 1)


def _shipped_trainer_can(question: Question, table: LayoutTable) -> BoolArray:
    return _is_data_parallel_only(table) | (not question.uses_shipped_trainer)


def _splits_without_model(question: Question, table: LayoutTable) -> BoolArray:
    return _is_data_parallel_only(table) | (question.model is not None)


def _tp_divides_heads(question: Question, table: LayoutTable) -> BoolArray:
    return _divides(table.tp_C, question.model.num_heads if question.model else 0)


def _tp_suits_kv_heads(question: Question, table: LayoutTable) -> BoolArray:
    """More tensor-parallel ranks than key and value heads keep copies of them (Megatron-LM, transformer config)."""
    num_kv_heads = question.model.num_kv_heads if question.model else 1
    return np.asarray(_divides(table.tp_C, num_kv_heads) | (table.tp_C % num_kv_heads == 0))


def _tp_divides_ffn(question: Question, table: LayoutTable) -> BoolArray:
    model = question.model
    if model is None:
        return _divides(table.tp_C, 0)
    experts = question.experts
    shared = experts.num_shared * (experts.shared_hidden_size or experts.expert_hidden_size) if experts else 0
    dense = model.ffn_hidden_size if num_dense_layers(model) else 0
    return _divides(table.tp_C, dense) & _divides(table.tp_C, shared)


def _tp_fits_domain(question: Question, table: LayoutTable) -> BoolArray:
    return np.asarray(table.tp_C <= question.slots_per_domain)


def _pp_has_layers(question: Question, table: LayoutTable) -> BoolArray:
    return np.asarray(table.pp_C <= (question.model.num_layers if question.model else 1))


def _pp_keeps_stages_full(question: Question, table: LayoutTable) -> BoolArray:
    model = question.model
    if model is None or question.pins.pp is not None:
        return np.ones(len(table), dtype=np.bool_)
    return keeps_stages_full(table.pp_C, num_layers=model.num_layers)


def _cp_divides_sequence(question: Question, table: LayoutTable) -> BoolArray:
    """Causal load balance gives each rank one early and one late part (Megatron-LM, context parallelism)."""
    passes_C = np.ones(len(table), dtype=np.bool_)
    for phase in question.workload.batch:
        passes_C &= (table.cp_C == 1) | _divides(2 * table.cp_C, phase.sequence_length_tokens)
    return passes_C


def _cp_keeps_tiles(question: Question, table: LayoutTable) -> BoolArray:
    longest_tokens = max((phase.sequence_length_tokens for phase in question.workload.batch), default=0)
    is_pinned = question.pins.cp is not None
    return np.asarray((table.cp_C == 1) | (2 * table.cp_C * TILE_TOKENS <= longest_tokens) | is_pinned)


def _tp_divides_sequence(question: Question, table: LayoutTable) -> BoolArray:
    passes_C = np.ones(len(table), dtype=np.bool_)
    for phase in question.workload.batch:
        passes_C &= _divides(table.tp_C * table.cp_C, phase.sequence_length_tokens)
    return passes_C


def _ep_has_experts(question: Question, table: LayoutTable) -> BoolArray:
    return np.asarray((table.ep_C == 1) | (question.experts is not None))


def _ep_divides_experts(question: Question, table: LayoutTable) -> BoolArray:
    return _divides(table.ep_C, question.experts.num_routed if question.experts else 0)


def _expert_tp_divides_ffn(question: Question, table: LayoutTable) -> BoolArray:
    return _divides(table.etp_C, question.experts.expert_hidden_size if question.experts else 0)


def _expert_tp_fits_domain(question: Question, table: LayoutTable) -> BoolArray:
    return np.asarray(table.etp_C <= question.slots_per_domain)


def _ep_divides_ranks(_question: Question, table: LayoutTable) -> BoolArray:
    """Experts are spread over all ranks of a stage, whatever these are to the other layers (Megatron-LM, folding)."""
    return np.asarray((table.dp_C * table.tp_C * table.cp_C) % (table.ep_C * table.etp_C) == 0)


def _batch_divides(question: Question, table: LayoutTable) -> BoolArray:
    passes_C = np.ones(len(table), dtype=np.bool_)
    for phase in question.workload.batch:
        passes_C &= _divides(table.dp_C * table.micro_batch_C, phase.num_sequences)
    return passes_C


def _schedule_has_pipeline(_question: Question, table: LayoutTable) -> BoolArray:
    return np.asarray((table.pp_C > 1) | (table.schedule_C == ONE_F_ONE_B))


def _chunks_interleave(_question: Question, table: LayoutTable) -> BoolArray:
    return np.asarray((table.vp_C > 1) == (table.schedule_C == INTERLEAVED))


def _chunks_have_layers(question: Question, table: LayoutTable) -> BoolArray:
    return np.asarray(table.pp_C * table.vp_C <= (question.model.num_layers if question.model else 1))


def _interleaving_comes_in_rounds(question: Question, table: LayoutTable) -> BoolArray:
    """Each chunk takes pp micro-batches in turn, and the last round is whole (Megatron-LM, pipeline schedules)."""
    passes_C = np.ones(len(table), dtype=np.bool_)
    for phase in question.workload.batch:
        num_micro_batches_C = phase.num_sequences // (table.dp_C * table.micro_batch_C)
        passes_C &= (table.schedule_C != INTERLEAVED) | (num_micro_batches_C % table.pp_C == 0)
    return passes_C


def _shipped_trainer_shards(question: Question, table: LayoutTable) -> BoolArray:
    is_plain_C = (table.shard_C == table.dp_C * table.cp_C) & (table.offload_C == OFFLOAD_ORDER.index(Offload.NONE))
    return np.asarray(is_plain_C | (not question.uses_shipped_trainer))


def _shard_has_zero(question: Question, table: LayoutTable) -> BoolArray:
    return np.asarray((table.zero_C > 0) | (question.pins.shard_size is None))


def _shard_divides(_question: Question, table: LayoutTable) -> BoolArray:
    """Copies of a shard lie in whole data-parallel replicas (Megatron-LM, distributed optimizer instances; HSDP)."""
    return np.asarray(((table.dp_C * table.cp_C) % table.shard_C == 0) & (table.shard_C % table.cp_C == 0))


def _experts_inside_shard(_question: Question, table: LayoutTable) -> BoolArray:
    is_whole_C = table.shard_C == table.dp_C * table.cp_C
    return np.asarray(is_whole_C | ((table.shard_C * table.tp_C) % (table.ep_C * table.etp_C) == 0))


def _offload_has_zero_3(_question: Question, table: LayoutTable) -> BoolArray:
    return np.asarray((table.zero_C == 3) | ~np.isin(table.offload_C, PARAMETERS_AWAY))


def _zero_has_replicas(question: Question, table: LayoutTable) -> BoolArray:
    """One replica shards over nothing; but parameters that live elsewhere are gathered as ZeRO 3 gathers them."""
    is_pinned = question.pins.zero_stage is not None
    is_away_C = np.isin(table.offload_C, PARAMETERS_AWAY)
    return np.asarray((table.zero_C == 0) | (table.dp_C * table.cp_C > 1) | is_away_C | is_pinned)


def keeps_stages_full(pp_C: IntArray, *, num_layers: int) -> BoolArray:
    """Say which pipelines hold nearly as many layers as the fullest stage would allow (61 layers on 16 stages of 4)."""
    room_C = -(-num_layers // pp_C) * pp_C
    return np.asarray(8 * (room_C - num_layers) <= room_C)


def _divides(divisor_C: IntArray, number: int) -> BoolArray:
    return np.asarray(number % divisor_C == 0)


DEGREE_RULES: Sequence[tuple[LayoutRule, Rule]] = (
    (LayoutRule.DP_IS_PINNED, _dp_is_as_pinned),
    (LayoutRule.SHIPPED_TRAINER, _shipped_trainer_can),
    (LayoutRule.NO_MODEL, _splits_without_model),
    (LayoutRule.TP_DIVIDES_HEADS, _tp_divides_heads),
    (LayoutRule.TP_SUITS_KV_HEADS, _tp_suits_kv_heads),
    (LayoutRule.TP_DIVIDES_FFN, _tp_divides_ffn),
    (LayoutRule.TP_INSIDE_DOMAIN, _tp_fits_domain),
    (LayoutRule.PP_HAS_LAYERS, _pp_has_layers),
    (LayoutRule.PP_KEEPS_STAGES_FULL, _pp_keeps_stages_full),
    (LayoutRule.CP_DIVIDES_SEQUENCE, _cp_divides_sequence),
    (LayoutRule.CP_KEEPS_TILES, _cp_keeps_tiles),
    (LayoutRule.TP_DIVIDES_SEQUENCE, _tp_divides_sequence),
    (LayoutRule.EP_NEEDS_EXPERTS, _ep_has_experts),
    (LayoutRule.EP_DIVIDES_EXPERTS, _ep_divides_experts),
    (LayoutRule.EXPERT_TP_DIVIDES_FFN, _expert_tp_divides_ffn),
    (LayoutRule.EXPERT_TP_INSIDE_DOMAIN, _expert_tp_fits_domain),
    (LayoutRule.EP_DIVIDES_RANKS, _ep_divides_ranks),
)
"""Asked of dp, tp, pp, cp, ep and expert-tp."""

BATCH_RULES: Sequence[tuple[LayoutRule, Rule]] = ((LayoutRule.BATCH_DIVIDES, _batch_divides),)
"""Asked of the degrees with a micro-batch."""

SCHEDULE_RULES: Sequence[tuple[LayoutRule, Rule]] = (
    (LayoutRule.SCHEDULE_NEEDS_PIPELINE, _schedule_has_pipeline),
    (LayoutRule.CHUNKS_INTERLEAVE, _chunks_interleave),
    (LayoutRule.CHUNKS_HAVE_LAYERS, _chunks_have_layers),
    (LayoutRule.INTERLEAVING_COMES_IN_ROUNDS, _interleaving_comes_in_rounds),
)
"""Asked of these with a schedule and its chunks."""

SHARDING_RULES: Sequence[tuple[LayoutRule, Rule]] = (
    (LayoutRule.SHIPPED_TRAINER_SHARDS, _shipped_trainer_shards),
    (LayoutRule.SHARD_NEEDS_ZERO, _shard_has_zero),
    (LayoutRule.SHARD_DIVIDES, _shard_divides),
    (LayoutRule.EXPERTS_INSIDE_SHARD, _experts_inside_shard),
    (LayoutRule.OFFLOAD_NEEDS_ZERO_3, _offload_has_zero_3),
    (LayoutRule.ZERO_NEEDS_REPLICAS, _zero_has_replicas),
)
"""Asked of the degrees with a ZeRO stage, a shard size and an offload."""
