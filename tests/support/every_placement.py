"""Every placement of a small gang, in every order of its nodes, by trying all: what exact answers are compared with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import numpy as np

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import NodeCosts, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import ObjectiveWeights
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.placement.front import Front, objectives
from airflow_llmsched.planner.placement.rank_map import map_ranks
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.testing.solver_contract import solutions
from tests.support.fleets import node

Points = set[tuple[float, ...]]
"""What placements cost in each objective."""

JUDGING = ObjectiveWeights(cost=1, fairness=1, reliability=1)


def every_placement(problem: PlacementProblem, scorer: Scorer) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield nodes by position in the order of ranks, and the ranks on each, of all placements that are allowed."""
    position = {name: number for number, name in enumerate(scorer.table.ids)}
    domain_N = scorer.table.domain_LN[scorer.table.group_depth]
    for takes in solutions(problem):
        for order in permutations(takes):
            nodes_P, ranks_P = np.array([position[name] for name in order]), np.array([takes[name] for name in order])
            group_domains = domain_N[np.repeat(nodes_P, ranks_P)].reshape(-1, problem.layout.tp)
            is_joined = bool((group_domains == group_domains[:, :1]).all())
            if is_joined and scorer.keeps_required(scorer.depths(nodes_P, ranks_P)):
                yield nodes_P, ranks_P


def front_by_trying_all(problem: PlacementProblem) -> Points:
    """Return the costs of every placement that no other beats or equals in all, without any code of ours for fronts."""
    scorer = Scorer(replace(problem, weights=JUDGING))
    points: Points = set()
    for nodes_P, ranks_P in every_placement(problem, scorer):
        shares = list(zip(nodes_P.tolist(), ranks_P.tolist(), strict=True))
        points.add(_rounded(objectives(scorer.score(map_ranks(scorer.table, shares)))))
    return {each for each in points if not any(all(map(float.__le__, o, each)) and o != each for o in points)}


def costs_of(front: Front) -> Points:
    """Return the costs of a front, as :func:`front_by_trying_all` does."""
    return {_rounded(each.costs_K) for each in front.trade_offs}


def small_problem(chance: random.Random) -> PlacementProblem:
    """Return a gang on three or four nodes of four slots, with levels, wishes, weights and costs drawn by chance."""
    paths = [(f"b{chance.randint(0, 1)}", f"r{chance.randint(0, 1)}") for _ in range(chance.randint(3, 4))]
    nodes = tuple(
        node(f"n{number}", path=path, slots=4, free=chance.choice([4, 4, 2, 3])) for number, path in enumerate(paths)
    )
    costs = {
        each.id: NodeCosts(
            usd_per_hour=chance.choice([1.0, 2.0]), failures_per_hour=chance.choice([0.0, 0.1]),
            missing_data_bytes=chance.choice([0, 10**12]), busy_network_ratio=chance.choice([0.0, 0.0, 0.5]),
        )
        for each in nodes
    }  # fmt: skip
    layout = ParallelLayout(
        dp=chance.choice([1, 2, 3]), tp=chance.choice([1, 2]), pp=chance.choice([1, 2]), cp=chance.choice([1, 1, 2])
    )
    groups = chance.sample([RankGroup.PP, RankGroup.DP, RankGroup.CP], chance.randint(0, 2))
    return PlacementProblem(
        layout=layout,
        tree=TopologyTree(levels=("block", "rack"), nodes=nodes, scale_up_level=chance.choice([None, "rack"])),
        preferred_level=chance.choice([None, "block", "rack"]),
        wishes=tuple(PlacementWish(group=each, level="rack", required=chance.random() < 0.5) for each in groups),
        weights=ObjectiveWeights(cost=chance.choice([0, 1]), fairness=chance.choice([0, 3])),
        node_costs=costs if chance.random() < 0.5 else {},
    )


def _rounded(costs: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(round(float(each), 10) + 0.0 for each in costs)
