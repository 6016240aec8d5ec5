from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.hardware import Transport
from airflow_llmsched.domain.layout import ParallelLayout, RankGroup
from airflow_llmsched.domain.placement import Placed, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.placed_machine import PlacedMachine
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.spans import group_spans
from tests.support.fleets import fleet


def machine(layout: ParallelLayout, tree: TopologyTree) -> PlacedMachine:
    problem = PlacementProblem(layout=layout, tree=tree)
    placed = BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
    assert isinstance(placed, Placed)
    return PlacedMachine.on(placed.placement, tree=tree, shape=node_shape(tree.nodes[0].shape))


def test_each_group_says_where_its_ranks_are_and_what_they_talk_over() -> None:
    layout = ParallelLayout(dp=8, tp=4, pp=2)
    tensor, data, stages = group_spans(layout, machine(layout, fleet(8)))
    assert [each.group for each in (tensor, data, stages)] == [RankGroup.TP, RankGroup.DP, RankGroup.PP]
    shape = node_shape("p5.48xlarge")
    assert (tensor.num_ranks, tensor.num_nodes, tensor.level, tensor.fabric) == (4, 1, "node", shape.intra_node.name)
    assert (data.num_nodes, data.level, data.fabric, data.transport) == (4, "rack", "efa2", Transport.DPU)
    assert (stages.num_nodes, stages.level) == (2, "block")
    assert tensor.reduces
    assert not data.reduces


def test_a_group_across_the_nodes_of_a_rack_goes_over_its_links() -> None:
    layout = ParallelLayout(dp=2, tp=16)
    tree = replace(fleet(8, slots=4, shape="gb200-nvl72", nodes_per_rack=4), scale_up_level="rack")
    tensor, data = group_spans(layout, machine(layout, tree))
    assert (tensor.num_nodes, tensor.level, tensor.fabric) == (4, "rack", "nvswitch4")
    assert tensor.reduces
    assert data.fabric == node_shape("gb200-nvl72").inter_node.name


def test_a_group_that_no_domain_holds_has_no_level() -> None:
    layout = ParallelLayout(dp=32)
    (data,) = group_spans(layout, machine(layout, fleet(4, nodes_per_rack=1, racks_per_block=1)))
    assert (data.num_nodes, data.level) == (4, None)
    rate = machine(layout, fleet(4)).span(stride_C=np.array([1]), size_C=np.array([32])).outer.bytes_per_s
    assert data.bytes_per_s == pytest.approx(float(rate))
