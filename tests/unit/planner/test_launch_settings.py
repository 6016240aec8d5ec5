from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placed, Placement, PlacementProblem, RankSlot
from airflow_llmsched.domain.topology import NetworkFacts, TopologyTree
from airflow_llmsched.planner.launch_settings import gradient_group, launch_settings
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.placed_machine import PlacedMachine
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from tests.support.fleets import fleet

INFINIBAND = "dgx-h100"


def names(layout: ParallelLayout, tree: TopologyTree) -> list[str]:
    problem = PlacementProblem(layout=layout, tree=tree)
    placed = BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
    assert isinstance(placed, Placed)
    machine = PlacedMachine.on(placed.placement, tree=tree, shape=node_shape(tree.nodes[0].shape))
    return [each.name for each in launch_settings(layout, machine)]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (ParallelLayout(dp=32), ["NCCL_COLLNET_ENABLE"]),
        (ParallelLayout(dp=32, zero_stage=1), []),
        (ParallelLayout(dp=32, zero_stage=3, shard_size=8), ["NCCL_COLLNET_ENABLE"]),
        (ParallelLayout(dp=8), []),
    ],
)
def test_switches_are_told_to_add_up_what_is_all_reduced_over_the_network(
    layout: ParallelLayout, expected: list[str]
) -> None:
    tree = fleet(4, shape=INFINIBAND)
    assert names(layout, replace(tree, switches_reduce=True)) == expected
    assert names(layout, tree) == []


def test_switches_that_cannot_add_up_are_not_told_to() -> None:
    assert names(ParallelLayout(dp=32), replace(fleet(4), switches_reduce=True)) == []


def test_nodes_that_nvlink_must_join_are_told_to_fail_rather_than_take_the_network() -> None:
    tree = replace(fleet(8, slots=4, shape="gb200-nvl72"), scale_up_level="rack")
    assert names(ParallelLayout(dp=1, tp=16), tree) == ["NCCL_MNNVL_ENABLE"]
    assert names(ParallelLayout(dp=4, tp=4), tree) == []


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (NetworkFacts(num_rails=8), {"NCCL_CROSS_NIC": "0"}),
        (NetworkFacts(traffic_class=106), {"NCCL_IB_TC": "106"}),
        (NetworkFacts(service_level=1), {"NCCL_IB_SL": "1"}),
        (NetworkFacts(), {}),
    ],
)
def test_gangs_on_a_network_are_told_of_its_rails_and_classes(facts: NetworkFacts, expected: dict[str, str]) -> None:
    tree = replace(fleet(2, shape=INFINIBAND), facts=facts)
    assert told(on_nodes(tree, (0, 1), (0, 1)), tree) == expected
    assert told(on_nodes(tree, (0, 1, 2, 3)), tree) == {}


def test_groups_that_lie_on_different_rails_may_cross_them() -> None:
    tree = replace(fleet(2, shape=INFINIBAND), facts=NetworkFacts(num_rails=8))
    assert told(on_nodes(tree, (0, 1), (2, 3)), tree) == {"NCCL_CROSS_NIC": "1"}


def on_nodes(tree: TopologyTree, *slots_of_nodes: tuple[int, ...]) -> Placement:
    seats = [
        (node.id, slot, local)
        for node, slots in zip(tree.nodes, slots_of_nodes, strict=False)
        for local, slot in enumerate(slots)
    ]
    slots = (
        RankSlot(rank=rank, node=node, slot=slot, local_rank=local) for rank, (node, slot, local) in enumerate(seats)
    )
    return Placement(slots=tuple(slots))


def told(placement: Placement, tree: TopologyTree) -> dict[str, str]:
    machine = PlacedMachine.on(placement, tree=tree, shape=node_shape(INFINIBAND))
    return {each.name: each.value for each in launch_settings(ParallelLayout(dp=placement.world_size), machine)}


def test_gradients_are_added_up_over_all_replicas_or_over_the_copies_of_a_shard() -> None:
    assert gradient_group(ParallelLayout(dp=8, cp=2, tp=4)) == (4, 16)
    assert gradient_group(ParallelLayout(dp=8, cp=2, tp=4, zero_stage=1, shard_size=4)) == (16, 4)
    assert gradient_group(ParallelLayout(dp=8, cp=2, tp=4, zero_stage=1)) == (64, 1)
