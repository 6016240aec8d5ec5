from __future__ import annotations

import random

import numpy as np
import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import NodeCosts, NotPlaced, PlacementProblem
from airflow_llmsched.domain.workload import ObjectiveWeights
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.placement.front import Front, placement_front
from tests.support.every_placement import costs_of, front_by_trying_all, small_problem
from tests.support.fleets import fleet, gang, node, tree_of, workload


def front_of(problem: PlacementProblem) -> Front:
    front = placement_front(problem)
    assert isinstance(front, Front), front
    return front


def test_the_front_is_what_trying_all_placements_finds() -> None:
    chance = random.Random(17)
    sizes = []
    for _ in range(40):
        problem = small_problem(chance)
        expected, found = front_by_trying_all(problem), placement_front(problem)
        if isinstance(found, NotPlaced):
            assert not expected
            continue
        assert found.is_complete
        assert costs_of(found) == expected, problem
        sizes.append(len(expected))
    assert max(sizes) >= 4, "hardly anything to trade"
    assert len(sizes) > 15


def test_the_front_of_a_known_job_is_what_trying_all_finds() -> None:
    costs = {NodeId(f"n{number}"): NodeCosts(usd_per_hour=98.0 + 9 * number) for number in range(4)}
    problem = PlacementProblem(
        layout=ParallelLayout(dp=2, tp=4, pp=2, zero_stage=1, num_micro_batches=2),
        tree=tree_of(*(node(f"n{number}", path=("b", f"r{number % 2}"), free=8 - number) for number in range(4))),
        node_costs=costs, workload=workload(num_sequences=4), shape=node_shape("p5.48xlarge"),
    )  # fmt: skip
    assert costs_of(front_of(problem)) == front_by_trying_all(problem)


def cheap_but_far() -> PlacementProblem:
    """Two dear nodes in one rack, two cheap ones in racks of their own."""
    nodes = (
        node("a", path=("b", "r0")),
        node("b", path=("b", "r0")),
        node("c", path=("b", "r1")),
        node("d", path=("b", "r2")),
    )
    costs = {each.id: NodeCosts(usd_per_hour=3.0 if each.id in "ab" else 1.0) for each in nodes}
    return PlacementProblem(layout=gang(16, tp=8), tree=tree_of(*nodes), node_costs=costs)


def test_links_that_others_keep_busy_count_as_a_slower_step() -> None:
    costs = {NodeId(name): NodeCosts(usd_per_hour=1.0, busy_network_ratio=0.9) for name in "ab"}
    costs |= {NodeId(name): NodeCosts(usd_per_hour=1.1) for name in "cd"}
    tree = tree_of(*(node(name, path=("b", f"r{number // 2}")) for number, name in enumerate("abcd")))
    quiet, cheap = front_of(PlacementProblem(layout=gang(16, tp=8), tree=tree, node_costs=costs)).trade_offs
    assert (quiet.placement.nodes, cheap.placement.nodes) == (("c", "d"), ("a", "b"))
    assert quiet.throughput_s < cheap.throughput_s


def test_weights_choose_between_a_fast_step_and_a_low_price() -> None:
    front = front_of(cheap_but_far())
    assert front.best(ObjectiveWeights(throughput=1)).placement.nodes == ("a", "b")
    assert front.best(ObjectiveWeights(throughput=0, cost=1)).placement.nodes == ("c", "d")


def test_members_come_by_their_step_and_none_beats_another() -> None:
    costs_CK = np.array([each.costs_K for each in front_of(cheap_but_far()).trade_offs])
    assert costs_CK[:, 0].tolist() == sorted(costs_CK[:, 0].tolist())
    for one in range(len(costs_CK)):
        for other in range(len(costs_CK)):
            assert one == other or (costs_CK[one] < costs_CK[other]).any()


def test_a_front_with_too_many_ways_keeps_the_best_of_each_objective_and_says_that_it_is_not_complete() -> None:
    chance = random.Random(2)
    tree = fleet(8)
    costs = {
        each.id: NodeCosts(usd_per_hour=chance.uniform(1, 2), failures_per_hour=chance.uniform(0, 0.01))
        for each in tree.nodes
    }
    problem = PlacementProblem(layout=gang(24, tp=8), tree=tree, node_costs=costs)
    whole, few = front_of(problem), placement_front(problem, max_options=2)
    assert isinstance(few, Front)
    assert (whole.is_complete, few.is_complete) == (True, False)
    for k in range(5):
        least = min(each.costs_K[k] for each in few.trade_offs)
        assert least == pytest.approx(min(each.costs_K[k] for each in whole.trade_offs), rel=0.02, abs=0.02)


def test_a_gang_whose_groups_cannot_lie_as_required_is_refused_with_the_wish_to_drop() -> None:
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=True)
    refused = placement_front(PlacementProblem(layout=gang(40, tp=8), tree=fleet(8), wishes=(wish,)))
    assert isinstance(refused, NotPlaced)
    assert refused.relaxation == "allow level 'block' instead of 'rack' for dp groups"


def test_a_gang_without_room_is_refused() -> None:
    assert isinstance(placement_front(PlacementProblem(layout=gang(9), tree=fleet(1))), NotPlaced)
