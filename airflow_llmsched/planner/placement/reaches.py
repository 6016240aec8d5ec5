"""The few ways in which the groups of a gang can lie: what each asks of its nodes, and what it costs. Pure.

How far groups reach is all that makes a placement's cost more than a sum (``score``). Groups are blocks of ranks that
follow one another, so a level's domains hold each group of a kind whole if and only if each takes a multiple of the
block: for one way to lie, the cheapest placement is a linear problem with such multiples. Nodes are in the order of
their paths; where all nodes take equally many ranks, they may also be numbered across: with pipelines, say, inside a
domain and replicas over several. This is for the exact solver, which heuristics are judged by: it shares with them the
score, and not their idea of where to look. Axes: L = level, nodes last; P = node of the gang in the order of its ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np

from airflow_llmsched.domain.layout import RankGroup
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.planner.placement.step_cost import NOWHERE, Depths, Groups

MAX_CROSSED = 3
"""Kinds of numbers beyond a node that are put in every order; of more, only the usual order is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """Which nodes follow one another.

    ``sizes`` are of the kinds of numbers beyond a node, fastest first as ranks are numbered; neighbours among nodes in
    the order of their paths differ in ``nearest_first[0]`` of these. Without sizes, nodes simply follow their paths.
    """

    node_ranks: int | None = None
    sizes: tuple[int, ...] = ()
    nearest_first: tuple[int, ...] = ()

    def in_rank_order(self, nodes_P: IntArray) -> IntArray:
        """Return nodes, given in the order of their paths, in the order of their ranks."""
        if not self.sizes:
            return nodes_P
        slowest_first = tuple(reversed(self.nearest_first))
        crossed = nodes_P.reshape([self.sizes[each] for each in slowest_first])
        axes = [slowest_first.index(each) for each in reversed(range(len(self.sizes)))]
        return np.asarray(crossed.transpose(axes).ravel())

    def block(self, group: Groups) -> int:
        """Return how many ranks, nearest first, make up whole groups."""
        if not self.sizes:
            return group.stride * group.size
        assert self.node_ranks is not None
        cuts = [self.node_ranks * math.prod(self.sizes[:number]) for number in range(len(self.sizes) + 1)]
        covered = [
            self.nearest_first.index(number)
            for number, (low, high) in enumerate(pairwise(cuts))
            if group.stride < high and low < group.stride * group.size
        ]
        spanned = self.nearest_first[: max(covered, default=-1) + 1]
        return max(self.node_ranks, 1) * math.prod(self.sizes[each] for each in spanned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """One way to lie.

    Attributes:
        numbering: which nodes follow one another.
        multiples_L: ranks that a domain of each level takes come in multiples of this.
        fewest: ranks that each touched domain of the fastest links takes at least.
        cost_s: the step, and preferred levels that groups leave (``Scorer.reach_s``).
    """

    numbering: Numbering
    multiples_L: tuple[int, ...]
    fewest: int
    cost_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reaches:
    """Finds the ways to lie of one problem."""

    problem: PlacementProblem
    scorer: Scorer

    def cheapest_first(self) -> list[Reach]:
        """Return all ways to lie that keep what is required of groups, ties in the order of their numbers."""
        ways: dict[tuple[Depths, tuple[int, ...], int], Numbering] = {}
        for numbering in self._numberings():
            for multiples_L in self._multiples(numbering):
                depths = self._depths(numbering, multiples_L)
                if self.scorer.keeps_required(depths):
                    for fewest in self._fewest(numbering, multiples_L):
                        ways.setdefault((depths, multiples_L, fewest), numbering)
        self.scorer.step.price((depths, fewest) for depths, _, fewest in ways)
        found = [
            Reach(
                numbering=numbering,
                multiples_L=multiples_L,
                fewest=fewest,
                cost_s=self.scorer.reach_s(depths, fewest=fewest),
            )
            for (depths, multiples_L, fewest), numbering in ways.items()
        ]
        return sorted(found, key=lambda each: (each.cost_s, each.multiples_L, -each.fewest))

    def _numberings(self) -> Iterator[Numbering]:
        yield Numbering()
        table, world_size = self.scorer.table, self._world_size
        for node_ranks in sorted(set(table.capacity_N.tolist()) - {0}, reverse=True):
            cuts = self._cuts(node_ranks)
            is_chain = all(high % low == 0 for low, high in pairwise(cuts))
            if world_size % node_ranks or not is_chain or not 1 < len(cuts) - 1 <= MAX_CROSSED:
                continue
            sizes = tuple(high // low for low, high in pairwise(cuts))
            usual = tuple(range(len(sizes)))
            for order in permutations(usual):
                if order != usual:
                    yield Numbering(node_ranks=node_ranks, sizes=sizes, nearest_first=order)

    def _cuts(self, node_ranks: int) -> list[int]:
        edges = {edge for each in self._groups for edge in (each.stride, each.stride * each.size)}
        return sorted({node_ranks, self._world_size, *(edge for edge in edges if edge > node_ranks)})

    @property
    def _groups(self) -> tuple[Groups, ...]:
        return self.scorer.step.groups

    @property
    def _tensor(self) -> Groups:
        return Groups.of(self.problem.layout, RankGroup.TP)

    @property
    def _world_size(self) -> int:
        return self.problem.layout.world_size

    def _multiples(self, numbering: Numbering) -> Iterator[tuple[int, ...]]:
        """Yield what domains of each level may take multiples of, each way to lie once and by its least multiples."""
        table = self.scorer.table
        blocks = [numbering.block(each) for each in self._groups]
        values = sorted(_with_common_multiples({*blocks, self._world_size, numbering.node_ranks or 1}))
        floor_L = [self._floor(depth, numbering) for depth in range(len(table.levels))]
        seen: set[tuple[int, ...]] = set()
        for chosen_L in _chains(values, floor_L):
            whole_L = [
                math.lcm(floor, *(block for block in blocks if chosen % block == 0))
                for floor, chosen in zip(floor_L, chosen_L, strict=True)
            ]
            for depth in reversed(range(len(whole_L) - 1)):
                whole_L[depth] = math.lcm(whole_L[depth], whole_L[depth + 1])
            if tuple(whole_L) not in seen and whole_L[-1] == (numbering.node_ranks or whole_L[-1]):
                seen.add(tuple(whole_L))
                yield tuple(whole_L)

    def _floor(self, depth: int, numbering: Numbering) -> int:
        table, required = self.scorer.table, self.problem.required_level
        if required is not None and depth <= table.depth(required):
            return self._world_size
        group = numbering.block(self._tensor) if depth <= table.group_depth else 1
        return math.lcm(group, numbering.node_ranks or 1)

    def _depths(self, numbering: Numbering, multiples_L: Sequence[int]) -> Depths:
        blocks = (numbering.block(each) for each in self.scorer.step.groups)
        return tuple(
            next((depth for depth in reversed(range(len(multiples_L))) if multiples_L[depth] % block == 0), NOWHERE)
            for block in blocks
        )

    def _fewest(self, numbering: Numbering, multiples_L: Sequence[int]) -> Iterable[int]:
        """Return numbers of ranks that the emptiest domain of the fastest links may have."""
        depth = self.scorer.joined_depth
        least = multiples_L[depth]
        is_told = self.problem.workload is not None and self.problem.shape is not None
        if least == self._world_size or not is_told:
            return [least]
        room = int(np.bincount(self.scorer.table.domain_LN[depth], weights=self.scorer.table.capacity_N).max())
        if depth == len(multiples_L) - 1 and numbering.node_ranks:
            return [numbering.node_ranks]
        return range(least, min(room, self._world_size) + 1, least)


def _with_common_multiples(values: set[int]) -> set[int]:
    closed = set(values)
    while True:
        more = {math.lcm(one, two) for one in closed for two in closed} - closed
        if not more:
            return closed
        closed |= more


def _chains(values: Sequence[int], floor_L: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield one value for each level, the outer ones multiples of the inner ones; a floor is one more to choose."""
    if not floor_L:
        yield ()
        return
    for inner in _chains(values, floor_L[1:]):
        below = inner[0] if inner else 1
        yield from ((value, *inner) for value in {*values, floor_L[0]} if value % math.lcm(below, floor_L[0]) == 0)


def room_for(table: NodeTable, reach: Reach) -> int:
    """Return the most ranks that fit, where domains of each level take multiples of what ``reach`` says.

    Any smaller number that is a multiple of the outermost level's fits, too: each domain may take less.
    """
    multiples_L, most = reach.multiples_L, reach.numbering.node_ranks
    capacity_N = table.capacity_N if most is None else np.minimum(table.capacity_N, most)
    rooms = capacity_N // multiples_L[-1] * multiples_L[-1]
    for depth in reversed(range(len(multiples_L) - 1)):
        parents = table.domain_LN[depth]
        inner = table.domain_LN[depth + 1]
        parent_of = np.zeros(int(inner.max(initial=-1)) + 1, dtype=np.int64)
        parent_of[inner] = parents
        sums = np.bincount(parent_of, weights=rooms).astype(np.int64)
        rooms = sums // multiples_L[depth] * multiples_L[depth]
    return int(rooms.sum())
