"""Groups of ranks on real placements: the slowest group decides, and an even placement is the flat machine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.placed_machine import PlacedMachine
from airflow_llmsched.planner.perf.step import step_terms
from tests.support.fleets import fleet, job
from tests.support.models import LLAMA2_7B, MIXTRAL_8X7B

H100 = node_shape("p5.48xlarge")


def placement(*ranks_per_node: int) -> Placement:
    nodes = [(NodeId(f"n{number:04d}"), slot) for number, ranks in enumerate(ranks_per_node) for slot in range(ranks)]
    return Placement(
        slots=tuple(
            RankSlot(rank=rank, node=node, slot=slot, local_rank=slot) for rank, (node, slot) in enumerate(nodes)
        )
    )


def placed(*ranks_per_node: int, num_candidates: int = 1) -> PlacedMachine:
    return PlacedMachine.of(
        placement(*ranks_per_node), tree=fleet(len(ranks_per_node)), shape=H100, num_candidates=num_candidates
    )


def spans(machine: Machine, *groups: tuple[int, int]) -> list[tuple[int, int]]:
    stride_C, size_C = (np.array(column) for column in zip(*groups, strict=True))
    span = machine.span(stride_C=stride_C, size_C=size_C)
    return list(zip(span.domains_C.tolist(), span.members_C.tolist(), strict=True))


def test_full_nodes_are_the_flat_machine() -> None:
    groups = [(1, 8), (1, 16), (2, 4), (2, 16), (8, 4), (4, 2), (1, 1)]
    flat = Machine(shape=H100, ranks_per_node_C=np.full(len(groups), 8))
    assert spans(placed(8, 8, 8, 8, num_candidates=len(groups)), *groups) == spans(flat, *groups)


@pytest.mark.parametrize(
    "layout", [ParallelLayout(dp=4, tp=4, pp=2), ParallelLayout(dp=16, ep=8, cp=2), ParallelLayout(dp=32, zero_stage=3)]
)
def test_a_step_on_full_nodes_takes_what_the_flat_machine_says(layout: ParallelLayout) -> None:
    table, task = LayoutTable.of([layout]), job(MIXTRAL_8X7B)
    here, flat = placed(8, 8, 8, 8), Machine(shape=H100, ranks_per_node_C=np.array([8]))
    assert math.fsum(float(term[0]) for term in step_terms(task, table, here).values()) == pytest.approx(
        math.fsum(float(term[0]) for term in step_terms(task, table, flat).values())
    )


def test_the_group_that_is_spread_most_decides() -> None:
    """Of groups of four on nodes with 8, 6 and 2 ranks the last has two members on either side."""
    assert spans(placed(8, 6, 2), (1, 4), (1, 2), (8, 2)) == [(2, 2), (1, 2), (2, 1)]


def test_a_ragged_placement_slows_tensor_parallelism_that_whole_nodes_keep_inside() -> None:
    table, task = LayoutTable.of([ParallelLayout(dp=2, tp=8)]), job(LLAMA2_7B)
    whole, ragged = (
        step_terms(task, table, machine)["tensor_parallel"][0] for machine in (placed(8, 8), placed(6, 8, 2))
    )
    assert ragged > whole


def test_ranks_of_a_rack_with_one_switch_are_together_across_its_nodes() -> None:
    rack = node_shape("gb200-nvl72")
    tree = fleet(8, slots=4, shape=rack.name, nodes_per_rack=4)
    machine = PlacedMachine.of(placement(*[4] * 8), tree=tree, shape=rack)
    assert spans(machine, (1, 16)) == [(1, 16)]
    assert spans(machine, (1, 32)) == [(2, 16)]


def test_taking_candidates_keeps_the_placement() -> None:
    taken = placed(8, 8, num_candidates=3).take(np.array([0, 2]))
    assert taken.ranks_per_node_C.tolist() == [8, 8]
    assert taken.domain_R.tolist() == [0] * 8 + [1] * 8


def test_two_ranks_go_over_a_bridge_only_if_their_cards_have_one() -> None:
    shape = node_shape("h100-nvl-8x")

    def rate(*slots: int) -> float:
        ranks = tuple(
            RankSlot(rank=rank, node=NodeId("n0000"), slot=slot, local_rank=rank) for rank, slot in enumerate(slots)
        )
        machine = PlacedMachine.of(Placement(slots=ranks), tree=fleet(1), shape=shape)
        inner = machine.span(stride_C=np.array([1]), size_C=np.array([2])).inner
        return float(np.asarray(inner.bytes_per_s).ravel()[0]) / machine.reached.node_link_ratio

    assert rate(0, 1, 4, 5) == pytest.approx(3.0e11)
    assert rate(1, 2, 4, 5) == pytest.approx(6.3e10)
