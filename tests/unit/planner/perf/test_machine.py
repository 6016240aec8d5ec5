"""Which links a group of ranks spans on a flat machine."""

from __future__ import annotations

import numpy as np
import pytest

from airflow_llmsched.planner.perf.calibration import rates_of
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.rates import Rates

H100 = node_shape("p5.48xlarge")


def spans(*groups: tuple[int, int], ranks_per_node: int = 8) -> list[tuple[int, int]]:
    stride_C, size_C = (np.array(column) for column in zip(*groups, strict=True))
    machine = Machine(shape=H100, ranks_per_node_C=np.full(len(groups), ranks_per_node))
    span = machine.span(stride_C=stride_C, size_C=size_C)
    return list(zip(span.members_C.tolist(), span.domains_C.tolist(), strict=True))


def test_groups_fill_nodes_in_the_order_of_their_ranks() -> None:
    assert spans((1, 8), (1, 16), (2, 4), (2, 8), (8, 4)) == [(8, 1), (8, 2), (4, 1), (4, 2), (1, 4)]


def test_a_group_that_does_not_divide_its_node_straddles_the_end_of_one() -> None:
    assert spans((1, 4), ranks_per_node=6) == [(2, 2)]


def test_links_have_what_the_accelerators_rates_leave_of_them() -> None:
    rates = Rates(node_link_ratio=0.5, network_ratio=0.25, latency_ratio=2.0)
    machine = Machine(shape=H100, ranks_per_node_C=np.array([8]), rates=rates)
    assert machine.inner.bytes_per_s == 0.5 * H100.intra_node_bandwidth_bytes_per_s
    assert machine.outer.bytes_per_s == 0.25 * H100.inter_node_bandwidth_bytes_per_s
    assert machine.outer.latency_s == 2 * H100.inter_node_latency_s


def test_rates_are_those_of_the_accelerator_unless_given() -> None:
    machine = Machine(shape=H100, ranks_per_node_C=np.array([8, 4]))
    assert machine.reached == rates_of(H100.accelerator)
    assert machine.take(np.array([1])).ranks_per_node_C.tolist() == [4]


def test_a_rack_that_is_one_domain_joins_the_ranks_of_its_nodes() -> None:
    rack = node_shape("gb200-nvl72")
    machine = Machine(shape=rack, ranks_per_node_C=np.array([4, 2]))
    assert machine.domain_ranks_C.tolist() == [64, 2]
    span = machine.span(stride_C=np.array([1, 1]), size_C=np.array([32, 32]))
    assert span.domains_C.tolist() == [1, 16]
    assert machine.inner.reduces


def test_groups_within_a_bridged_pair_go_over_the_bridge_and_wider_ones_over_the_nodes_links() -> None:
    pairs = node_shape("h100-nvl-8x")
    machine = Machine(shape=pairs, ranks_per_node_C=np.full(3, 8), rates=Rates(node_link_ratio=0.5))
    span = machine.span(stride_C=np.array([1, 2, 1]), size_C=np.array([2, 2, 4]))
    assert np.asarray(span.inner.bytes_per_s).tolist() == [1.5e11, 3.15e10, 3.15e10]
    assert span.domains_C.tolist() == [1, 1, 1]
    odd = Machine(shape=pairs, ranks_per_node_C=np.array([3])).span(stride_C=np.array([1]), size_C=np.array([2]))
    assert odd.inner.bytes_per_s == machine.inner.bytes_per_s / 0.5 * rates_of(pairs.accelerator).node_link_ratio


def test_a_group_on_a_mesh_has_the_links_between_its_members_and_a_pair_one_of_them() -> None:
    """Eight accelerators with seven links each, of 64 GB/s."""
    mesh = node_shape("mi300x-8x")
    machine = Machine(shape=mesh, ranks_per_node_C=np.full(3, 8), rates=Rates(node_link_ratio=1.0))
    inner = machine.span(stride_C=np.array([1, 1, 4]), size_C=np.array([8, 4, 2])).inner
    assert np.asarray(inner.bytes_per_s).tolist() == pytest.approx([4.48e11, 1.92e11, 6.4e10])
    pair_bytes_per_s = np.asarray(inner.bytes_per_s) * np.asarray(inner.pair_ratio)
    assert pair_bytes_per_s.tolist() == pytest.approx([6.4e10] * 3)


@pytest.mark.parametrize(("name", "links"), [("ct5lp-hightpu-4t", 4), ("ct5p-hightpu-4t", 6), ("p5.48xlarge", 1)])
def test_neighbours_on_a_torus_have_one_link_of_a_chip_and_those_at_a_switch_all(name: str, links: int) -> None:
    machine = Machine(shape=node_shape(name), ranks_per_node_C=np.array([4]))
    farthest = machine.span(stride_C=np.array([1]), size_C=np.array([2])).farthest
    assert float(np.asarray(farthest.pair_ratio).ravel()[0]) == pytest.approx(1 / links)
