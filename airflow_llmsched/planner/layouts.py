"""Every legal way to split a workload over a number of ranks, and why the others are not legal. Pure.

Axis: C = candidate layout. Candidates are the full product of the degrees that multiply to the world size with expert
parallelism, ZeRO stage, micro-batch and recomputation; each rule turns down some of what the rules before it left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from airflow_llmsched.domain.layout import Recompute
from airflow_llmsched.domain.workload import ExpertShape, ModelShape, ParallelismWish, WorkloadSpec
from airflow_llmsched.planner.layout_table import RECOMPUTE_ORDER, BoolArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.job import heaviest_phase
from airflow_llmsched.planner.perf.layers import num_dense_layers

NUM_POLICIES = RECOMPUTE_ORDER.index(Recompute.FULL) + 1
"""Recompute policies that are tried: none, selective and full."""


class LayoutRule(StrEnum):
    """Why a layout is not legal. The value is the reason as people read it."""

    DP_IS_PINNED = "dp is pinned to another value"
    SHIPPED_TRAINER = "the shipped trainer splits by data parallelism only"
    NO_MODEL = "a job without a model is split by data parallelism only"
    TP_DIVIDES_HEADS = "tp does not divide the attention heads"
    TP_DIVIDES_KV_HEADS = "tp does not divide the key and value heads"
    TP_DIVIDES_FFN = "tp does not divide the MLP width"
    TP_INSIDE_NODE = "tp does not fit into a node"
    PP_DIVIDES_LAYERS = "pp does not divide the layers"
    CP_DIVIDES_SEQUENCE = "the sequence does not divide into 2 * cp parts"
    TP_DIVIDES_SEQUENCE = "tp does not divide the sequence of a context-parallel rank"
    EP_NEEDS_EXPERTS = "ep needs a mixture of experts"
    EP_DIVIDES_EXPERTS = "ep does not divide the experts"
    EP_DIVIDES_DP = "ep does not divide dp"
    BATCH_DIVIDES = "the global batch does not divide by dp * micro-batch"
    ZERO_NEEDS_REPLICAS = "ZeRO needs more than one replica to shard over"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutSpace:
    """The legal layouts, and how many candidates fell to each rule."""

    table: LayoutTable
    num_candidates: int
    rejections: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    workload: WorkloadSpec
    world_size: int
    slots_per_node: int

    @property
    def model(self) -> ModelShape | None:
        return self.workload.model

    @property
    def pins(self) -> ParallelismWish:
        return self.workload.parallelism

    @property
    def num_sequences(self) -> int:
        """Global batch; a job without batch phases has one sequence for each rank."""
        return heaviest_phase(self.workload).num_sequences if self.workload.batch else self.world_size


def legal_layouts(workload: WorkloadSpec, *, world_size: int, slots_per_node: int) -> LayoutSpace:
    """Return all legal layouts of ``workload`` on ``world_size`` ranks, ``slots_per_node`` of them at most on a node.

    The global batch is exactly the one asked for, in every phase of a schedule. Of a pinned degree no other value is
    tried.

    Raises:
        ValueError: ``world_size`` or ``slots_per_node`` is below 1.
    """
    if world_size < 1 or slots_per_node < 1:
        raise ValueError(f"world_size={world_size} and slots_per_node={slots_per_node} must be at least 1")
    question = _Question(workload=workload, world_size=world_size, slots_per_node=slots_per_node)
    table = _candidates(question)
    num_candidates, rejections = len(table), {}
    for rule, passes in _RULES:
        passes_C = passes(question, table)
        num_turned_down = len(table) - int(np.count_nonzero(passes_C))
        if num_turned_down:
            rejections[rule.value] = num_turned_down
            table = table.take(passes_C)
    return LayoutSpace(table=table, num_candidates=num_candidates, rejections=rejections)


def divisors(number: int) -> IntArray:
    """Return all divisors of a positive number, ascending."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return np.array(sorted({*small, *(number // each for each in small)}), dtype=np.int64)


def _candidates(question: _Question) -> LayoutTable:
    pins, world = question.pins, question.world_size
    degrees = divisors(world)
    experts = question.model.experts if question.model else None
    # Nothing says that a job without a model accumulates gradients: each rank takes its share of the batch at once.
    share = max(question.num_sequences // world, 1)
    micro_batches = divisors(question.num_sequences) if question.model else np.array([share], dtype=np.int64)
    axes = (
        _choices(pins.tp, degrees),
        _choices(pins.pp, degrees),
        _choices(pins.cp, degrees),
        _choices(pins.ep, divisors(experts.num_routed) if experts else [1]),
        _choices(pins.zero_stage, range(4) if question.model else [0]),
        _choices(pins.micro_batch_size, micro_batches),
        _choices(
            None if pins.recompute is None else RECOMPUTE_ORDER.index(pins.recompute),
            range(NUM_POLICIES) if question.model else [0],
        ),
    )
    tp_T, pp_T, cp_T = (axis.ravel() for axis in np.meshgrid(*axes[:3], indexing="ij"))
    fits_T = world % (tp_T * pp_T * cp_T) == 0
    triples = np.stack([tp_T[fits_T], pp_T[fits_T], cp_T[fits_T]], axis=1)
    index_C, ep_C, zero_C, micro_C, recompute_C = (
        axis.ravel() for axis in np.meshgrid(np.arange(len(triples)), *axes[3:], indexing="ij")
    )
    tp_C, pp_C, cp_C = triples[index_C].T
    dp_C = world // (tp_C * pp_C * cp_C)
    nothing_C = np.zeros_like(dp_C)
    return LayoutTable(
        dp_C=dp_C,
        tp_C=tp_C,
        pp_C=pp_C,
        cp_C=cp_C,
        ep_C=ep_C,
        zero_C=zero_C,
        micro_batch_C=micro_C,
        num_micro_batches_C=question.num_sequences // np.maximum(dp_C * micro_C, 1),
        recompute_C=recompute_C,
        vp_C=np.ones_like(dp_C),
        etp_C=tp_C,
        schedule_C=nothing_C,
        offload_C=nothing_C,
        shard_C=dp_C * cp_C,
        sequence_parallel_C=np.ones_like(dp_C),
        modules_C=nothing_C,
    )


def _choices(pinned: int | None, options: Iterable[int] | IntArray) -> IntArray:
    return np.array(list(options) if pinned is None else [pinned], dtype=np.int64)


def _dp_is_as_pinned(question: _Question, table: LayoutTable) -> BoolArray:
    return np.asarray(table.dp_C == (question.pins.dp or table.dp_C))


def _is_data_parallel_only(table: LayoutTable) -> BoolArray:
    return np.asarray(table.tp_C * table.pp_C * table.cp_C * table.ep_C == 1)


def _shipped_trainer_can(question: _Question, table: LayoutTable) -> BoolArray:
    uses_shipped = question.model is not None and not question.workload.launcher.command
    return _is_data_parallel_only(table) | (not uses_shipped)


def _splits_without_model(question: _Question, table: LayoutTable) -> BoolArray:
    return _is_data_parallel_only(table) | (question.model is not None)


def _tp_divides_heads(question: _Question, table: LayoutTable) -> BoolArray:
    return _divides(table.tp_C, question.model.num_heads if question.model else 0)


def _tp_divides_kv_heads(question: _Question, table: LayoutTable) -> BoolArray:
    return _divides(table.tp_C, question.model.num_kv_heads if question.model else 0)


def _tp_divides_ffn(question: _Question, table: LayoutTable) -> BoolArray:
    model = question.model
    if model is None:
        return _divides(table.tp_C, 0)
    passes_C = _divides(table.tp_C, model.ffn_hidden_size if num_dense_layers(model) else 0)
    return passes_C & _divides(table.tp_C, model.experts.expert_hidden_size if model.experts else 0)


def _tp_fits_node(question: _Question, table: LayoutTable) -> BoolArray:
    return np.asarray(table.tp_C <= question.slots_per_node)


def _pp_divides_layers(question: _Question, table: LayoutTable) -> BoolArray:
    return _divides(table.pp_C, question.model.num_layers if question.model else 0)


def _cp_divides_sequence(question: _Question, table: LayoutTable) -> BoolArray:
    """Causal load balance gives each rank one early and one late part (Megatron-LM, context parallelism)."""
    passes_C = np.ones(len(table), dtype=np.bool_)
    for phase in question.workload.batch:
        passes_C &= (table.cp_C == 1) | _divides(2 * table.cp_C, phase.sequence_length_tokens)
    return passes_C


def _tp_divides_sequence(question: _Question, table: LayoutTable) -> BoolArray:
    passes_C = np.ones(len(table), dtype=np.bool_)
    for phase in question.workload.batch:
        passes_C &= _divides(table.tp_C * table.cp_C, phase.sequence_length_tokens)
    return passes_C


def _ep_has_experts(question: _Question, table: LayoutTable) -> BoolArray:
    return np.asarray((table.ep_C == 1) | (_experts(question) is not None))


def _ep_divides_experts(question: _Question, table: LayoutTable) -> BoolArray:
    experts = _experts(question)
    return _divides(table.ep_C, experts.num_routed if experts else 0)


def _ep_divides_dp(_question: _Question, table: LayoutTable) -> BoolArray:
    return np.asarray(table.dp_C % table.ep_C == 0)


def _batch_divides(question: _Question, table: LayoutTable) -> BoolArray:
    passes_C = np.ones(len(table), dtype=np.bool_)
    for phase in question.workload.batch:
        passes_C &= _divides(table.dp_C * table.micro_batch_C, phase.num_sequences)
    return passes_C


def _zero_has_replicas(question: _Question, table: LayoutTable) -> BoolArray:
    is_pinned = question.pins.zero_stage is not None
    return np.asarray((table.zero_C == 0) | (table.dp_C * table.cp_C > 1) | is_pinned)


def _divides(divisor_C: IntArray, number: int) -> BoolArray:
    return np.asarray(number % divisor_C == 0)


def _experts(question: _Question) -> ExpertShape | None:
    return question.model.experts if question.model else None


_RULES: tuple[tuple[LayoutRule, Callable[[_Question, LayoutTable], BoolArray]], ...] = (
    (LayoutRule.DP_IS_PINNED, _dp_is_as_pinned),
    (LayoutRule.SHIPPED_TRAINER, _shipped_trainer_can),
    (LayoutRule.NO_MODEL, _splits_without_model),
    (LayoutRule.TP_DIVIDES_HEADS, _tp_divides_heads),
    (LayoutRule.TP_DIVIDES_KV_HEADS, _tp_divides_kv_heads),
    (LayoutRule.TP_DIVIDES_FFN, _tp_divides_ffn),
    (LayoutRule.TP_INSIDE_NODE, _tp_fits_node),
    (LayoutRule.PP_DIVIDES_LAYERS, _pp_divides_layers),
    (LayoutRule.CP_DIVIDES_SEQUENCE, _cp_divides_sequence),
    (LayoutRule.TP_DIVIDES_SEQUENCE, _tp_divides_sequence),
    (LayoutRule.EP_NEEDS_EXPERTS, _ep_has_experts),
    (LayoutRule.EP_DIVIDES_EXPERTS, _ep_divides_experts),
    (LayoutRule.EP_DIVIDES_DP, _ep_divides_dp),
    (LayoutRule.BATCH_DIVIDES, _batch_divides),
    (LayoutRule.ZERO_NEEDS_REPLICAS, _zero_has_replicas),
)
