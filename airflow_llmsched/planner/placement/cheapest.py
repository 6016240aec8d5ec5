"""The cheapest shares under a regime, exactly, by dynamic programming over the tree. Pure.

What each domain costs for each number of ranks follows from what its inner domains cost, which are taken in one after
the other; all domains of a level at once. Axes: N = node, D = domain of a level, K = number of units of ranks (of the
multiple that nodes take).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.regimes import Regime, rooms
from airflow_llmsched.planner.placement.score import Sums

CALL_OPERATIONS = 1500
"""Additions that take as long as it takes to ask for them: for foreseeing the effort."""


class Shares(NamedTuple):
    """Nodes by position, in the order in which they take ranks, and how many each takes."""

    nodes_P: IntArray
    ranks_P: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Merge:
    """Inner domains of one level, as the outer ones take them in: ``slot_I`` is when each one's turn is."""

    outer_I: IntArray
    slot_I: IntArray
    num_outer: int
    size: int

    @property
    def num_slots(self) -> int:
        return int(self.slot_I.max(initial=-1)) + 1


def num_operations(table: NodeTable, regime: Regime) -> int:
    """Foresee how many additions :func:`cheapest_shares` takes."""
    merges, room_LD = _merges(table, regime), _unit_rooms(table, regime)
    total = 0
    for depth, merge in enumerate(merges):
        options = int(room_LD[depth].max(initial=0)) * regime.multiples[-1] // regime.multiples[depth]
        total += merge.num_slots * options * (merge.num_outer * merge.size + CALL_OPERATIONS)
    return total


def cheapest_shares(
    table: NodeTable, sums: Sums, regime: Regime, *, fewest: int, joined_depth: int
) -> tuple[float, Shares] | None:
    """Return the least of ``sums`` and the shares that have it, in path order; None where no shares keep the regime.

    Args:
        table: Nodes.
        sums: What is to be small.
        regime: Multiples that domains take.
        fewest: Ranks that a domain of the level at ``joined_depth`` takes at least, if it takes any.
        joined_depth: Depth of the domains of the fastest links.
    """
    unit, last = regime.multiples[-1], len(regime.multiples) - 1
    merges = _merges(table, regime)
    choices: list[list[IntArray]] = []
    cost_DK = _nodes(table, sums, regime)
    for depth in range(last, -1, -1):
        if depth < last:
            cost_DK, choice = _merged(cost_DK, merges[depth + 1])
            choices.append(choice)
            cost_DK[:, 1:] += sums.touched_s[depth][:, None]
        ranks_K = np.arange(cost_DK.shape[1]) * unit
        is_allowed_K = (ranks_K % regime.multiples[depth] == 0) & ((ranks_K >= fewest) | (depth != joined_depth))
        is_allowed_K[0] = True
        cost_DK[:, ~is_allowed_K] = np.inf
    cost_DK, choice = _merged(cost_DK, merges[0])
    choices.append(choice)
    wanted = regime.order.world_size // unit
    if wanted >= cost_DK.shape[1] or not np.isfinite(cost_DK[0, wanted]):
        return None
    taken_D = np.array([wanted], dtype=np.int64)
    for merge, choice in zip(merges, reversed(choices), strict=True):
        taken_D = _traced(taken_D, merge, choice)
    nodes_P = np.flatnonzero(taken_D)
    return sums.constant_s + float(cost_DK[0, wanted]), Shares(nodes_P, taken_D[nodes_P] * unit)


def _merges(table: NodeTable, regime: Regime) -> list[_Merge]:
    """Return how the domains of each level go into those of the next outer one; the outermost into the fleet."""
    room_LD, merges = _unit_rooms(table, regime), []
    wanted = regime.order.world_size // regime.multiples[-1]
    for depth, room_D in enumerate(room_LD):
        outer_I = table.outer_LD[depth]
        first_I = np.searchsorted(outer_I, outer_I)
        num_outer = int(outer_I.max(initial=-1)) + 1
        size = int(np.bincount(outer_I, weights=room_D).max(initial=0))
        merges.append(
            _Merge(
                outer_I=outer_I, slot_I=np.arange(len(outer_I)) - first_I, num_outer=num_outer,
                size=min(size, wanted) + 1,
            )
        )  # fmt: skip
    return merges


def _unit_rooms(table: NodeTable, regime: Regime) -> list[IntArray]:
    unit = regime.multiples[-1]
    return [room_D // unit for room_D in rooms(table, regime.multiples, max_on_node=regime.max_on_node)]


def _nodes(table: NodeTable, sums: Sums, regime: Regime) -> FloatArray:
    """Return what each node costs for each number of units."""
    unit, room_N = regime.multiples[-1], _unit_rooms(table, regime)[-1]
    units_K = np.arange(min(int(room_N.max(initial=0)), regime.order.world_size // unit) + 1)
    cost_NK = sums.touched_s[-1][:, None] + sums.rank_s_N[:, None] * (units_K * unit)
    cost_NK[:, 0] = 0.0
    cost_NK[units_K > room_N[:, None]] = np.inf
    return np.asarray(cost_NK)


def _merged(inner_IK: FloatArray, merge: _Merge) -> tuple[FloatArray, list[IntArray]]:
    """Take inner domains into outer ones; say of each turn how much it took for each sum."""
    cost_DK = np.full((merge.num_outer, merge.size), np.inf)
    cost_DK[:, 0] = 0.0
    choices: list[IntArray] = []
    for slot in range(merge.num_slots):
        chosen_I = merge.slot_I == slot
        outer_X = merge.outer_I[chosen_I]
        rows_XK, own_XJ = cost_DK[outer_X], inner_IK[chosen_I][:, : merge.size]
        best_XK, choice_XK = rows_XK.copy(), np.zeros(rows_XK.shape, dtype=np.int32)
        for units in np.flatnonzero(np.isfinite(own_XJ[:, 1:]).any(axis=0)) + 1:
            found_XK = rows_XK[:, : merge.size - units] + own_XJ[:, units, None]
            is_better_XK = found_XK < best_XK[:, units:]
            np.copyto(best_XK[:, units:], found_XK, where=is_better_XK)
            np.copyto(choice_XK[:, units:], units, where=is_better_XK)
        cost_DK[outer_X] = best_XK
        choices.append(choice_XK)
    return cost_DK, choices


def _traced(taken_D: IntArray, merge: _Merge, choices: list[IntArray]) -> IntArray:
    """Return what each inner domain takes, from what the outer ones do."""
    left_D, taken_I = taken_D.copy(), np.zeros(len(merge.outer_I), dtype=np.int64)
    for slot in reversed(range(merge.num_slots)):
        chosen_I = merge.slot_I == slot
        outer_X = merge.outer_I[chosen_I]
        units_X = choices[slot][np.arange(len(outer_X)), left_D[outer_X]]
        taken_I[chosen_I] = units_X
        left_D[outer_X] -= units_X
    return taken_I
