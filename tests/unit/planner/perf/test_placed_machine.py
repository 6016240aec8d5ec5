"""Groups of ranks on real placements: the slowest group decides, and an even placement is the flat machine."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.hardware import NodeShape, Transport
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.topology import NetworkFacts, NetworkLevel, TopologyTree
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.network_levels import HOP_S
from airflow_llmsched.planner.perf.placed_machine import Domains, PlacedMachine, Spread, Terrain
from airflow_llmsched.planner.perf.step import step_terms
from tests.support.fleets import fleet, job
from tests.support.models import LLAMA2_7B, MIXTRAL_8X7B

H100 = node_shape("p5.48xlarge")
RACK = node_shape("gb200-nvl72")


def placement(*ranks_per_node: int) -> Placement:
    nodes = [(NodeId(f"n{number:04d}"), slot) for number, ranks in enumerate(ranks_per_node) for slot in range(ranks)]
    return Placement(
        slots=tuple(
            RankSlot(rank=rank, node=node, slot=slot, local_rank=slot) for rank, (node, slot) in enumerate(nodes)
        )
    )


def placed(*ranks_per_node: int, tree: TopologyTree | None = None, shape: NodeShape = H100) -> PlacedMachine:
    return PlacedMachine.on(placement(*ranks_per_node), tree=tree or fleet(len(ranks_per_node)), shape=shape)


def spans(machine: Machine, *groups: tuple[int, int]) -> list[tuple[int, int]]:
    stride_C, size_C = (np.array(column) for column in zip(*groups, strict=True))
    span = machine.take(np.zeros(len(groups), dtype=np.int64)).span(stride_C=stride_C, size_C=size_C)
    return list(zip(span.domains_C.tolist(), span.members_C.tolist(), strict=True))


def network_rate(machine: PlacedMachine, stride: int, size: int) -> float:
    """Return the rate between domains as stated, what collectives do not reach of it put back."""
    span = machine.span(stride_C=np.array([stride]), size_C=np.array([size]))
    return float(np.asarray(span.outer.bytes_per_s).ravel()[0]) / machine.reached.network_ratio


def test_full_nodes_are_the_flat_machine() -> None:
    groups = [(1, 8), (1, 16), (2, 4), (2, 16), (8, 4), (4, 2), (1, 1)]
    flat = Machine(shape=H100, ranks_per_node_C=np.full(1, 8))
    assert spans(placed(8, 8, 8, 8), *groups) == spans(flat, *groups)


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


def test_candidates_on_several_placements_are_each_priced_on_its_own() -> None:
    terrain = Terrain(fleet(3), H100)
    grounds = [terrain.ground(placement(*ranks)) for ranks in ((8, 8), (6, 8, 2))]
    table = LayoutTable.of([ParallelLayout(dp=2, tp=8)] * 3)
    together = step_terms(job(), table, PlacedMachine.of(terrain, grounds, np.array([1, 0, 1])))["tensor_parallel"]
    whole, ragged = (
        step_terms(job(), table.take(np.array([0])), machine)["tensor_parallel"][0]
        for machine in (placed(8, 8), placed(6, 8, 2))
    )
    assert together.tolist() == [ragged, whole, ragged]


def test_ranks_of_a_rack_with_one_switch_are_together_across_its_nodes() -> None:
    tree = fleet(8, slots=4, shape=RACK.name, nodes_per_rack=4)
    joined = placed(*[4] * 8, tree=replace(tree, scale_up_level="rack"), shape=RACK)
    assert spans(joined, (1, 16), (1, 32)) == [(1, 16), (2, 16)]
    assert joined.domain_ranks_C.tolist() == [16]
    silent = placed(*[4] * 8, tree=tree, shape=RACK)
    assert spans(silent, (1, 16)) == [(4, 4)]


def test_taking_candidates_keeps_each_on_its_placement() -> None:
    terrain = Terrain(fleet(2), H100)
    grounds = [terrain.ground(placement(8, 8)), terrain.ground(placement(4, 8))]
    taken = PlacedMachine.of(terrain, grounds, np.array([0, 1, 0])).take(np.array([1, 2]))
    assert taken.ranks_per_node_C.tolist() == [4, 8]
    assert taken.ground_C.tolist() == [1, 0]


def test_two_ranks_go_over_a_bridge_only_if_their_cards_have_one() -> None:
    shape = node_shape("h100-nvl-8x")

    def rate(*slots: int) -> float:
        ranks = tuple(
            RankSlot(rank=rank, node=NodeId("n0000"), slot=slot, local_rank=rank) for rank, slot in enumerate(slots)
        )
        machine = PlacedMachine.on(Placement(slots=ranks), tree=fleet(1), shape=shape)
        inner = machine.span(stride_C=np.array([1]), size_C=np.array([2])).inner
        return float(np.asarray(inner.bytes_per_s).ravel()[0]) / machine.reached.node_link_ratio

    assert rate(0, 1, 4, 5) == pytest.approx(3.0e11)
    assert rate(1, 2, 4, 5) == pytest.approx(6.3e10)


def test_a_group_goes_at_the_rate_of_the_slowest_level_that_it_spans() -> None:
    """Racks of two nodes, blocks of two racks: 40 GB/s in a rack, 20 in a block, 5 between blocks."""
    told = (("rack", 4e10), ("block", 2e10), (None, 5e9))
    network = tuple(NetworkLevel(level=level, bandwidth_bytes_per_s=rate) for level, rate in told)
    tree = replace(fleet(8, nodes_per_rack=2), network=network)
    machine = placed(*[8] * 8, tree=tree)
    assert network_rate(machine, 8, 2) == pytest.approx(4e10)
    assert network_rate(machine, 8, 4) == pytest.approx(2e10)
    assert network_rate(machine, 1, 64) == pytest.approx(5e9)


def on_slots(*slots_of_nodes: tuple[int, ...]) -> Placement:
    seats = [(number, slot, local) for number, slots in enumerate(slots_of_nodes) for local, slot in enumerate(slots)]
    return Placement(
        slots=tuple(
            RankSlot(rank=rank, node=NodeId(f"n{node:04d}"), slot=slot, local_rank=local)
            for rank, (node, slot, local) in enumerate(seats)
        )
    )


def railed(num_rails: int) -> TopologyTree:
    network = tuple(
        NetworkLevel(level=level, bandwidth_bytes_per_s=rate) for level, rate in (("rack", 4e10), ("block", 1e10))
    )
    return replace(fleet(4, nodes_per_rack=4), network=network, facts=NetworkFacts(num_rails=num_rails))


def test_groups_on_the_same_rails_of_every_node_stay_below_the_leaves() -> None:
    machine = PlacedMachine.on(placement(8, 8), tree=railed(8), shape=H100)
    for group in ((8, 2), (1, 16), (2, 8), (4, 4)):
        assert network_rate(machine, *group) == pytest.approx(4e10)


def test_groups_on_other_rails_meet_one_level_farther_up_and_later() -> None:
    apart = on_slots((0, 1, 2, 3), (4, 5, 6, 7))
    crossing = PlacedMachine.on(apart, tree=railed(8), shape=H100)
    assert network_rate(crossing, 4, 2) == pytest.approx(1e10)
    same = PlacedMachine.on(apart, tree=railed(4), shape=H100)
    assert network_rate(same, 4, 2) == pytest.approx(4e10)
    latencies = [
        float(np.asarray(each.span(stride_C=np.array([4]), size_C=np.array([2])).outer.latency_s).ravel()[0])
        for each in (same, crossing)
    ]
    assert latencies[1] - latencies[0] == pytest.approx(HOP_S)


def test_without_rails_slots_do_not_matter() -> None:
    machine = PlacedMachine.on(on_slots((0, 1), (4, 5)), tree=railed(1), shape=H100)
    assert network_rate(machine, 2, 2) == pytest.approx(4e10)


def test_a_network_may_be_moved_by_others_than_the_shape_says() -> None:
    tree = replace(fleet(2), facts=NetworkFacts(transport=Transport.DPU))
    assert PlacedMachine.on(placement(8, 8), tree=tree, shape=H100).shape.inter_node.transport is Transport.DPU
    assert PlacedMachine.on(placement(8, 8), tree=fleet(2), shape=H100).shape == H100


def test_a_level_that_nothing_is_known_of_has_the_rate_of_the_cards_and_none_that_is_stated_has_more() -> None:
    cards = H100.inter_node_bandwidth_bytes_per_s
    tree = replace(fleet(8, nodes_per_rack=2), network=(NetworkLevel(level="rack", bandwidth_bytes_per_s=9e12),))
    machine = placed(*[8] * 8, tree=tree)
    assert network_rate(machine, 8, 2) == pytest.approx(cards)
    assert network_rate(machine, 1, 64) == pytest.approx(cards)


def test_a_measured_level_is_taken_as_it_was_measured() -> None:
    level = NetworkLevel(level="rack", bandwidth_bytes_per_s=4.8e10, is_measured=True)
    machine = placed(8, 8, tree=replace(fleet(2), network=(level,)))
    assert network_rate(machine, 8, 2) * machine.reached.network_ratio == pytest.approx(4.8e10)


@st.composite
def ranks_in_groups(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Domains of equal or of any size, which hold a whole number of groups between them; their stride and size."""
    stride, size = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    num_ranks = stride * size * draw(st.integers(1, 3))
    if draw(st.booleans()):
        ranks = draw(st.sampled_from([each for each in range(1, num_ranks + 1) if num_ranks % each == 0]))
        return [ranks] * (num_ranks // ranks), stride, size
    cuts = sorted(draw(st.sets(st.integers(1, num_ranks), max_size=5)) | {num_ranks})
    return [end - begin for begin, end in pairwise([0, *cuts])], stride, size


@given(drawn=ranks_in_groups())
def test_what_is_said_of_a_group_is_what_looking_at_each_finds(drawn: tuple[list[int], int, int]) -> None:
    ranks, stride, size = drawn
    domain_R = np.repeat(np.arange(len(ranks)), ranks)
    groups = [
        domain_R[first : first + stride * size : stride].tolist()
        for block in range(0, len(domain_R), stride * size)
        for first in range(block, block + stride)
    ]
    most = max(len(set(group)) for group in groups)
    fewest = min(min(map(group.count, group)) for group in groups if len(set(group)) == most)
    assert Domains.of(domain_R).spread(stride=stride, size=size) == Spread(num_domains=most, num_members=fewest)


def test_most_domains_say_how_many_ranks_are_usual() -> None:
    assert Domains.of(np.repeat(np.arange(4), (8, 8, 8, 3))).usual == 8
    assert Domains.of(np.repeat(np.arange(4), (8, 8, 3, 3))).usual == 8
    assert Domains.of(np.repeat(np.arange(4), (8, 8, 8, 3))).fewest == 3
