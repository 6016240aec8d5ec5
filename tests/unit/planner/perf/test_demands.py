from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.hardware import Host
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.workload import MemoryDemand, TrafficDemand, WorkloadSpec
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.demands import Shortage, demand_memory_terms, demand_step_terms, shortage_outside
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.units import GIB
from tests.support.fleets import workload

SHAPE = node_shape("p4de.24xlarge")
TABLE = LayoutTable.of([ParallelLayout(dp=16)])
MACHINE = Machine(shape=SHAPE, ranks_per_node_C=np.array([8]))
NETWORK = MACHINE.outer.bytes_per_s


def seconds(**demand: object) -> float:
    values: dict[str, object] = {"group": "trainer", "group_size": 16, "collective": "all_reduce"}
    traffic = TrafficDemand(**(values | {"bytes_per_step": 10**9} | demand))  # type: ignore[arg-type]
    return float(sum(demand_step_terms(workload(None, communication=(traffic,)), TABLE, MACHINE).values())[0])


def test_only_bytes_in_the_accelerators_memory_count_against_it() -> None:
    run = workload(
        None, memory=(MemoryDemand(tier="hbm", bytes_per_rank=GIB), MemoryDemand(tier="host", bytes_per_rank=9 * GIB))
    )
    terms = demand_memory_terms(run, TABLE, reserved_bytes=5)
    assert {name: values.tolist() for name, values in terms.items()} == {"stated": [GIB], "runtime": [5]}


def stating(**bytes_per_rank: int) -> WorkloadSpec:
    memory = (MemoryDemand(tier=tier, bytes_per_rank=number) for tier, number in bytes_per_rank.items())
    return workload(None, memory=tuple(memory))


def test_a_rank_has_no_more_of_a_node_than_its_accelerators_share() -> None:
    share, disk = SHAPE.host.memory_bytes // 8, SHAPE.host.disk_bytes // 8
    assert shortage_outside(stating(host=share, nvme=disk, hbm=1 << 50), SHAPE) is None
    short = shortage_outside(stating(host=share + 5, nvme=disk + 2), SHAPE)
    assert short == Shortage(tier="host", num_bytes=share + 5, share_bytes=share)
    assert short.missing_bytes == 5
    assert shortage_outside(stating(nvme=disk + 2), SHAPE) == Shortage(
        tier="nvme", num_bytes=disk + 2, share_bytes=disk
    )


def test_what_nobody_states_of_a_node_limits_nothing() -> None:
    assert shortage_outside(stating(host=1 << 50), replace(SHAPE, host=Host())) is None


def test_an_all_reduce_over_two_nodes_uses_all_cards_of_a_node() -> None:
    hops_s = 2 * (14 * MACHINE.inner.latency_s + MACHINE.outer.latency_s)
    crossing_s = 2 * max(10**9 / 2 / (8 * NETWORK), 15 / 16 * 10**9 / MACHINE.inner.bytes_per_s)
    assert seconds() == pytest.approx(hops_s + crossing_s)


def test_each_collective_has_its_own_cost() -> None:
    assert seconds(collective="all_gather") == pytest.approx(seconds() / 2)
    assert seconds(collective="reduce_scatter") == seconds(collective="all_gather")
    assert seconds(collective="send") == pytest.approx(MACHINE.outer.latency_s + 10**9 / NETWORK)


def test_a_group_of_one_moves_nothing() -> None:
    assert seconds(group_size=1) == 0
    assert seconds(group_size=1, collective="send") == 0


def test_traffic_to_another_group_crosses_the_network() -> None:
    assert seconds(peer_group="server", collective="send") == pytest.approx(MACHINE.outer.latency_s + 10**9 / NETWORK)


def test_two_demands_of_one_group_and_collective_add_up() -> None:
    demand = TrafficDemand(group="trainer", group_size=16, collective="all_reduce", bytes_per_step=10**9)
    terms = demand_step_terms(workload(None, communication=(demand, demand)), TABLE, MACHINE)
    assert {name: float(values[0]) for name, values in terms.items()} == pytest.approx(
        {"trainer all_reduce": 2 * seconds()}
    )
