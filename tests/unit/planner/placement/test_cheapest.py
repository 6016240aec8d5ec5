from __future__ import annotations

import random

import numpy as np
import pytest

from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.planner.placement.cheapest import Shares, cheapest_shares, num_operations
from airflow_llmsched.planner.placement.regimes import Regime, regimes
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.testing.solver_contract import solutions
from tests.support.fleets import fleet, gang
from tests.support.placement_problems import costly_problem


def keeps(scorer: Scorer, way: Regime, fewest: int, shares: Shares) -> bool:
    for depth, multiple in enumerate(way.multiples):
        ranks_D = np.bincount(scorer.table.domain_LN[depth, shares.nodes_P], weights=shares.ranks_P)
        ranks_D = ranks_D[ranks_D > 0]
        if (ranks_D % multiple).any() or (depth == scorer.joined_depth and (ranks_D < fewest).any()):
            return False
    return way.max_on_node is None or bool((shares.ranks_P == way.max_on_node).all())


@pytest.mark.parametrize("seed", range(25))
def test_no_shares_that_keep_a_regime_are_cheaper(seed: int) -> None:
    chance = random.Random(seed)
    problem = costly_problem(chance, max_nodes=6)
    scorer = Scorer(problem)
    position = {node: number for number, node in enumerate(scorer.table.ids)}
    every = [
        Shares(np.array([position[node] for node in takes]), np.array(list(takes.values())))
        for takes in solutions(problem)
    ]
    found = list(regimes(problem, scorer.table, scorer.step.groups))
    for way in chance.sample(found, min(len(found), 8)):
        fewest = chance.choice([1, way.multiples[scorer.joined_depth], 3])
        best = cheapest_shares(scorer.table, scorer.sums, way, fewest=fewest, joined_depth=scorer.joined_depth)
        costs = [
            scorer.sums.total_s(scorer.table.domain_LN, *shares)
            for shares in every
            if keeps(scorer, way, fewest, shares)
        ]
        if best is None:
            assert costs == []
            continue
        cost_s, shares = best
        assert cost_s == pytest.approx(min(costs))
        assert cost_s == pytest.approx(scorer.sums.total_s(scorer.table.domain_LN, *shares))
        assert keeps(scorer, way, fewest, shares)
        assert int(shares.ranks_P.sum()) == problem.layout.world_size


def test_the_effort_is_foreseen_to_grow_with_the_gang_and_the_fleet() -> None:
    efforts = []
    for num_ranks, num_nodes in ((8, 16), (64, 16), (64, 64)):
        problem = PlacementProblem(layout=gang(num_ranks), tree=fleet(num_nodes))
        scorer = Scorer(problem)
        efforts.append(num_operations(scorer.table, next(regimes(problem, scorer.table, scorer.step.groups))))
    assert 0 < efforts[0] < efforts[1] < efforts[2]
