from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.hardware import NodeShape, Transport
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.roles import RoleKind, RoleSpec
from airflow_llmsched.domain.software import Software
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.job import TransformerJob, job_of
from airflow_llmsched.planner.perf.loading import (
    LOADER_BYTES_PER_S,
    REMOTE_MEMORY_RATIO,
    exposed_loading_s,
    host_link_bytes_per_s,
    input_bytes_per_rank,
    loading_s,
)
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.step import step_breakdown
from tests.support.fleets import TINY, job, workload

H100 = node_shape("p5.48xlarge")
MANY_LOADERS = 10**9
ONE = LayoutTable.of([ParallelLayout(dp=16, tp=4)])


def loads_s(
    asked: TransformerJob, shape: NodeShape = H100, *, offloaded_s: float = 0.0, network_s: float = 0.0
) -> float:
    machine = Machine(shape=shape, ranks_per_node_C=np.array([8]))
    found = loading_s(asked, ONE, machine, offloaded_s=np.array([offloaded_s]), network_s=np.array([network_s]))
    return float(found[0])


def with_storage(bytes_per_s: float) -> NodeShape:
    return replace(H100, host=replace(H100.host, storage_bandwidth_bytes_per_s=bytes_per_s))


def test_each_replica_reads_its_share_in_numbers_as_narrow_as_the_vocabulary() -> None:
    # 256 sequences of 4096 tokens over 16 replicas: 2 bytes for a vocabulary of 32,000, 1 for bytes, 4 beyond 65,536
    sizes = [
        int(input_bytes_per_rank(job(model), ONE)[0]) for model in (job().model, TINY, replace(TINY, vocab_size=10**5))
    ]
    assert sizes == [2 * 65_536, 65_536, 4 * 65_536]


def test_the_slowest_part_of_the_way_counts() -> None:
    num_bytes = 2 * 65_536
    assert loads_s(job()) == pytest.approx(num_bytes / LOADER_BYTES_PER_S)
    assert loads_s(job(num_loaders=16)) == pytest.approx(num_bytes / LOADER_BYTES_PER_S * 64 / 16)
    fast = job(num_loaders=MANY_LOADERS)
    assert loads_s(fast, with_storage(8e6)) == pytest.approx(num_bytes / 1e6)
    assert loads_s(fast) < num_bytes / LOADER_BYTES_PER_S


def test_offload_and_a_network_that_the_host_moves_leave_less_of_the_link() -> None:
    fast = job(num_loaders=MANY_LOADERS)
    alone_s = loads_s(fast)
    assert loads_s(fast, offloaded_s=3.0) == pytest.approx(3.0, rel=1e-3)
    assert loads_s(fast, network_s=3.0) == alone_s
    through_host = replace(H100, inter_node=replace(H100.inter_node, transport=Transport.HOST))
    link = host_link_bytes_per_s(H100, is_bound=True)
    expected_s = 3.0 * H100.inter_node_bandwidth_bytes_per_s / link
    assert loads_s(fast, through_host, network_s=3.0) == pytest.approx(expected_s, rel=1e-3)


def test_unbound_processes_find_most_of_their_memory_on_another_processor() -> None:
    bound, unbound = (host_link_bytes_per_s(H100, is_bound=is_bound) for is_bound in (True, False))
    assert H100.host.num_numa_nodes == 2
    assert unbound == pytest.approx(bound / (0.5 + 0.5 / REMOTE_MEMORY_RATIO))
    alone = replace(H100, host=replace(H100.host, num_numa_nodes=1))
    assert host_link_bytes_per_s(alone, is_bound=False) == bound


def test_accelerators_behind_one_link_share_it() -> None:
    own = replace(H100, host=replace(H100.host, num_accelerators_per_host_link=1))
    shared = replace(H100, host=replace(H100.host, num_accelerators_per_host_link=4))
    assert host_link_bytes_per_s(shared, is_bound=True) == pytest.approx(host_link_bytes_per_s(own, is_bound=True) / 4)


def test_input_that_is_read_ahead_costs_only_what_the_step_does_not_hide() -> None:
    terms = {"matmul": np.array([2.0]), "optimizer": np.array([1.0])}
    ahead, late = job(), job(software=Software(prefetches_input=False))
    assert exposed_loading_s(ahead, np.array([2.5]), terms).tolist() == [0.0]
    assert exposed_loading_s(ahead, np.array([5.0]), terms).tolist() == [2.0]
    assert exposed_loading_s(late, np.array([0.5]), terms).tolist() == [0.5]


@given(bytes_per_s=st.floats(1e2, 1e9))
def test_a_step_is_never_shorter_than_its_input_takes(bytes_per_s: float) -> None:
    shape, layout = with_storage(bytes_per_s), ParallelLayout(dp=8, num_micro_batches=32)
    terms = step_breakdown(job(), layout, shape=shape, ranks_per_node=8)
    floor_s = 2 * 256 * 4096 / bytes_per_s
    without_s = sum(terms.values()) - terms["data_loading"]
    assert sum(terms.values()) == pytest.approx(max(floor_s, without_s))


def test_loaders_of_the_gang_are_counted() -> None:
    roles = (RoleSpec(kind=RoleKind.TRAINER), RoleSpec(kind=RoleKind.DATA_LOADER, num_ranks=3, command=("load",)))
    found, plain = job_of(workload(roles=roles)), job_of(workload())
    assert found is not None
    assert plain is not None
    assert (found.num_loaders, plain.num_loaders) == (3, None)


def test_a_machine_of_which_nothing_is_stated_is_not_bound_by_what_is_not_known() -> None:
    assert host_link_bytes_per_s(node_shape("local-cpu"), is_bound=True) == 0.0
