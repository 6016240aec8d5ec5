from __future__ import annotations

import random

import numpy as np
import pytest

from airflow_llmsched.domain.placement import NodeCosts, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import ObjectiveWeights
from airflow_llmsched.planner.placement.fill import best_fit, dearness
from airflow_llmsched.planner.placement.regimes import loosest, regimes
from airflow_llmsched.planner.placement.score import Scorer
from tests.support.fleets import fleet, gang, node, tree_of
from tests.support.placement_problems import costly_problem


def nodes_of(tree: TopologyTree, num_ranks: int, **others: object) -> dict[str, int]:
    problem = PlacementProblem(layout=gang(num_ranks), tree=tree, **others)  # type: ignore[arg-type]
    scorer = Scorer(problem)
    way = loosest(problem, scorer.table)
    assert way is not None
    dear = dearness(scorer.table, scorer.sums, way) if problem.node_costs else None
    shares = best_fit(scorer.table, way, dearness_LD=dear)
    assert shares is not None
    return {scorer.table.ids[place]: ranks for place, ranks in zip(*map(np.ndarray.tolist, shares), strict=True)}


@pytest.mark.parametrize("seed", range(20))
def test_shares_fit_add_up_and_keep_multiples(seed: int) -> None:
    problem = costly_problem(random.Random(seed), max_nodes=8)
    scorer = Scorer(problem)
    for way in regimes(problem, scorer.table, scorer.step.groups):
        for dear in (None, dearness(scorer.table, scorer.sums, way)):
            shares = best_fit(scorer.table, way, dearness_LD=dear)
            assert shares is not None
            nodes_P, ranks_P = shares
            assert int(ranks_P.sum()) == problem.layout.world_size
            assert len(set(nodes_P.tolist())) == len(nodes_P)
            assert (ranks_P <= scorer.table.capacity_N[nodes_P]).all()
            for depth, multiple in enumerate(way.multiples):
                taken_D = np.bincount(scorer.table.domain_LN[depth, nodes_P], weights=ranks_P)
                assert not (taken_D % multiple).any()


def test_a_gang_goes_to_the_smallest_domain_that_holds_it() -> None:
    tree = tree_of(
        *(node(f"a{number}", path=("b0", "r0")) for number in range(4)),
        *(node(f"b{number}", path=("b0", "r1"), free=8 if number < 2 else 0) for number in range(4)),
    )
    assert nodes_of(tree, 16) == {"b0": 8, "b1": 8}
    assert nodes_of(tree, 12) == {"b0": 8, "b1": 4}


def test_of_equal_domains_it_goes_to_one_in_a_block_that_is_in_use() -> None:
    tree = tree_of(
        *(node(f"a{number}", path=("b0", f"r{number}")) for number in range(3)),
        *(node(f"b{number}", path=("b1", f"r{number}"), free=8 if number else 0) for number in range(3)),
    )
    assert nodes_of(tree, 8) == {"b1": 8}


def test_the_cheapest_go_first_where_costs_are_asked_for() -> None:
    costs = {each.id: NodeCosts(usd_per_hour=9.0 if each.id < "n0008" else 1.0) for each in fleet(16).nodes}
    found = nodes_of(fleet(16), 40, node_costs=costs, weights=ObjectiveWeights(throughput=0, cost=1))
    assert min(found) >= "n0008"


def test_without_room_there_are_no_shares() -> None:
    problem = PlacementProblem(layout=gang(65), tree=fleet(16), required_level="block")
    scorer = Scorer(problem)
    way = loosest(problem, scorer.table)
    assert way is not None
    assert best_fit(scorer.table, way) is None
