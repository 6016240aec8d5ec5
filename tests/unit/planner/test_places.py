from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import PlacementWish, RankGroup
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.places import Ask, find_places, num_broken_S
from airflow_llmsched.planner.relax import Obstacles
from tests.support.fleets import fleet, node, tree_of, workload


def ask_for(tree: TopologyTree, **others: Any) -> Ask:
    return Ask(
        workload=workload(**others), tree=tree, shape=node_shape("p5.48xlarge"), solver=BestFitSolver(),
        excluded=frozenset(), seed=0, time_limit_s=1.0,
    )  # fmt: skip


def test_gangs_of_one_size_are_placed_once_where_nodes_hold_as_many_of_them() -> None:
    ask = ask_for(fleet(4))
    obstacles = Obstacles(workload=ask.workload)
    stems = LayoutTable.of([
        ParallelLayout(dp=16), ParallelLayout(dp=8, pp=2), ParallelLayout(dp=2, tp=8), ParallelLayout(dp=64),
        ParallelLayout(dp=4),
    ])  # fmt: skip
    places = find_places(ask, stems, obstacles)
    assert len(places.placed) == 2
    assert places.place_S.tolist() == [1, 1, 1, -1, 0]
    assert places.ranks_per_node_A.tolist() == [4, 8]
    assert places.num_domains_A.tolist() == [1, 1]
    assert obstacles.refusal is not None


def test_degrees_that_leave_slots_over_are_placed_by_themselves() -> None:
    tree = tree_of(*(node(f"n{number}", free=6) for number in range(4)))
    stems = LayoutTable.of([ParallelLayout(dp=12), ParallelLayout(dp=6, tp=2), ParallelLayout(dp=3, tp=4)])
    places = find_places(ask_for(tree), stems, Obstacles(workload=workload()))
    assert places.place_S.tolist() == [0, 0, 1]
    assert [len(each.placement.nodes) for each in places.placed] == [2, 3]


def test_the_node_with_fewest_ranks_is_told_and_whole_nodes_are_paid_whole() -> None:
    tree = tree_of(node("a"), node("b", free=2))
    places = find_places(ask_for(tree), LayoutTable.of([ParallelLayout(dp=9)]), Obstacles(workload=workload()))
    assert places.ranks_per_node_A.tolist() == [1]
    shape = node_shape("p5.48xlarge")
    assert places.usd_per_hour_A.tolist() == pytest.approx([shape.usd_per_hour * (1 + 1 / 8)])


def test_broken_wishes_are_counted_for_each_layout_where_it_is_placed() -> None:
    wishes = tuple(
        PlacementWish(group=group, level=level, required=required)
        for group, level, required in (
            (RankGroup.DP, "node", False), (RankGroup.PP, "node", False), (RankGroup.GANG, "rack", False),
            (RankGroup.CP, "node", True),
        )
    )  # fmt: skip
    ask = ask_for(fleet(2), placement=wishes)
    stems = LayoutTable.of([
        ParallelLayout(dp=16), ParallelLayout(dp=8, pp=2), ParallelLayout(dp=4, pp=4), ParallelLayout(dp=1, cp=16),
        ParallelLayout(dp=32),
    ])  # fmt: skip
    places = find_places(ask, stems, Obstacles(workload=ask.workload))
    assert num_broken_S(ask, stems, places, required=False).tolist() == [1, 1, 1, 0, 0]
    assert num_broken_S(ask, stems, places, required=True).tolist() == [0, 0, 0, 1, 0]
