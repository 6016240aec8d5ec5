"""Seconds of one micro-batch on the stage that is slowest, by what they go into. Pure.

Axes: C = candidate layout, K = layer kind. Everything here depends on few degrees, and is reckoned once for each of
their combinations: layers, then stages made of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from airflow_llmsched.domain.layout import Recompute, RecomputeModule
from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.factored import factor
from airflow_llmsched.planner.layout_table import (
    MODULE_BIT,
    RECOMPUTE_ORDER,
    BoolArray,
    FloatArray,
    IntArray,
    LayoutTable,
)
from airflow_llmsched.planner.perf.collectives import all_gather_s, all_reduce_s, all_to_all_s
from airflow_llmsched.planner.perf.end_work import embedding_operations, head_operations
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.layer_work import LayerWork
from airflow_llmsched.planner.perf.layers import LayerKind, distinct_kinds, layer_kinds
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.memory_states import layers_with_ahead
from airflow_llmsched.planner.perf.ops import Device, Operation, Part, Pass
from airflow_llmsched.planner.perf.parameters import num_mlp_matrices
from airflow_llmsched.planner.perf.stages import telling_stages

SELECTIVE, FULL, MODULES = (
    RECOMPUTE_ORDER.index(policy) for policy in (Recompute.SELECTIVE, Recompute.FULL, Recompute.MODULES)
)

RECOMPUTED_PARTS: Mapping[RecomputeModule, tuple[Part, ...]] = {
    RecomputeModule.CORE_ATTENTION: (Part.CORE,),
    RecomputeModule.NORMS: (Part.NORMS,),
    RecomputeModule.MLP_ACTIVATION: (Part.ACTIVATION,),
    RecomputeModule.MLP: (Part.MLP, Part.ACTIVATION, Part.ROUTING),
    RecomputeModule.QKV: (Part.QKV,),
}

LAYER_COLUMNS = (
    "tp_C", "cp_C", "ep_C", "etp_C", "micro_batch_C", "recompute_C", "modules_C", "sequence_parallel_C",
)  # fmt: skip
"""All that a layer's time depends on, besides the machine."""

STAGE_COLUMNS = (*LAYER_COLUMNS, "pp_C", "vp_C")


class Phase(StrEnum):
    """When something is done: forward, again before the backward pass, or in it."""

    FORWARD = "forward"
    AGAIN = "again"
    BACKWARD = "backward"


class Cost(NamedTuple):
    """What seconds (or launches) go into, and when."""

    what: str
    phase: Phase


COMPUTED = ("matmul", "attention", "elementwise")
SENT = ("tensor_parallel", "context_parallel", "expert_parallel")
LAUNCHES, WEIGHT_GRADIENT = "launches", "weight_gradient"

Costs = dict[Cost, FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One micro-batch on the slowest stage. ``terms_s`` add up to ``forward_s_C`` and ``backward_s_C`` together.

    ``backward_s_C`` has what is computed again. ``weight_gradient_s_C`` is the part of it that nothing waits for.
    ``whole_model_s_C`` is one micro-batch through all stages, one after the other.
    """

    terms_s: Mapping[str, FloatArray]
    forward_s_C: FloatArray
    backward_s_C: FloatArray
    weight_gradient_s_C: FloatArray
    whole_model_s_C: FloatArray

    @property
    def total_s_C(self) -> FloatArray:
        """Both passes."""
        return self.forward_s_C + self.backward_s_C


def slowest_micro_batch(job: TransformerJob, table: LayoutTable, machine: Machine) -> MicroBatch:
    """Price one micro-batch. Raises ``KeyError`` when the accelerator lacks the job's number format."""
    by_stage = factor(table, STAGE_COLUMNS, beside=machine.places_C)
    ones_U = np.ones(len(by_stage.first_U), dtype=np.int64)
    stages = replace(by_stage.table, num_micro_batches_C=ones_U)
    here = machine.take(by_stage.first_U)
    by_layer = factor(stages, LAYER_COLUMNS, beside=here.places_C)
    kinds = distinct_kinds(job.model)
    work = LayerWork(job=job, table=by_layer.table, device=Device.of(job, machine.shape.accelerator, machine.reached))
    there = here.take(by_layer.first_U)

    def spread(costs: Costs) -> Costs:
        return {cost: by_layer.spread(np.broadcast_to(value, by_layer.first_U.shape)) for cost, value in costs.items()}

    layers = [spread(_layer_costs(work, kind, there)) for kind in kinds]
    first = spread(_end_costs(work, embedding_operations(work), there))
    last = spread(_end_costs(work, head_operations(work), there))
    host_s = 0.0 if job.software.recorded_launches else machine.reached.host_kernel_s
    worst: MicroBatch | None = None
    everything = list(layer_kinds(job.model))
    everything += everything[-1:] * job.model.num_predict_ahead_layers
    everywhere = [*(np.array(float(everything.count(kind))) for kind in kinds), ones_U, ones_U]
    for stage in telling_stages(job.model, stages):
        counts = [*layers_with_ahead(job.model, stage), stage.is_first_C, stage.is_last_C]
        found = _terms(_sum([*layers, first, last], counts), host_s=host_s)
        elsewhere = [number - own for number, own in zip(everywhere, counts, strict=True)]
        others = _terms(_sum([*layers, first, last], elsewhere), host_s=host_s)
        found = replace(found, whole_model_s_C=found.total_s_C + others.total_s_C)
        worst = found if worst is None else _slower(worst, found)
    assert worst is not None
    if job.software.balances_stages:
        alone = [0.0] * (len(kinds) - 1) + [float(job.model.num_predict_ahead_layers), 0.0, 1.0]
        last_end = _terms(_sum([*layers, first, last], [np.array(number) for number in alone]), host_s=host_s)
        worst = _balanced(worst, stages.pp_C, last_end.total_s_C)
    return MicroBatch(
        terms_s={name: by_stage.spread(value) for name, value in worst.terms_s.items()},
        forward_s_C=by_stage.spread(worst.forward_s_C),
        backward_s_C=by_stage.spread(worst.backward_s_C),
        weight_gradient_s_C=by_stage.spread(worst.weight_gradient_s_C),
        whole_model_s_C=by_stage.spread(worst.whole_model_s_C),
    )


def _slower(one: MicroBatch, other: MicroBatch) -> MicroBatch:
    is_other_C = other.total_s_C > one.total_s_C
    return MicroBatch(
        terms_s={name: np.where(is_other_C, other.terms_s[name], value) for name, value in one.terms_s.items()},
        forward_s_C=np.where(is_other_C, other.forward_s_C, one.forward_s_C),
        backward_s_C=np.where(is_other_C, other.backward_s_C, one.backward_s_C),
        weight_gradient_s_C=np.where(is_other_C, other.weight_gradient_s_C, one.weight_gradient_s_C),
        whole_model_s_C=np.where(is_other_C, other.whole_model_s_C, one.whole_model_s_C),
    )


def _balanced(worst: MicroBatch, pp_C: IntArray, last_end_s_C: FloatArray) -> MicroBatch:
    """Deal layers out so that no stage takes longer than the mean, or than the end of the model, which is one piece."""
    even_s_C = np.maximum(worst.whole_model_s_C / pp_C, np.where(pp_C > 1, last_end_s_C, 0.0))
    share_C = np.minimum(1.0, even_s_C / worst.total_s_C)
    return MicroBatch(
        terms_s={name: value * share_C for name, value in worst.terms_s.items()},
        forward_s_C=worst.forward_s_C * share_C,
        backward_s_C=worst.backward_s_C * share_C,
        weight_gradient_s_C=worst.weight_gradient_s_C * share_C,
        whole_model_s_C=worst.whole_model_s_C,
    )


def _sum(costs: Sequence[Costs], counts: Sequence[IntArray | FloatArray]) -> Costs:
    # in order, not a set: the order of sums decides their last digit, which is to be the same in every process
    names = dict.fromkeys(name for each in costs for name in each)
    return {
        name: np.asarray(sum(count * each[name] for each, count in zip(costs, counts, strict=True) if name in each))
        for name in names
    }


def _terms(costs: Costs, *, host_s: float) -> MicroBatch:
    """Turn costs into terms. A device that runs dry waits for the host: the longer of the two bounds each pass."""
    nothing_C = np.zeros_like(costs[Cost(LAUNCHES, Phase.FORWARD)])

    def total(whats: Iterable[str], *phases: Phase) -> FloatArray:
        chosen = (costs[cost] for cost in costs if cost.what in whats and cost.phase in phases)
        return np.asarray(sum(chosen, start=nothing_C))

    terms = {what: total([what], Phase.FORWARD, Phase.BACKWARD) for what in COMPUTED}
    terms["recompute"] = total(COMPUTED, Phase.AGAIN)
    terms |= {what: total([what], *Phase) for what in SENT}
    passes = []
    waits_s = nothing_C
    for phases in ((Phase.FORWARD,), (Phase.AGAIN, Phase.BACKWARD)):
        busy_s = total((*COMPUTED, *SENT), *phases)
        bound_s = np.maximum(busy_s, host_s * total([LAUNCHES], *phases))
        waits_s = waits_s + bound_s - busy_s
        passes.append(bound_s)
    return MicroBatch(
        terms_s=terms | {"launch": waits_s},
        forward_s_C=passes[0],
        backward_s_C=passes[1],
        weight_gradient_s_C=total([WEIGHT_GRADIENT], Phase.BACKWARD),
        whole_model_s_C=passes[0] + passes[1],
    )


def _layer_costs(work: LayerWork, kind: LayerKind, machine: Machine) -> Costs:
    operations = list(work.operations(kind))
    costs = _computed(operations, work)
    software, beside = work.job.software, {phase: _computed_s(costs, phase) for phase in Phase}
    for phase, seconds in _tensor_parallel(work, kind, machine).items():
        matmul_s = costs[Cost("matmul", phase)] if software.overlaps_tensor_parallel else 0.0
        costs[Cost("tensor_parallel", phase)] = exposed_s(seconds, matmul_s, machine, num_pieces=work.table.tp_C)
    for phase, seconds in _context_parallel(work, machine).items():
        costs[Cost("context_parallel", phase)] = exposed_s(seconds, costs[Cost("attention", phase)], machine)
    if kind.is_moe:
        for phase, seconds in _expert_parallel(work, machine).items():
            hidden_by_s = beside[phase] if software.overlaps_expert_parallel else 0.0
            costs[Cost("expert_parallel", phase)] = exposed_s(seconds, hidden_by_s, machine)
    return costs


def _computed_s(costs: Costs, phase: Phase) -> FloatArray:
    return np.asarray(sum(costs[Cost(what, phase)] for what in COMPUTED))


def exposed_s(
    traffic_s: FloatArray,
    beside_s: FloatArray | float,
    machine: Machine,
    *,
    num_pieces: IntArray | FloatArray | float = math.inf,
) -> FloatArray:
    """Return what remains of traffic beside computation, and what hiding the rest costs that computation.

    Of traffic in several pieces one has nothing beside it.
    """
    rates = machine.reached
    if not machine.shape.overlaps_communication:
        return traffic_s
    reach = 1 - 1 / np.asarray(num_pieces, dtype=np.float64)
    hidden_s = np.minimum(traffic_s * reach, rates.hidden_ratio * beside_s)
    return np.asarray(traffic_s - hidden_s * (1 - rates.contention_ratio))


def _computed(operations: Sequence[Operation], work: LayerWork) -> Costs:
    costs: Costs = {}
    frozen = work.job.lora_rank is not None

    def add(phase: Phase, one: Pass, factor_C: FloatArray | float = 1.0) -> None:
        for what, value in (*((each, getattr(one, f"{each}_s")) for each in COMPUTED), (LAUNCHES, one.num_kernels)):
            key = Cost(what, phase)
            costs[key] = np.asarray(costs.get(key, 0.0) + value * factor_C)

    for operation in operations:
        backward = operation.backward
        if frozen:
            backward = backward + operation.weight_gradient.times(-1.0)
        add(Phase.FORWARD, operation.forward)
        add(Phase.BACKWARD, backward)
        add(Phase.AGAIN, operation.forward, recomputed_share_C(work.job, work.table, operation.part))
        key = Cost(WEIGHT_GRADIENT, Phase.BACKWARD)
        costs[key] = np.asarray(costs.get(key, 0.0) + (0.0 if frozen else operation.weight_gradient.total_s))
    return costs


def recomputed_share_C(job: TransformerJob, table: LayoutTable, part: Part) -> FloatArray:
    """Return what share of a part's forward work is done a second time before the backward pass."""
    recompute_C, modules_C = table.recompute_C, table.modules_C
    bits = sum(MODULE_BIT[module] for module, parts in RECOMPUTED_PARTS.items() if part in parts)
    stored = part is Part.CORE and not job.software.fused_attention
    again_C = (
        (recompute_C == FULL)
        | ((recompute_C == SELECTIVE) & stored)
        | ((recompute_C == MODULES) & ((modules_C & bits) > 0))
    )
    second_C = (recompute_C == MODULES) & ((modules_C & MODULE_BIT[RecomputeModule.EVERY_SECOND_PRODUCT]) > 0)
    share_C = np.maximum(again_C, second_C * _second_product_share(job.model, part))
    return np.asarray(share_C, dtype=np.float64)


def _second_product_share(model: ModelShape, part: Part) -> float:
    """Return what share of a part's work is done again when every second product is.

    That is keys, attention's output and the second branch of a gated MLP, with all that lies between products.
    """
    if part is Part.QKV:
        return model.key_size / (model.query_size + model.key_size + model.value_size)
    if part is Part.MLP:
        return (num_mlp_matrices(model) - 2) / num_mlp_matrices(model)
    return float(part in {Part.NORMS, Part.ACTIVATION, Part.RESIDUAL, Part.OUT})


def _end_costs(work: LayerWork, operations: Iterable[Operation], machine: Machine) -> Costs:
    """Ends are never computed again. With tensor parallelism the embedding is summed, and the head's input gathered."""
    kept = replace(work, table=replace(work.table, recompute_C=np.zeros_like(work.table.tp_C)))
    costs = _computed(list(operations), kept)
    one_s = _tensor_collective_s(work, machine)
    return costs | {
        Cost("tensor_parallel", Phase.FORWARD): one_s / 2,
        Cost("tensor_parallel", Phase.BACKWARD): one_s / 2,
    }


def _tensor_collective_s(work: LayerWork, machine: Machine) -> FloatArray:
    """One all-reduce of the hidden state, or with sequence parallelism an all-gather and a reduce-scatter of it."""
    table = work.table
    span = machine.span(stride_C=np.ones_like(table.tp_C), size_C=table.tp_C)
    num_bytes = work.job.compute_bytes * work.job.model.hidden_size * work.tokens_C
    apart_s = 2 * all_gather_s(num_bytes=num_bytes, span=span)
    return np.where(table.sequence_parallel_C > 0, apart_s, all_reduce_s(num_bytes=num_bytes, span=span))


def _tensor_parallel(work: LayerWork, kind: LayerKind, machine: Machine) -> dict[Phase, FloatArray]:
    """One for attention and one for a dense MLP or shared experts, in each pass (Shoeybi et al. 2019).

    Routed experts need none: their tokens stay split along the sequence (Megatron-Core). A parallel block sums
    attention and MLP before its one (Wang and Komatsuzaki 2021, GPT-J).
    """
    experts = work.job.model.experts if kind.is_moe else None
    num = 1 if work.job.model.parallel_block or (experts is not None and not experts.num_shared) else 2
    one_s = _tensor_collective_s(work, machine)
    mlp_num_C = np.where(_is_mlp_again(work.table), num - 1, 0)
    return {
        Phase.FORWARD: num * one_s,
        Phase.AGAIN: one_s * np.where(work.table.recompute_C == FULL, num, mlp_num_C),
        Phase.BACKWARD: num * one_s,
    }


def _is_mlp_again(table: LayoutTable) -> BoolArray:
    return np.asarray((table.recompute_C == MODULES) & ((table.modules_C & MODULE_BIT[RecomputeModule.MLP]) > 0))


def _context_parallel(work: LayerWork, machine: Machine) -> dict[Phase, FloatArray]:
    """Keys and values go round a ring forward, with their gradients backward (Liu et al. 2023)."""
    job, model, table = work.job, work.job.model, work.table
    span = machine.span(stride_C=table.tp_C, size_C=table.cp_C)
    kv_C = (model.key_size + model.value_size) / np.minimum(table.tp_C, model.num_kv_heads)
    num_bytes = job.compute_bytes * kv_C * table.micro_batch_C * job.sequence_length_tokens
    one_s = all_gather_s(num_bytes=num_bytes, span=span)
    return {
        Phase.FORWARD: one_s,
        Phase.AGAIN: np.where(table.recompute_C == FULL, one_s, 0.0),
        Phase.BACKWARD: 2 * one_s,
    }


def _expert_parallel(work: LayerWork, machine: Machine) -> dict[Phase, FloatArray]:
    """Tokens go to experts and back, in both passes (Lepikhin et al. 2020); ranks that split an expert share them."""
    table, model, experts = work.table, work.job.model, work.job.model.experts
    assert experts is not None
    copies_C = work.tokens_C / table.tp_C * experts.num_active * work.expert_load_C
    num_bytes = work.job.compute_bytes * model.hidden_size * copies_C
    num_copies = experts.num_active if work.job.software.deduplicates_dispatch else 1
    apart = machine.span(stride_C=table.etp_C, size_C=table.ep_C)
    together = machine.span(stride_C=np.ones_like(table.etp_C), size_C=table.etp_C)
    one_s = all_to_all_s(num_bytes=num_bytes, span=apart, num_copies=num_copies) + all_gather_s(
        num_bytes=num_bytes * table.etp_C, span=together
    )
    return {
        Phase.FORWARD: 2 * one_s,
        Phase.AGAIN: np.where((table.recompute_C == FULL) | _is_mlp_again(table), 2 * one_s, 0.0),
        Phase.BACKWARD: 2 * one_s,
    }
