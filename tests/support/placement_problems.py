"""Small placement problems drawn at random, with costs, and the best there is for them by trying all."""

from __future__ import annotations

import random
from itertools import permutations

import numpy as np

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NodeCosts, PlacementProblem
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import ObjectiveWeights
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.testing.solver_contract import solutions
from tests.support.fleets import workload


def costly_problem(chance: random.Random, *, max_nodes: int, is_told: bool = False) -> PlacementProblem:
    """Return a problem whose nodes differ in price, risk and data; with a workload where ``is_told``."""
    nodes = tuple(_node(chance, number) for number in range(chance.randint(2, max_nodes)))
    tp, pp, dp = chance.choice([1, 2, 4]), chance.choice([1, 2]), chance.randint(1, 5)
    return PlacementProblem(
        layout=ParallelLayout(dp=dp, tp=tp, pp=pp, num_micro_batches=4 * pp),
        tree=TopologyTree(levels=("block", "rack"), nodes=nodes, scale_up_level=chance.choice([None, None, "rack"])),
        preferred_level=chance.choice([None, "rack", "block"]),
        weights=ObjectiveWeights(
            cost=chance.choice([0, 1]), fairness=chance.choice([0, 0, 0.5]), reliability=chance.choice([0, 1])
        ),
        node_costs={each.id: _costs(chance) for each in nodes},
        workload=workload(num_sequences=dp * 4 * pp) if is_told else None,
        shape=node_shape("p5.48xlarge") if is_told else None,
    )


def _node(chance: random.Random, number: int) -> TopologyNode:
    free = tuple(sorted(chance.sample(range(4), chance.choice([1, 2, 3, 4, 4, 4]))))
    path = (f"b{chance.randint(0, 1)}", f"r{chance.randint(0, 2)}")
    return TopologyNode(
        id=NodeId(f"n{number}"), path=path, shape="p5.48xlarge", num_slots=4, num_free_slots=len(free), free_slots=free
    )


def _costs(chance: random.Random) -> NodeCosts:
    return NodeCosts(
        usd_per_hour=chance.choice([8, 10, 20, 30]),
        failures_per_hour=chance.choice([0, 0.01, 0.1]),
        missing_data_bytes=chance.choice([0, 0, 10**13]),
        busy_network_ratio=chance.choice([0, 0, 0.5]),
    )


def best_score_s(problem: PlacementProblem, scorer: Scorer) -> float | None:
    """Return the least score of all spreads of ranks over nodes, in all orders of nodes; None where none is allowed."""
    position = {node: number for number, node in enumerate(scorer.table.ids)}
    scores = []
    for takes in solutions(problem):
        for order in permutations((position[node], ranks) for node, ranks in takes.items()):
            nodes_P, ranks_P = (np.array(column) for column in zip(*order, strict=True))
            if scorer.keeps_required(scorer.depths(nodes_P, ranks_P)):
                scores.append(scorer.total_s(nodes_P, ranks_P))
    return min(scores, default=None)
