"""Which parts of which layers to compute again, so that memory suffices and least time is lost. Pure, and exact.

Axes: C = candidate layout, K = layer kind, M = set of modules, P = way to recompute the layers of a stage. What is done
again is priced as computation alone; traffic that comes with it is left to the step's own terms.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.layout import ParallelLayout, Recompute, RecomputeModule
from airflow_llmsched.planner.layout_table import MODULE_BIT, FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.layer_work import LayerWork
from airflow_llmsched.planner.perf.layers import LayerKind, distinct_kinds
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.memory import passing_ratio, stage_terms
from airflow_llmsched.planner.perf.memory_activations import (
    ACTIVATION_TERMS,
    MODULES,
    embedding_mask_bytes,
    gradient_bytes,
    kept_bytes,
    loss_bytes,
    recomputed_bytes,
)
from airflow_llmsched.planner.perf.micro_batch import RECOMPUTED_PARTS
from airflow_llmsched.planner.perf.ops import Device, Part
from airflow_llmsched.planner.perf.stages import StageLayers, every_stage, num_in_flight_C

CHOICES: Sequence[int] = tuple(
    sum(MODULE_BIT[module] for module in chosen)
    for number in range(len(RECOMPUTED_PARTS) + 1)
    for chosen in itertools.combinations(RECOMPUTED_PARTS, number)
    if not {RecomputeModule.MLP, RecomputeModule.MLP_ACTIVATION} <= set(chosen)
)
"""Sets of modules as bits, smaller ones first. A whole MLP has its activation in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedLayers:
    """So many layers of one kind on one stage compute these modules again."""

    stage: int
    kind: LayerKind
    modules: tuple[RecomputeModule, ...]
    num_layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOption:
    """One way to treat a layer: what it keeps, what comes on top while it goes backward, and what it costs."""

    modules: int
    kept_bytes: float
    peak_bytes: float
    again_s: float


def best_layers(
    job: TransformerJob, layout: ParallelLayout, machine: Machine, *, capacity_bytes: float, reserved_bytes: int = 0
) -> tuple[RecomputedLayers, ...] | None:
    """Choose layer by layer, for each stage by itself: None when some stage cannot fit. ``machine`` has one candidate.

    A stage never costs more than with the best modules for all layers alike.
    """
    table = LayoutTable.of([replace(layout, recompute_modules=())])
    asked = replace(table, recompute_C=np.array([MODULES]))
    kinds = distinct_kinds(job.model)
    options_K = [_options(job, asked, machine, kind) for kind in kinds]
    found: list[RecomputedLayers] = []
    for stage in every_stage(job.model, pp=layout.pp, vp=layout.vp):
        budget, loss = _budget_bytes(job, asked, stage, capacity_bytes=capacity_bytes - reserved_bytes)
        num_K = [int(num) for num in stage.num_KC[:, 0]]
        scale = float(num_in_flight_C(asked, stage.stage_C)[0])
        chosen_K = cheapest(options_K, num_K, kept_scale=scale, budget_bytes=budget, least_peak_bytes=loss)
        if chosen_K is None:
            return None
        for kind, options, numbers in zip(kinds, options_K, chosen_K, strict=True):
            found += [
                RecomputedLayers(
                    stage=int(stage.stage_C[0]), kind=kind, modules=modules_of(option.modules), num_layers=number
                )
                for option, number in zip(options, numbers, strict=True)
                if number
            ]
    return tuple(found)


def again_s_by_stage(
    job: TransformerJob, layout: ParallelLayout, machine: Machine, layers: Sequence[RecomputedLayers] | None = None
) -> list[float]:
    """Return the seconds that each stage computes again for one micro-batch.

    By the layout's own policy (``FULL`` or ``MODULES``, every second product apart), or as ``layers`` say.
    """
    table = LayoutTable.of([layout])
    kinds = distinct_kinds(job.model)
    work = LayerWork(job=job, table=table, device=_device(job, machine))
    by_part_K = {kind: _seconds_by_part(work, kind) for kind in kinds}
    if layers is None:
        everything = layout.recompute is Recompute.FULL
        own = sum(MODULE_BIT[module] for module in layout.recompute_modules)
        layers = [
            RecomputedLayers(stage=number, kind=kind, modules=modules_of(own), num_layers=int(stage.num_KC[index, 0]))
            for number, stage in enumerate(every_stage(job.model, pp=layout.pp, vp=layout.vp))
            for index, kind in enumerate(kinds)
        ]
    else:
        everything = False
    seconds = [0.0] * layout.pp
    for each in layers:
        by_part = by_part_K[each.kind]
        bits = sum(MODULE_BIT[module] for module in each.modules)
        again_s = sum(by_part.values(), start=np.zeros(1)) if everything else _again_s(by_part, bits)
        seconds[each.stage] += each.num_layers * float(np.ravel(again_s)[0])
    return seconds


def cheapest(
    options_K: Sequence[Sequence[LayerOption]], num_K: Sequence[int], *, kept_scale: float, budget_bytes: float,
    least_peak_bytes: float = 0.0,
) -> Sequence[Sequence[int]] | None:  # fmt: skip
    """Return how many layers of each kind take each option at least cost within a budget, or None.

    The bytes are ``kept_scale`` times what all layers keep, and the largest peak of any option in use (or
    ``least_peak_bytes``). For each such largest peak, it is a knapsack over the options that stay below it.
    """
    peaks = {least_peak_bytes, *(option.peak_bytes for options in options_K for option in options)}
    best: Sequence[Sequence[int]] | None = None
    best_s = np.inf
    for peak in sorted(peak for peak in peaks if peak >= least_peak_bytes):
        allowed_K = [[option.peak_bytes <= peak for option in options] for options in options_K]
        room = (budget_bytes - peak) / kept_scale
        solved = _knapsack(options_K, allowed_K, num_K, room_bytes=room)
        if solved is not None and solved[0] < best_s:
            best_s, best = solved
    return best


def modules_of(bits: int) -> tuple[RecomputeModule, ...]:
    """Name the modules of a set of bits."""
    return tuple(module for module, bit in MODULE_BIT.items() if bits & bit)


def _knapsack(
    options_K: Sequence[Sequence[LayerOption]], allowed_K: Sequence[Sequence[bool]], num_K: Sequence[int], *,
    room_bytes: float,
) -> tuple[float, Sequence[Sequence[int]]] | None:  # fmt: skip
    """Add layers one by one, and keep the ways that no other beats in both bytes and seconds."""
    widths = [len(options) for options in options_K]
    bytes_P, seconds_P = np.zeros(1), np.zeros(1)
    numbers_P = np.zeros((1, sum(widths)), dtype=np.int64)
    for kind, num in enumerate(num_K):
        offset = sum(widths[:kind])
        usable = [index for index, allowed in enumerate(allowed_K[kind]) if allowed]
        if num and not usable:
            return None
        for _ in range(num):
            chosen = [options_K[kind][index] for index in usable]
            grown = (bytes_P[:, None] + [option.kept_bytes for option in chosen]).ravel()
            costs = (seconds_P[:, None] + [option.again_s for option in chosen]).ravel()
            kept = _front(grown, costs)
            kept = kept[grown[kept] <= room_bytes]
            if not kept.size:
                return None
            before, which = np.divmod(kept, len(chosen))
            numbers_P = numbers_P[before]
            numbers_P[np.arange(len(kept)), offset + np.array(usable)[which]] += 1
            bytes_P, seconds_P = grown[kept], costs[kept]
    if bytes_P[0] > room_bytes:
        return None
    best = int(np.argmin(seconds_P))
    ends = np.cumsum(widths)
    return float(seconds_P[best]), [each.tolist() for each in np.split(numbers_P[best], ends[:-1])]


def _front(bytes_P: FloatArray, seconds_P: FloatArray) -> IntArray:
    """Return the ways that are not beaten, leanest first."""
    order = np.lexsort((seconds_P, bytes_P))
    fastest_so_far = np.minimum.accumulate(seconds_P[order])
    is_faster = np.concatenate([[True], fastest_so_far[1:] < fastest_so_far[:-1]])
    return np.asarray(order[is_faster])


def _budget_bytes(
    job: TransformerJob, table: LayoutTable, stage: StageLayers, *, capacity_bytes: float
) -> tuple[float, float]:
    """Return what a stage has for its layers' activations, and the least that its worst moment takes of it."""
    terms = stage_terms(job, table, stage)
    ratio = passing_ratio(job)
    layers = sum(float(terms[name][0]) for name in ACTIVATION_TERMS)
    states = sum(float(num_bytes_C[0]) for num_bytes_C in terms.values()) - (1 + ratio) * layers
    masks = float(embedding_mask_bytes(job, table)[0]) if stage.is_first_C[0] else 0.0
    masks *= float(num_in_flight_C(table, stage.stage_C)[0])
    loss = float(loss_bytes(job, table)[0]) if stage.is_last_C[0] else 0.0
    return (capacity_bytes - states) / (1 + ratio) - masks, loss


def _options(job: TransformerJob, table: LayoutTable, machine: Machine, kind: LayerKind) -> Sequence[LayerOption]:
    """List what may be worth choosing for a layer: no other option keeps less, peaks lower and costs less."""
    by_part = _seconds_by_part(LayerWork(job=job, table=table, device=_device(job, machine)), kind)
    options = []
    for modules in CHOICES:
        chosen = replace(table, modules_C=np.array([modules]))
        peak_C = recomputed_bytes(job, chosen, kind) + gradient_bytes(job, chosen, kind)
        options.append(
            LayerOption(
                modules=modules, kept_bytes=float(kept_bytes(job, chosen, kind)[0]), peak_bytes=float(peak_C[0]),
                again_s=float(_again_s(by_part, modules)[0]),
            )
        )  # fmt: skip
    return [option for option in options if not any(_beats(other, option) for other in options)]


def _beats(one: LayerOption, other: LayerOption) -> bool:
    ones = (one.kept_bytes, one.peak_bytes, one.again_s, one.modules)
    others = (other.kept_bytes, other.peak_bytes, other.again_s, other.modules)
    return (ones[:3] == others[:3] and one.modules < other.modules) or (
        ones[:3] != others[:3] and all(mine <= theirs for mine, theirs in zip(ones[:3], others[:3], strict=True))
    )  # fmt: skip


def _seconds_by_part(work: LayerWork, kind: LayerKind) -> Mapping[Part, FloatArray]:
    """Return the seconds of a layer's forward pass on the device, by part."""
    seconds: dict[Part, FloatArray] = {}
    for operation in work.operations(kind):
        seconds[operation.part] = np.asarray(seconds.get(operation.part, 0.0) + operation.forward.total_s)
    return seconds


def _again_s(by_part: Mapping[Part, FloatArray], modules: int) -> FloatArray:
    parts = {part for module, parts in RECOMPUTED_PARTS.items() if modules & MODULE_BIT[module] for part in parts}
    return np.asarray(sum((by_part[part] for part in sorted(parts) if part in by_part), start=np.zeros(1)))


def _device(job: TransformerJob, machine: Machine) -> Device:
    return Device.of(job, machine.shape.accelerator, machine.reached)
