"""Where a gang would fit whose groups must not leave domains of some level: what regimes of placement have room. Pure.

Domains that give whole multiples of the slots that a group has in a row hold each such group whole. There are several
ways to keep groups together (``planner.placement.regimes``), and the gang fits where one of them has room.

Axes: N = node in order of path and id, D = domain of one level, L = level, outermost first, M = set of gangs that go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.placement.cheapest import Shares
from airflow_llmsched.planner.placement.crossed import MAX_NODES, is_small_gang
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.fill import best_fit
from airflow_llmsched.planner.placement.regimes import Regime, loosest_ways, rooms, rooms_in


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupRoom:
    """The ways of gangs of one layout with the same levels required of their groups.

    ``is_all`` unless a solver may know more ways: it also shares pipelines of small gangs out over nodes that take
    unequally many ranks.
    """

    table: NodeTable
    num_ranks: int
    ways: tuple[Regime, ...]
    is_all: bool

    @classmethod
    def of(cls, tree: TopologyTree, gang: QueuedGang, *, largest: int) -> GroupRoom:
        """Return the ways of a gang in a tree whose nodes have up to ``largest`` slots.

        Raises ``ValueError`` for a level that the tree does not have.
        """
        table = NodeTable.of(tree, group_size=1)
        problem = PlacementProblem(layout=gang.layout, tree=tree, wishes=gang.group_levels)
        ways = tuple(loosest_ways(problem, table, largest=largest))
        is_usual = all(each.order.is_usual for each in ways)
        is_all = is_usual or not is_small_gang(gang.layout)
        return cls(table=table, num_ranks=gang.layout.world_size, ways=ways, is_all=is_all)

    def rooms_D(self, free_N: IntArray, *, depth: int) -> IntArray:
        """Return the slots that each domain of a level could give: for ranks in the best way, and beside all ranks."""
        table = replace(self.table, capacity_N=free_N)
        found = [rooms(table, way.multiples, max_on_node=way.max_on_node)[depth] for way in self.ways]
        return self._with_helpers(found, rooms(table, self._each)[depth])

    def most(self, free_N: IntArray) -> int:
        """Return the slots that all nodes together could give."""
        return int(self._most(free_N, self.table.domain_LN, self.table.first_LD))

    def is_room_M(self, free_MN: IntArray, nodes: IntArray, *, needed: int) -> BoolArray:
        """Say for each row of free slots of a domain's nodes whether they give what is needed."""
        domain_LN = self.table.domain_LN[:, nodes]
        first_LD = [np.flatnonzero(np.diff(domain_N, prepend=-1)) for domain_N in domain_LN]
        return np.asarray(self._most(free_MN, domain_LN, first_LD) >= needed)

    def may_have_others(self, free_N: IntArray) -> bool:
        """Whether a solver may know more ways on nodes of which so much is free."""
        return not self.is_all and int(np.count_nonzero(free_N)) <= MAX_NODES

    def choose(self, free_N: IntArray, nodes: IntArray, first_N: IntArray, *, num_slots: int) -> Shares:
        """Return slots of some nodes that give so many: those of domains that have most of ``first_N`` go first.

        What helpers need beside the ranks is taken on nodes of the gang, and then on others.
        """
        within_N = np.zeros_like(free_N)
        within_N[nodes] = free_N[nodes]
        table = replace(self.table, capacity_N=within_N, free_N=within_N)
        found = (best_fit(table, way, dearness_LD=self._dearness(table, way, first_N)) for way in self.ways)
        taken_N = np.zeros_like(free_N)
        nodes_P, ranks_P = next(each for each in found if each is not None)
        taken_N[nodes_P] = ranks_P
        order = np.argsort(taken_N == 0, kind="stable")
        over = (within_N - taken_N)[order]
        taken_N[order] += np.clip(num_slots - self.num_ranks - (np.cumsum(over) - over), 0, over)
        used = np.flatnonzero(taken_N)
        return Shares(used, taken_N[used])

    @property
    def _each(self) -> tuple[int, ...]:
        return (1,) * len(self.table.levels)

    def _most(self, free_XN: IntArray, domain_LN: IntArray, first_LD: Sequence[IntArray]) -> IntArray:
        found = [
            rooms_in(free_XN, domain_LN, first_LD, way.multiples, max_on_node=way.max_on_node)[0].sum(axis=-1)
            for way in self.ways
        ]
        return self._with_helpers(found, free_XN.sum(axis=-1))

    def _with_helpers(self, found: Sequence[IntArray], free: IntArray) -> IntArray:
        """Return what is left for ranks where not all of them fit, else all that is free: any slot does for helpers."""
        most = np.maximum.reduce(found)
        return np.asarray(np.where(most >= self.num_ranks, free, most))

    def _dearness(self, table: NodeTable, way: Regime, first_N: IntArray) -> list[FloatArray]:
        """Return how little of what each domain could give is there already, by depth."""
        room_LD = rooms(table, way.multiples, max_on_node=way.max_on_node)
        ready_LD = rooms(replace(table, capacity_N=np.minimum(first_N, table.capacity_N)), self._each)
        return [-ready_D / np.maximum(room_D, 1) for ready_D, room_D in zip(ready_LD, room_LD, strict=True)]
