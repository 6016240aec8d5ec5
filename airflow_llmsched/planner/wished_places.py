"""Places of layouts whose groups would leave a level that is required of them, where they do not. Pure.

``places`` places each number of ranks by what must not be torn alone, for all layouts at once. Which other groups a
level is required of, and which ranks these are, differs from layout to layout: those that such a place breaks are
placed once more, each kind by its own groups. Axes: S = stem of a layout, as in ``places``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish
from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.planner.factored import factor
from airflow_llmsched.planner.layout_table import IntArray, LayoutTable
from airflow_llmsched.planner.placement.wishes import stride_and_size
from airflow_llmsched.planner.places import DEGREES, Ask, Places, num_broken_S, num_held, usd_per_hour, with_helpers
from airflow_llmsched.planner.relax import Obstacles

MAX_NODES_LOOKED_AT = 1 << 17
"""Of all kinds of layouts together, so that no search takes minutes: 256 kinds on 512 nodes, the largest gangs first.
What is beyond it counts as broken."""

MIN_KINDS = 8

NO_ROOM_FOR_HELPERS = NotPlaced(
    summary="where groups keep their required levels, processes of other roles find no room",
    relaxation="ask for fewer of them, or drop a required placement wish of a group",
)


def with_wishes_kept(ask: Ask, stems: LayoutTable, places: Places, obstacles: Obstacles) -> Places:
    """Return ``places`` with one more for each kind of layout whose required wishes they break, as far as one is found.

    Two layouts are of a kind where the groups that levels are required of have the same ranks. ``obstacles`` hear of
    refusals.
    """
    wishes = ask.group_wishes(required=True)
    is_broken_S = (places.place_S >= 0) & (num_broken_S(ask, stems, places, required=True) > 0)
    if not is_broken_S.any():
        return places
    placed, prices, grounds = list(places.placed), places.usd_per_hour_A.tolist(), list(places.grounds)
    place_S = places.place_S.copy()
    for layout, stems_of_kind in _kinds(ask, stems, is_broken_S, wishes):
        found = _place(ask, layout, wishes)
        if isinstance(found, NotPlaced):
            obstacles.note_wish_refusal(found)
            continue
        place_S[stems_of_kind] = len(placed)
        placed.append(found)
        prices.append(usd_per_hour(ask, num_held(found.placement)))
        grounds.append(places.terrain.ground(found.placement))
    return replace(
        places, placed=placed, grounds=grounds, place_S=place_S, usd_per_hour_A=np.array(prices, dtype=np.float64)
    )


def _kinds(
    ask: Ask, stems: LayoutTable, is_broken_S: np.ndarray, wishes: list[PlacementWish]
) -> Iterator[tuple[ParallelLayout, IntArray]]:
    """Yield a layout of each kind with the stems that are of it, the largest gangs first."""
    distinct = factor(stems, DEGREES, beside=(stems.world_size_C,))
    is_broken_U = np.zeros(len(distinct.first_U), dtype=np.bool_)
    is_broken_U[distinct.index_C[is_broken_S]] = True
    members: dict[tuple[int, ...], list[int]] = {}
    layouts: dict[tuple[int, ...], ParallelLayout] = {}
    for number in np.flatnonzero(is_broken_U).tolist():
        layout = stems.at(int(distinct.first_U[number]))
        if math.lcm(layout.tp, layout.expert_tp or layout.tp) != layout.tp:
            continue  # a solver keeps tensor-parallel groups together, and here wider ones must be
        sizes = (each for wish in wishes for each in stride_and_size(layout, wish.group))
        key = (-layout.world_size, layout.tp, *sizes)
        members.setdefault(key, []).append(number)
        layouts.setdefault(key, layout)
    most = max(MIN_KINDS, MAX_NODES_LOOKED_AT // max(1, len(ask.tree.nodes)))
    for key in sorted(members)[:most]:
        is_member_U = np.zeros(len(distinct.first_U), dtype=np.bool_)
        is_member_U[members[key]] = True
        yield layouts[key], np.flatnonzero(distinct.spread(is_member_U) & is_broken_S)


def _place(ask: Ask, layout: ParallelLayout, wishes: list[PlacementWish]) -> Placed | NotPlaced:
    problem = PlacementProblem(
        layout=layout,
        tree=ask.tree,
        required_level=ask.gang_level(required=True),
        preferred_level=ask.gang_level(required=False),
        excluded=ask.excluded,
        wishes=tuple(wishes),
    )
    result = ask.solver.place(problem, time_limit_s=0.0, seed=ask.seed)
    if isinstance(result, NotPlaced):
        return result
    placement = with_helpers(ask, result.placement, layout)
    return NO_ROOM_FOR_HELPERS if placement is None else replace(result, placement=placement)
