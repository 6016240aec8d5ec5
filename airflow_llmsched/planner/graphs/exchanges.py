"""What each rank of a gang sends in a step, by kind of group: the performance model's own bytes. Pure.

The model prices collectives on links. On links of one byte a second, without latency, without overlap and without
domains, its seconds are the bytes that a rank sends: no formula for volumes stands twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.layout import ParallelLayout, RankGroup
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.layout_table import IntArray, LayoutTable
from airflow_llmsched.planner.perf.collectives import Link, Span
from airflow_llmsched.planner.perf.demands import demand_step_terms
from airflow_llmsched.planner.perf.job import job_of
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.step import step_terms
from airflow_llmsched.planner.placement.wishes import stride_and_size


class Pattern(StrEnum):
    """Who sends to whom in a group."""

    RING = "ring"
    """Each member to the next: reductions, gathers and scatters."""
    ALL_TO_ALL = "all_to_all"
    """Each member to each other, alike."""
    LINE = "line"
    """Each member to both neighbours: activations forward, gradients backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """All groups of ``size`` ranks ``stride`` apart, each rank of which sends ``bytes_per_rank`` in a step.

    ``group`` is a :class:`RankGroup`'s value, or what a spec calls a demand of its own.
    """

    group: str
    pattern: Pattern
    stride: int
    size: int
    bytes_per_rank: float


_TERMS = {
    RankGroup.TP: ("tensor_parallel", Pattern.RING),
    RankGroup.CP: ("context_parallel", Pattern.RING),
    RankGroup.EP: ("expert_parallel", Pattern.ALL_TO_ALL),
    RankGroup.DP: ("data_parallel", Pattern.RING),
    RankGroup.PP: ("pipeline_transfer", Pattern.LINE),
}


def exchanges(workload: WorkloadSpec, layout: ParallelLayout, shape: NodeShape) -> tuple[Exchange, ...]:
    """Return what the ranks of the busiest stage send in a step of the heaviest batch phase, kinds that send first.

    Raises:
        KeyError: the accelerator lacks the number format that the workload computes in.
    """
    table = LayoutTable.of([layout])
    job = job_of(workload)
    if job is None:
        return _stated(workload, table, shape)
    terms = step_terms(job, table, _counting(shape))
    found = []
    for group, (term, pattern) in _TERMS.items():
        stride, size = _members(layout, group)
        num_bytes = float(terms[term][0])
        if group is RankGroup.PP and layout.pp > 1:
            num_bytes = _sent_between_stages(layout, num_bytes)
        if size > 1 and num_bytes > 0:
            found.append(
                Exchange(group=group.value, pattern=pattern, stride=stride, size=size, bytes_per_rank=num_bytes)
            )
    return tuple(found)


def _members(layout: ParallelLayout, group: RankGroup) -> tuple[int, int]:
    """Return stride and size; gradients are added up over context-parallel ranks, too."""
    if group is RankGroup.DP:
        return layout.tp, layout.dp * layout.cp
    return stride_and_size(layout, group)


def _sent_between_stages(layout: ParallelLayout, transfer: float) -> float:
    """Take filling and draining, which are waits, out of the pipeline's term: two messages for each chunk are sent."""
    one = transfer / (2 * layout.num_micro_batches + 2 * (layout.pp - 1))
    return 2 * layout.num_micro_batches * layout.vp * one


def _stated(workload: WorkloadSpec, table: LayoutTable, shape: NodeShape) -> tuple[Exchange, ...]:
    terms = demand_step_terms(workload, table, _counting(shape))
    size_of = {f"{each.group} {each.collective}": each.group_size for each in workload.communication}
    world = int(table.world_size_C[0])
    return tuple(
        Exchange(
            group=name,
            pattern=Pattern.ALL_TO_ALL if name.endswith("all_to_all") else Pattern.RING,
            stride=1,
            size=min(size_of[name], world),
            bytes_per_rank=float(np.ravel(num_bytes)[0]),
        )
        for name, num_bytes in terms.items()
        if min(size_of[name], world) > 1
    )


def _counting(shape: NodeShape) -> Machine:
    plain = replace(shape, overlaps_communication=False)
    return _ByteCounter(shape=plain, ranks_per_node_C=np.array([shape.num_accelerators], dtype=np.int64))


_ONE_BYTE_A_SECOND = Link(bytes_per_s=1.0, latency_s=0.0)


class _ByteCounter(Machine):
    """One domain of any size whose links move a byte a second."""

    def take(self, chosen: IntArray) -> Machine:
        """Return the machine of some candidates, by index."""
        return _ByteCounter(shape=self.shape, ranks_per_node_C=self.ranks_per_node_C[chosen])

    def span(self, *, stride_C: IntArray, size_C: IntArray) -> Span:  # noqa: ARG002 - of the machine that it stands for
        """Return a group that is whole inside one domain."""
        return Span(
            size_C=size_C,
            members_C=size_C,
            domains_C=np.ones_like(size_C),
            inner=_ONE_BYTE_A_SECOND,
            outer=_ONE_BYTE_A_SECOND,
        )

    @property
    def outer(self) -> Link:
        """Links between nodes, which a spec's own demands may name."""
        return _ONE_BYTE_A_SECOND
