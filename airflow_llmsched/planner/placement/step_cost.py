"""Seconds of a step by how far the groups of a layout reach: the part of a placement's score that is no sum. Pure.

What a placement does to a step is taken from two things alone: the innermost level whose domains hold each group of a
kind whole, and the fewest ranks in a domain of the fastest links. Many placements have these in common, so that a
search prices few of them, and an exact solver can go through them all. Axes: R = rank, L = level, nodes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from airflow_llmsched.domain.layout import ParallelLayout, RankGroup
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.evaluate import step_seconds, total_s
from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.collectives import Link, Span
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.network_levels import EVERYWHERE, HOP_S, levels_over
from airflow_llmsched.planner.perf.placed_machine import network_rate
from airflow_llmsched.planner.placement.wishes import stride_and_size

NOWHERE = EVERYWHERE
"""Depth of groups that no domain of any level holds whole."""

NOMINAL_SHARES = {RankGroup.TP: 0.5, RankGroup.EP: 0.3, RankGroup.CP: 0.2, RankGroup.DP: 0.1, RankGroup.PP: 0.01}
"""Of a step of which nothing is known: seconds for each boundary that groups of a kind cross. An assumption: it has
their order right, from those that exchange most in the middle of a layer to those that pass activations on."""

UNTOLD_RATIO = 0.9
"""Rate that is left beyond each further level of which the topology states no rate. An assumption: networks are
thinner towards the top (Llama 3's is 1:7 there, Dubey et al. 2024, section 3.3), and shared with more gangs."""

Depths = tuple[int, ...]
"""Of each kind of groups, the depth of the innermost level whose domains hold each such group whole."""


class Groups(NamedTuple):
    """All groups of ``size`` ranks whose members are numbered ``stride`` apart."""

    stride: int
    size: int

    @classmethod
    def of(cls, layout: ParallelLayout, group: RankGroup) -> Groups:
        """Return a layout's groups of a kind."""
        return cls(*stride_and_size(layout, group))


class StepCost:
    """Seconds of a step of one problem's layout, by where its groups are. Prices each case once.

    Raises ``KeyError`` where the accelerator lacks the number format that the workload computes in.
    """

    def __init__(self, problem: PlacementProblem, *, levels: Sequence[str], joined_depth: int) -> None:
        """Prepare for a tree whose ``levels`` end with nodes, and whose fastest links end at ``joined_depth``."""
        self._problem = problem
        self._joined_depth = joined_depth
        self._num_levels = len(levels)
        self._known: dict[tuple[Depths, int], float] = {}
        asked = self._asked() if _is_told(problem) else set(_nominal_shares(problem.layout))
        wished = {Groups.of(problem.layout, wish.group) for wish in problem.wishes}
        together = {Groups.of(problem.layout, RankGroup.TP)}
        self.groups: tuple[Groups, ...] = tuple(sorted(each for each in asked | wished | together if each.size > 1))
        self._shares = _nominal_shares(problem.layout)

    @property
    def best_s(self) -> float:
        """Seconds of a step all of whose groups are where no link is faster: a lower bound."""
        return self.step_s((self._num_levels - 1,) * len(self.groups), fewest=self._problem.layout.world_size)

    def step_s(self, depths: Depths, *, fewest: int) -> float:
        """Return the seconds of a step.

        Args:
            depths: Of each of ``groups``, the depth of the innermost level whose domains hold each such group whole;
                ``NOWHERE``: of none.
            fewest: Ranks in the domain of the fastest links that has fewest.
        """
        if (depths, fewest) not in self._known:
            self.price([(depths, fewest)])
        return self._known[depths, fewest]

    def price(self, cases: Iterable[tuple[Depths, int]]) -> None:
        """Find the seconds of many cases, pairs of what :meth:`step_s` takes, in hardly more time than of one."""
        new = [case for case in dict.fromkeys(cases) if case not in self._known]
        if not new:
            return
        grounds = [_Reach(depth_of=dict(zip(self.groups, depths, strict=True)), fewest=few) for depths, few in new]
        told_s_C = self._told_s_C(self._machine(grounds)) if _is_told(self._problem) else np.zeros(len(new))
        for case, ground, told_s in zip(new, grounds, told_s_C.tolist(), strict=True):
            self._known[case] = told_s or self._nominal_s(ground.depth_of)

    def depths(self, domain_LR: IntArray) -> Depths:
        """Return the depths of ``groups``, from the number of each rank's domain on each level."""
        innermost_first = range(len(domain_LR))[::-1]
        return tuple(
            next((depth for depth in innermost_first if held_whole(domain_LR[depth], each)), NOWHERE)
            for each in self.groups
        )

    def depth_of(self, group: RankGroup, depths: Depths) -> int:
        """Return the depth among ``depths`` of a kind of group that somebody wished for; of one rank, the node's."""
        wanted = Groups.of(self._problem.layout, group)
        return self._num_levels - 1 if wanted.size == 1 else depths[self.groups.index(wanted)]

    def _told_s_C(self, machine: _ReachMachine) -> FloatArray:
        assert self._problem.workload is not None
        table = LayoutTable.of([self._problem.layout] * len(machine.reaches))
        return total_s(step_seconds(self._problem.workload, table, machine), table)

    def _nominal_s(self, depth_of: Mapping[Groups, int]) -> float:
        crossed = {each: max(0, self._joined_depth - depth) for each, depth in depth_of.items()}
        return 1.0 + sum(share * crossed.get(each, 0) for each, share in self._shares.items())

    def _asked(self) -> set[Groups]:
        """Find out which groups the step's model looks at."""
        machine = self._machine([_Reach(depth_of={}, fewest=self._problem.layout.world_size)])
        self._told_s_C(machine)
        return machine.asked

    def _machine(self, reaches: Sequence[_Reach]) -> _ReachMachine:
        shape = self._problem.shape
        assert shape is not None
        joined_C = np.array([each.fewest for each in reaches], dtype=np.int64)
        return _ReachMachine(
            shape=shape,
            ranks_per_node_C=np.minimum(joined_C, shape.num_accelerators),
            joined_ranks_C=joined_C,
            switches_reduce=self._problem.tree.switches_reduce,
            tree=self._problem.tree,
            joined_depth=self._joined_depth,
            reaches=reaches,
            reach_C=np.arange(len(reaches), dtype=np.int64),
        )


def _is_told(problem: PlacementProblem) -> bool:
    return problem.workload is not None and problem.shape is not None


def _nominal_shares(layout: ParallelLayout) -> dict[Groups, float]:
    shares: dict[Groups, float] = {}
    for kind, share in NOMINAL_SHARES.items():
        each = Groups.of(layout, kind)
        if each.size > 1:
            shares[each] = shares.get(each, 0.0) + share
    return shares


def held_whole(domain_R: IntArray, groups: Groups) -> bool:
    """Say whether each of some groups is in one domain, from the number of each rank's."""
    if groups.size == 1:
        return True
    has_next_R = _has_next(len(domain_R), *groups)
    return not np.any((domain_R[: -groups.stride] != domain_R[groups.stride :]) & has_next_R)


@lru_cache(maxsize=256)
def _has_next(num_ranks: int, stride: int, size: int) -> BoolArray:
    """Say of each rank that has another ``stride`` further on whether that is a member of the same group."""
    first_R = np.arange(num_ranks - stride)
    return np.asarray(first_R // stride % size != size - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Reach:
    """At which depths groups are held whole, and the fewest ranks in a domain of the fastest links."""

    depth_of: Mapping[Groups, int]
    fewest: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ReachMachine(Machine):
    """The machine of candidates that differ in where their groups are held whole; it notes which groups are asked for.

    ``reach_C`` is the number of each one's case among ``reaches``. A group beyond the fastest links has as many members
    in each of their domains as the fewest ranks there allow.
    """

    tree: TopologyTree
    joined_depth: int
    reaches: Sequence[_Reach]
    reach_C: IntArray
    asked: set[Groups] = field(default_factory=set)

    @property
    def places_C(self) -> tuple[IntArray, ...]:
        """The column by which candidates differ in where they run."""
        return (self.reach_C,)

    def take(self, chosen: IntArray) -> _ReachMachine:
        """Return the machine of some candidates, by index."""
        assert self.joined_ranks_C is not None
        return replace(
            self, ranks_per_node_C=self.ranks_per_node_C[chosen], joined_ranks_C=self.joined_ranks_C[chosen],
            reach_C=self.reach_C[chosen],
        )  # fmt: skip

    def span(self, *, stride_C: IntArray, size_C: IntArray) -> Span:
        """Return where the slowest group of ``size_C`` ranks, ``stride_C`` apart, has its members."""
        kinds = [Groups(stride, size) for stride, size in zip(stride_C.tolist(), size_C.tolist(), strict=True)]
        self.asked.update(kinds)
        cases = [self.reaches[number] for number in self.reach_C.tolist()]
        depths = [
            case.depth_of.get(each, self.joined_depth) if each.size > 1 else self.joined_depth
            for case, each in zip(cases, kinds, strict=True)
        ]
        is_joined_C = np.array([depth >= self.joined_depth for depth in depths], dtype=np.bool_)
        reach_C = self.domain_ranks_C // np.maximum(stride_C, 1)
        # a group that would fit and is not whole may straddle an end anywhere
        straddling_C = np.where(reach_C >= size_C, size_C // 2, reach_C)
        members_C = np.where(is_joined_C, size_C, np.maximum(straddling_C, 1))
        return Span(
            size_C=size_C,
            members_C=members_C,
            domains_C=-(-size_C // members_C),
            inner=self.inner_of(members_C=members_C, bridged_C=self._bridged_C(stride_C * size_C)),
            outer=self._outer(depths),
        )

    def _outer(self, depths: Sequence[int]) -> Link:
        outer, known = self.outer, {depth: self._rate(depth) for depth in set(depths)}
        extra_s_C = np.array([self._num_beyond(depth) * HOP_S for depth in depths])
        return replace(
            outer,
            bytes_per_s=np.array([known[depth] for depth in depths]),
            latency_s=np.asarray(outer.latency_s) + extra_s_C,
        )

    def _num_beyond(self, depth: int) -> int:
        """Count the levels that groups go over beside the one that first joins the domains of the fastest links."""
        return max(0, self.joined_depth - 1 - depth)

    def _rate(self, depth: int) -> float:
        if self.tree.network:
            return network_rate(self, levels_over(self.tree, depth))
        return network_rate(self, [None]) * UNTOLD_RATIO ** self._num_beyond(depth)
