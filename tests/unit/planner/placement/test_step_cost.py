from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.domain.topology import NetworkLevel, TopologyTree
from airflow_llmsched.planner.evaluate import step_seconds, total_s
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.placed_machine import PlacedMachine
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.step_cost import NOWHERE, StepCost
from tests.support.fleets import fleet, workload
from tests.support.models import MIXTRAL_8X7B

H100 = node_shape("p5.48xlarge")
LAYOUT = ParallelLayout(dp=4, tp=4, pp=2, num_micro_batches=64)
NETWORK = (
    NetworkLevel(level="rack", bandwidth_bytes_per_s=50e9),
    NetworkLevel(level="block", bandwidth_bytes_per_s=20e9),
    NetworkLevel(level=None, bandwidth_bytes_per_s=5e9),
)
LEVELS = ("block", "rack", "node")


def step_cost(layout: ParallelLayout = LAYOUT, tree: TopologyTree | None = None, **others: Any) -> StepCost:
    values: dict[str, Any] = {"workload": workload(), "shape": H100}
    problem = PlacementProblem(layout=layout, tree=tree or fleet(16), **(values | others))
    return StepCost(problem, levels=LEVELS, joined_depth=2)


def test_it_is_what_the_planner_predicts_where_nodes_are_full_and_rates_are_told() -> None:
    tree = replace(fleet(16), network=NETWORK)
    problem = PlacementProblem(layout=LAYOUT, tree=tree)
    placed = BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
    assert placed.kind == "placed"
    machine = PlacedMachine.on(placed.placement, tree=tree, shape=H100)
    table = LayoutTable.of([LAYOUT])
    predicted_s = float(total_s(step_seconds(workload(), table, machine), table)[0])

    cost = step_cost(tree=tree)
    nodes = NodeTable.of(tree, group_size=4)
    position = {node: number for number, node in enumerate(nodes.ids)}
    domain_LR = nodes.domain_LN[:, [position[slot.node] for slot in placed.placement.slots]]
    assert cost.step_s(cost.depths(domain_LR), fewest=8) == pytest.approx(predicted_s, rel=1e-3)


@pytest.mark.parametrize("network", [(), NETWORK])
@pytest.mark.parametrize("group", range(3))
def test_a_step_takes_no_less_time_when_groups_reach_further(network: tuple[NetworkLevel, ...], group: int) -> None:
    cost = step_cost(tree=replace(fleet(16), network=network))
    depths = [2] * len(cost.groups)
    seconds = []
    for depth in (2, 1, 0, NOWHERE):
        depths[group % len(depths)] = depth
        seconds.append(cost.step_s(tuple(depths), fewest=8))
    assert seconds == sorted(seconds)
    assert cost.best_s <= seconds[0]
    assert cost.step_s((NOWHERE,) * len(depths), fewest=8) > cost.best_s


def test_fewer_ranks_beside_one_another_share_fewer_network_cards() -> None:
    cost = step_cost(ParallelLayout(dp=32, num_micro_batches=8))
    seconds = [cost.step_s((1,) * len(cost.groups), fewest=fewest) for fewest in (8, 4, 2, 1)]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]


def test_groups_of_experts_are_looked_at_where_the_model_has_them() -> None:
    layout = ParallelLayout(dp=8, ep=8, pp=2, num_micro_batches=16)
    cost = step_cost(layout, workload=workload(MIXTRAL_8X7B))
    assert (1, 8) in cost.groups
    inside = tuple(2 if each == (1, 8) else 0 for each in cost.groups)
    assert cost.step_s(inside, fewest=8) < cost.step_s((0,) * len(cost.groups), fewest=8)


def test_depths_are_of_the_innermost_level_that_holds_each_group_whole() -> None:
    cost = step_cost(workload=None)
    assert cost.groups == ((1, 4), (4, 4), (16, 2))
    node_R = np.repeat(np.arange(4), 8)
    rack_R, block_R = node_R // 2, np.zeros(32, dtype=np.int64)
    assert cost.depths(np.stack([block_R, rack_R, node_R])) == (2, 1, 0)
    apart = np.stack([node_R // 2, rack_R, node_R])
    assert cost.depths(apart) == (2, 1, NOWHERE)


def test_without_a_workload_a_step_is_a_second_and_inner_groups_matter_more() -> None:
    cost = step_cost(workload=None)
    assert cost.best_s == 1.0
    tp, dp, pp = (cost.step_s(depths, fewest=8) for depths in ((1, 2, 2), (2, 1, 2), (2, 2, 1)))
    assert tp > dp > pp > 1.0


def test_a_kind_of_group_that_somebody_wished_for_is_looked_at_too() -> None:
    wish = PlacementWish(group=RankGroup.GANG, level="block", required=True)
    cost = step_cost(workload=None, wishes=(wish,))
    assert cost.groups[0] == (1, 4)
    assert (1, 32) in cost.groups
    depths = tuple(0 if each == (1, 32) else 2 for each in cost.groups)
    assert cost.depth_of(RankGroup.GANG, depths) == 0
    assert cost.depth_of(RankGroup.CP, depths) == 2
