from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.fill import best_fit
from airflow_llmsched.planner.placement.regimes import (
    Regime,
    extents_in,
    loosest,
    loosest_ways,
    orders,
    regimes,
    rooms,
    rooms_in,
)
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.planner.placement.step_cost import Groups
from tests.support.fleets import fleet, gang, node, tree_of
from tests.support.placement_problems import costly_problem

LAYOUT = ParallelLayout(dp=4, tp=2, pp=2)


def ways(problem: PlacementProblem) -> tuple[Scorer, list[Regime]]:
    scorer = Scorer(problem)
    return scorer, list(regimes(problem, scorer.table, scorer.step.groups))


def test_in_another_order_each_rank_has_its_turn_and_pipelines_are_in_a_row() -> None:
    usual, *others = orders(LAYOUT)
    assert usual.turn_R().tolist() == list(range(16))
    assert [each.chunk for each in others] == [2, 4]
    for order in (usual, *others):
        turns = order.turn_R()
        assert sorted(turns.tolist()) == list(range(16))
        assert order.rank_P(turns).tolist() == list(range(16))
    assert others[0].turn_R()[[0, 1, 8, 9]].tolist() == [0, 1, 2, 3]


def test_extents_say_how_many_ranks_in_a_row_hold_each_group() -> None:
    usual, by_two, _ = orders(LAYOUT)
    tp, dp, pp = (Groups.of(LAYOUT, group) for group in (RankGroup.TP, RankGroup.DP, RankGroup.PP))
    assert extents_in(usual, [tp, dp, pp]) == (2, 8, 16)
    assert extents_in(by_two, [tp, dp, pp]) == (2, 16, 4)


def test_the_loosest_regime_asks_for_what_rules_ask_for() -> None:
    problem = PlacementProblem(layout=LAYOUT, tree=fleet(4), required_level="rack")
    found = loosest(problem, NodeTable.of(problem.tree, group_size=2))
    assert found is not None
    assert found.multiples == (16, 16, 2)


def test_rooms_are_whole_multiples_from_the_inside_out() -> None:
    tree = tree_of(node("a", path=("b", "r"), free=7), node("b", path=("b", "r"), free=5), node("c", path=("b", "s")))
    found = rooms(NodeTable.of(tree, group_size=1), (16, 8, 2))
    assert [each.tolist() for each in found] == [[16], [8, 8], [6, 4, 8]]


def test_rooms_of_several_counts_at_once_are_those_of_each() -> None:
    tree = tree_of(node("a", path=("b", "r"), free=7), node("b", path=("c", "s"), free=5), node("c", path=("c", "t")))
    table = NodeTable.of(tree, group_size=1)
    free_XN = np.array([table.capacity_N, [1, 8, 6]])
    found = rooms_in(free_XN[:, 1:], table.domain_LN[:, 1:], [np.array([0]), *[np.array([0, 1])] * 2], (4, 2, 2))
    assert [each.tolist() for each in found] == [[[12], [12]], [[4, 8], [8, 6]], [[4, 8], [8, 6]]]
    assert rooms_in(free_XN, table.domain_LN, table.first_LD, (4, 2, 2), max_on_node=4)[0].tolist() == [[4, 8], [0, 8]]


PIPELINES = PlacementWish(group=RankGroup.PP, level="rack", required=True)


def test_a_gang_has_room_under_a_regime_where_it_has_under_a_loosest_way() -> None:
    for seed in range(200):
        problem = replace(costly_problem(random.Random(seed), max_nodes=6), wishes=(PIPELINES,) * (seed % 2))
        scorer, found = ways(problem)
        table, world_size = scorer.table, problem.layout.world_size
        has_room = any(
            int(rooms(table, way.multiples, max_on_node=way.max_on_node)[0].sum()) >= world_size
            for way in loosest_ways(problem, table, largest=4)
        )
        assert has_room == bool(found), seed


def test_where_pipelines_must_stay_together_nodes_may_take_less_than_the_largest_has() -> None:
    racks = [node(f"{rack}{each}", path=("b", rack), free=1) for rack in "rs" for each in range(4)]
    tree = tree_of(*racks, node("z", path=("b", "z"), free=2))
    problem = PlacementProblem(layout=ParallelLayout(dp=2, cp=2, pp=2), tree=tree)
    shares = {way.max_on_node for way in ways(replace(problem, wishes=(PIPELINES,)))[1]}
    assert shares == {1}, "no rack has two nodes of two"
    assert {way.max_on_node for way in ways(problem)[1]} == {None}


@pytest.mark.parametrize("seed", range(12))
def test_whatever_keeps_a_regime_holds_its_groups_where_it_says(seed: int) -> None:
    scorer, found = ways(costly_problem(random.Random(seed), max_nodes=8))
    assert len(set(found)) == len(found)
    for way in found:
        shares = best_fit(scorer.table, way)
        assert shares is not None
        order = np.argsort(way.order.rank_P(np.cumsum(shares.ranks_P) - shares.ranks_P))
        depths = scorer.depths(shares.nodes_P[order], shares.ranks_P[order])
        assert all(real >= said for real, said in zip(depths, way.depths, strict=True))


def test_pipelines_that_must_stay_in_a_rack_are_in_a_row_in_every_regime() -> None:
    wish = PlacementWish(group=RankGroup.PP, level="rack", required=True)
    problem = PlacementProblem(layout=ParallelLayout(dp=16, tp=4, pp=2), tree=fleet(16), wishes=(wish,))
    scorer, found = ways(problem)
    assert found
    for way in found:
        assert not way.order.is_usual
        assert scorer.keeps_required(way.depths)


def test_there_is_none_where_the_fleet_has_no_room() -> None:
    assert ways(PlacementProblem(layout=gang(65), tree=fleet(16), required_level="block"))[1] == []
