from __future__ import annotations

import math
from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NodeCosts, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.placement.reaches import Reach, Reaches
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.solvers.linear import Answer, LinearModel
from tests.support.fleets import fleet

LAYOUT = ParallelLayout(dp=4, tp=8)


def problem_on(tree: TopologyTree, **others: object) -> PlacementProblem:
    return PlacementProblem(layout=LAYOUT, tree=tree, **others)  # type: ignore[arg-type]


def ways_of(problem: PlacementProblem) -> tuple[Scorer, list[Reach]]:
    scorer = Scorer(problem)
    return scorer, Reaches(problem=problem, scorer=scorer).cheapest_first()


def in_one_rack(ways: list[Reach]) -> Reach:
    return next(each for each in ways if each.multiples_L == (32, 32, 8))


def solved(scorer: Scorer, way: Reach, *, below_s: float = math.inf, work_limit_s: float = 10.0) -> Answer:
    return LinearModel(scorer, way, world_size=32).solve(below_s=below_s, work_limit_s=work_limit_s, seed=0)


def test_the_cheapest_nodes_of_one_rack_are_taken_where_the_gang_must_lie_in_one():
    tree = fleet(12, nodes_per_rack=6)
    dear = {each.id: NodeCosts(usd_per_hour=1.0 + (each.id in {"n0000", "n0003"})) for each in tree.nodes}
    scorer, ways = ways_of(problem_on(tree, node_costs=dear))
    answer = solved(scorer, in_one_rack(ways))
    assert [node for node, _ in answer.shares] in ([1, 2, 4, 5], [6, 7, 8, 9])
    assert sum(ranks for _, ranks in answer.shares) == 32


def test_of_alike_nodes_the_first_are_taken():
    scorer, ways = ways_of(problem_on(fleet(8)))
    assert solved(scorer, in_one_rack(ways)).shares == ((0, 8), (1, 8), (2, 8), (3, 8))


def test_nothing_below_what_was_asked_for_is_an_answer_and_not_a_failure():
    scorer, ways = ways_of(problem_on(fleet(8)))
    cost_s = solved(scorer, in_one_rack(ways)).bound_s
    none = solved(scorer, in_one_rack(ways), below_s=cost_s - 0.01)
    assert none.shares == ()
    assert none.bound_s == pytest.approx(cost_s - 0.01)


def test_without_time_the_bound_is_the_way_itself():
    scorer, ways = ways_of(problem_on(fleet(8)))
    answer = solved(scorer, ways[-1], work_limit_s=0.0)
    assert answer.shares == ()
    assert answer.bound_s == ways[-1].cost_s


def test_each_touched_domain_of_the_fastest_links_takes_as_many_as_the_way_asks_for():
    tree = replace(fleet(8), scale_up_level="rack")
    scorer, ways = ways_of(problem_on(tree))
    way = next(each for each in ways if each.multiples_L[1] == 8)
    answer = solved(scorer, replace(way, fewest=16))
    racks = [sum(ranks for node, ranks in answer.shares if node // 4 == rack) for rack in (0, 1)]
    assert all(ranks >= 16 for ranks in racks if ranks)
