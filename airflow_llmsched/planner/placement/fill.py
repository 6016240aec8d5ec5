"""Best fit under a regime: quick shares for large fleets and for gangs that come by the thousand. Pure.

The gang goes to the smallest domain that holds it; inside, to as few domains as can be, the largest first and the rest
to the smallest that holds it, down to the nodes. Axes: N = node, D = domain of a level.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.placement.cheapest import Shares
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.regimes import Regime, rooms
from airflow_llmsched.planner.placement.score import Sums


def best_fit(table: NodeTable, regime: Regime, *, dearness_LD: Sequence[FloatArray] | None = None) -> Shares | None:
    """Return shares in path order, or None where the regime leaves no room.

    With ``dearness_LD`` (see :func:`dearness`) the cheapest domains go first instead of the largest.
    """
    room_LD = rooms(table, regime.multiples, max_on_node=regime.max_on_node)
    filling = _Filling(table, room_LD, dearness_LD)
    found = filling.fill(regime.order.world_size)
    return None if found is None else Shares(*found)


def dearness(table: NodeTable, sums: Sums, regime: Regime) -> list[FloatArray]:
    """Return what each domain costs a rank when a gang takes all that it may of it, by depth."""
    room_LD = rooms(table, regime.multiples, max_on_node=regime.max_on_node)
    cost_D = sums.touched_s[-1] + sums.rank_s_N * room_LD[-1]
    found = [cost_D / np.maximum(room_LD[-1], 1)]
    for depth in reversed(range(len(room_LD) - 1)):
        is_used = room_LD[depth + 1] > 0
        cost_D = np.bincount(table.outer_LD[depth + 1], weights=np.where(is_used, cost_D, 0.0)) + sums.touched_s[depth]
        found.insert(0, cost_D / np.maximum(room_LD[depth], 1))
    return found


class _Filling:
    """One gang's way down a tree."""

    def __init__(self, table: NodeTable, room_LD: Sequence[IntArray], dearness_LD: Sequence[FloatArray] | None) -> None:
        self._table = table
        self._room_LD = room_LD
        self._dearness_LD = dearness_LD
        self._last = len(room_LD) - 1
        self._used_LD: list[IntArray] | None = None

    def fill(self, num_ranks: int) -> tuple[IntArray, IntArray] | None:
        """Begin at the smallest domain that holds all ranks, else at the whole fleet."""
        for depth in range(self._last, -1, -1):
            room_D = self._room_LD[depth]
            fitting = np.flatnonzero(room_D >= num_ranks)
            if fitting.size:
                taken = self._last_share(fitting, depth, num_ranks)
                return self._sorted([self._down(depth, taken, num_ranks)])
        whole_D = np.arange(len(self._room_LD[0]))
        if int(self._room_LD[0].sum()) < num_ranks:
            return None
        return self._sorted(self._split(0, whole_D, num_ranks))

    def _down(self, depth: int, domain: int, num_ranks: int) -> tuple[IntArray, IntArray]:
        if depth == self._last:
            return np.array([domain]), np.array([num_ranks])
        begin, end = self._nodes_of(depth, domain)
        room_N = self._room_LD[-1][begin:end]
        if int(room_N.sum()) == num_ranks:
            nodes_P = np.flatnonzero(room_N)
            return nodes_P + begin, room_N[nodes_P]
        inner_N = self._table.domain_LN[depth + 1]
        inner_D = np.arange(inner_N[begin], inner_N[end - 1] + 1)
        parts = self._split(depth + 1, inner_D, num_ranks)
        return np.concatenate([nodes for nodes, _ in parts]), np.concatenate([ranks for _, ranks in parts])

    def _nodes_of(self, depth: int, domain: int) -> tuple[int, int]:
        first_D = self._table.first_LD[depth]
        is_last = domain == len(first_D) - 1
        return int(first_D[domain]), len(self._table.ids) if is_last else int(first_D[domain + 1])

    def _split(self, depth: int, among_D: IntArray, num_ranks: int) -> list[tuple[IntArray, IntArray]]:
        """Share ranks out over domains of one level, which have room enough together."""
        room_D = self._room_LD[depth][among_D]
        ranking = (
            (-room_D, -self._fullness(depth, among_D)) if self._dearness_LD is None else self._dear(depth, among_D)
        )
        order = np.lexsort((among_D, *reversed(ranking)))
        among_D, room_D = among_D[order], room_D[order]
        before_D = np.cumsum(room_D) - room_D
        # the first one that, with all before it, leaves no more than some later one holds by itself
        num_whole = int(np.argmax(before_D + room_D >= num_ranks))
        rest = num_ranks - int(before_D[num_whole])
        fitting = among_D[num_whole:][room_D[num_whole:] >= rest]
        last = self._last_share(fitting, depth, rest)
        if depth == self._last:
            return [(among_D[:num_whole], room_D[:num_whole]), (np.array([last]), np.array([rest]))]
        taken = [*zip(among_D[:num_whole].tolist(), room_D[:num_whole].tolist(), strict=True), (last, rest)]
        return [self._down(depth, domain, ranks) for domain, ranks in taken if ranks]

    def _last_share(self, fitting: IntArray, depth: int, num_ranks: int) -> int:
        """Return the domain for a rest: one that it fills, else the smallest, and of those the one most in use."""
        room_D = self._room_LD[depth][fitting]
        if self._dearness_LD is not None and not np.any(room_D == num_ranks):
            return int(fitting[np.lexsort((fitting, self._dearness_LD[depth][fitting]))[0]])
        smallest = fitting[room_D == room_D.min()]
        return int(smallest[0 if len(smallest) == 1 else np.argmax(self._fullness(depth, smallest))])

    def _dear(self, depth: int, among_D: IntArray) -> tuple[FloatArray, IntArray]:
        assert self._dearness_LD is not None
        return np.round(self._dearness_LD[depth][among_D], 12), -self._room_LD[depth][among_D]

    def _fullness(self, depth: int, among_D: IntArray) -> IntArray:
        """Slots that are not free around each domain: in the next outer one, and so on."""
        if self._used_LD is None:
            used_D = self._table.num_slots_N - self._table.free_N
            self._used_LD = [used_D]
            for inner in range(self._last, 0, -1):
                used_D = np.bincount(self._table.outer_LD[inner], weights=used_D).astype(np.int64)
                self._used_LD.insert(0, used_D)
        around_D = np.zeros(len(among_D), dtype=np.int64)
        outer_D = among_D
        for inner in range(depth, 0, -1):
            outer_D = self._table.outer_LD[inner][outer_D]
            around_D += self._used_LD[inner - 1][outer_D]
        return around_D

    def _sorted(self, parts: list[tuple[IntArray, IntArray]]) -> tuple[IntArray, IntArray]:
        nodes_P, ranks_P = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(nodes_P, kind="stable")
        return nodes_P[order], ranks_P[order]
