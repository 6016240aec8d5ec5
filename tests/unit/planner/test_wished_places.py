from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.planner import wished_places
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.places import Ask, find_places, num_broken_S
from airflow_llmsched.planner.relax import Obstacles
from airflow_llmsched.planner.wished_places import with_wishes_kept
from tests.support.fleets import fleet, workload

RACK = PlacementWish(group=RankGroup.PP, level="rack", required=True)
SIDE_BY_SIDE, NEXT_TO_EACH_OTHER = ParallelLayout(dp=2, tp=8, pp=2), ParallelLayout(dp=4, tp=8)


def found(*layouts: ParallelLayout, num_nodes: int = 4, wish: PlacementWish = RACK, **others: Any):
    ask = Ask(
        workload=workload(placement=(wish,), **others), tree=fleet(num_nodes, nodes_per_rack=2),
        shape=node_shape("p5.48xlarge"), solver=BestFitSolver(), excluded=frozenset(), seed=0, time_limit_s=1.0,
    )  # fmt: skip
    stems = LayoutTable.of(list(layouts))
    obstacles = Obstacles(workload=ask.workload)
    before = find_places(ask, stems, obstacles)
    after = with_wishes_kept(ask, stems, before, obstacles)
    return before, after, num_broken_S(ask, stems, after, required=True).tolist(), obstacles.wish_refusal


def test_a_layout_whose_usual_place_breaks_a_required_level_gets_one_that_keeps_it() -> None:
    before, after, num_broken, refusal = found(SIDE_BY_SIDE, NEXT_TO_EACH_OTHER)
    assert refusal is None
    assert (len(before.placed), len(after.placed), num_broken) == (1, 2, [0, 0])
    assert after.place_S.tolist() == [1, 0]
    assert len(after.grounds) == len(after.usd_per_hour_A) == 2
    stages = after.placed[1].placement.nodes
    assert [name[-1] for name in stages] == ["0", "2", "1", "3"]


def test_layouts_whose_groups_are_the_same_share_a_place() -> None:
    other = ParallelLayout(dp=2, tp=8, pp=2, ep=2)
    _, after, num_broken, _ = found(SIDE_BY_SIDE, other)
    assert (after.place_S.tolist(), num_broken) == ([1, 1], [0, 0])


def test_a_layout_that_no_place_suits_stays_where_it_breaks_the_wish() -> None:
    before, after, num_broken, refusal = found(ParallelLayout(dp=1, tp=8, pp=4))
    assert after.place_S.tolist() == before.place_S.tolist() == [0]
    assert num_broken == [1]
    assert refusal is not None
    assert refusal.relaxation == "allow level 'block' instead of 'rack' for pp groups"


def test_without_a_required_level_nothing_is_placed_again() -> None:
    wish = PlacementWish(group=RankGroup.PP, level="rack", required=False)
    before, after, *_ = found(SIDE_BY_SIDE, wish=wish)
    assert after is before


def test_only_so_many_kinds_are_tried_the_largest_gangs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wished_places, "MAX_NODES_LOOKED_AT", 0)
    monkeypatch.setattr(wished_places, "MIN_KINDS", 1)
    smaller = ParallelLayout(dp=3, tp=4, pp=2)
    _, after, num_broken, _ = found(smaller, SIDE_BY_SIDE)
    assert num_broken == [1, 0]
    assert len(after.placed) == 3
