"""Bytes per rank by term, for the rank that needs most. Pure; many layouts at once.

Axes: C = candidate layout, S = pipeline stage considered, U = distinct combination of the columns that matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from airflow_llmsched.domain.hardware import Accelerator
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.factored import Factor, factor
from airflow_llmsched.planner.layout_table import IntArray, LayoutTable
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.memory_activations import LAYER_COLUMNS, StageActivations
from airflow_llmsched.planner.perf.memory_states import STATE_COLUMNS, state_terms
from airflow_llmsched.planner.perf.stages import StageLayers, telling_stages

ACTIVATION_COLUMNS = (*LAYER_COLUMNS, "pp_C", "vp_C", "num_micro_batches_C", "offload_C")
"""What the activations of a stage depend on."""

FRAGMENTED_RATIO = 0.02
"""Of what comes and goes in a step, the share that the allocator holds besides: pages not full, streams' own blocks."""

FRAGMENTED_SEGMENTS_RATIO = 0.08
"""The same with segments of fixed size, where freed blocks often fit nothing (assumption; PyTorch's default)."""

LASTING_TERMS = frozenset({"weights", "compute_copies", "optimizer", "compression"})
"""Terms that are allocated once; the others come and go."""

ALLOCATOR_VARIABLES = MappingProxyType({"nvidia": "PYTORCH_CUDA_ALLOC_CONF", "amd": "PYTORCH_HIP_ALLOC_CONF"})
"""Where PyTorch reads its allocator's settings, by the accelerator's vendor (docs of torch.cuda and of ROCm, 2026)."""

Terms = Mapping[str, IntArray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryPeak:
    """What the fullest rank of each candidate holds at its worst moment. ``terms`` add up to ``total_C``.

    ``stage_C`` is the pipeline stage of that rank.
    """

    terms: Terms
    total_C: IntArray
    stage_C: IntArray


def memory_terms(job: TransformerJob, table: LayoutTable, *, reserved_bytes: int = 0) -> dict[str, IntArray]:
    """Return bytes per rank by term for the heaviest pipeline stage of each candidate; they add up to the rank's total.

    Args:
        job: What is trained.
        table: The candidates.
        reserved_bytes: What the runtime holds before the first tensor.
    """
    return dict(memory_peak(job, table, reserved_bytes=reserved_bytes).terms)


def memory_peak(job: TransformerJob, table: LayoutTable, *, reserved_bytes: int = 0) -> MemoryPeak:
    """Return :func:`memory_terms` with the stage that they belong to."""
    halves = _halves(job, table)
    totals_SC = _totals_SC(halves)
    worst_C = np.argmax(totals_SC, axis=0)
    terms: dict[str, IntArray] = {}
    for half in halves:
        for name, values_C in half.at(worst_C).items():
            terms[name] = terms[name] + values_C if name in terms else values_C
    terms["runtime"] = np.full(len(table), reserved_bytes, dtype=np.int64)
    return MemoryPeak(
        terms=terms,
        total_C=np.take_along_axis(totals_SC, worst_C[None], axis=0)[0] + reserved_bytes,
        stage_C=halves[0].stage_at(worst_C),
    )


def fuller(one: MemoryPeak, other: MemoryPeak) -> MemoryPeak:
    """Return of each candidate the fuller of two peaks, which have the same terms."""
    is_other_C = other.total_C > one.total_C
    return MemoryPeak(
        terms={name: np.where(is_other_C, other.terms[name], values_C) for name, values_C in one.terms.items()},
        total_C=np.where(is_other_C, other.total_C, one.total_C),
        stage_C=np.where(is_other_C, other.stage_C, one.stage_C),
    )


def memory_totals(job: TransformerJob, table: LayoutTable, *, reserved_bytes: int = 0) -> IntArray:
    """Return bytes of the fullest rank alone: the sum of :func:`memory_terms` in half the time."""
    return np.asarray(_totals_SC(_halves(job, table)).max(axis=0) + reserved_bytes)


def memory_breakdown(job: TransformerJob, layout: ParallelLayout, *, reserved_bytes: int = 0) -> Mapping[str, int]:
    """Return :func:`memory_terms` of one layout."""
    terms = memory_terms(job, LayoutTable.of([layout]), reserved_bytes=reserved_bytes)
    return {name: int(values[0]) for name, values in terms.items()}


def stage_terms(job: TransformerJob, table: LayoutTable, stage: StageLayers) -> dict[str, IntArray]:
    """Return bytes by term for a rank of one given stage, without the runtime's."""
    states = _with_allocator(job, state_terms(job, table, stage))
    activations = _with_allocator(job, StageActivations.of(job, table).terms(stage))
    return states | activations | {"allocator": states["allocator"] + activations["allocator"]}


def passing_ratio(job: TransformerJob) -> float:
    """Return what the allocator holds beside what comes and goes, as a share of it."""
    return FRAGMENTED_RATIO if job.software.expandable_segments else FRAGMENTED_SEGMENTS_RATIO


def describe_rank(layout: ParallelLayout, *, stage: int) -> str:
    """Say which ranks of a layout a stage's figures belong to, and what they have that others have not."""
    if layout.pp == 1:
        return "every rank (no pipeline)"
    parts = {0: "the embedding, and most micro-batches in flight", layout.pp - 1: "the output head and the loss"}
    holds = f", which has {parts[stage]}" if stage in parts else ""
    return f"the ranks of pipeline stage {stage} of {layout.pp}{holds}"


def allocator_settings(job: TransformerJob, accelerator: Accelerator) -> str:
    """Return the environment under which PyTorch's allocator holds no more than predicted; empty for its defaults."""
    variable = ALLOCATOR_VARIABLES.get(accelerator.vendor)
    if variable is None or not job.software.expandable_segments:
        return ""
    return f"{variable}=expandable_segments:True"


_TermsOf = Callable[[TransformerJob, LayoutTable], Callable[[StageLayers], dict[str, IntArray]]]

_HALVES: Sequence[tuple[Sequence[str], _TermsOf]] = (
    (STATE_COLUMNS, lambda job, table: partial(state_terms, job, table)),
    (ACTIVATION_COLUMNS, lambda job, table: StageActivations.of(job, table).terms),
)
"""States and activations share few columns, so each is computed for far fewer combinations than both together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Half:
    """Some of the terms, on the distinct combinations of what they depend on, for each stage considered."""

    factor: Factor
    stages: Sequence[StageLayers]
    terms_S: Sequence[Terms]
    totals_SU: IntArray

    @classmethod
    def of(cls, job: TransformerJob, table: LayoutTable, columns: Sequence[str], terms_of: _TermsOf) -> _Half:
        found = factor(table, columns)
        stages, terms = list(telling_stages(job.model, found.table)), terms_of(job, found.table)
        terms_S = [_with_allocator(job, terms(stage)) for stage in stages]
        totals_SU = np.array([np.sum(list(each.values()), axis=0) for each in terms_S])
        return cls(factor=found, stages=stages, terms_S=terms_S, totals_SU=totals_SU)

    def at(self, stage_C: IntArray) -> dict[str, IntArray]:
        return {name: self._pick([terms[name] for terms in self.terms_S], stage_C) for name in self.terms_S[0]}

    def stage_at(self, stage_C: IntArray) -> IntArray:
        return self._pick([stage.stage_C for stage in self.stages], stage_C)

    def _pick(self, values_S: Sequence[IntArray], stage_C: IntArray) -> IntArray:
        return np.take(np.concatenate(values_S), stage_C * len(self.factor.table) + self.factor.index_C)


def _halves(job: TransformerJob, table: LayoutTable) -> Sequence[_Half]:
    return [_Half.of(job, table, columns, terms_of) for columns, terms_of in _HALVES]


def _totals_SC(halves: Sequence[_Half]) -> IntArray:
    return np.asarray(sum(half.factor.spread(half.totals_SU) for half in halves))


def _with_allocator(job: TransformerJob, terms: dict[str, IntArray]) -> dict[str, IntArray]:
    """Add what the allocator holds beyond the tensors that come and go."""
    passing_C = np.sum([num_bytes_C for name, num_bytes_C in terms.items() if name not in LASTING_TERMS], axis=0)
    return terms | {"allocator": np.ceil(passing_ratio(job) * passing_C).astype(np.int64)}
