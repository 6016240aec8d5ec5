from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.hardware import NodeShape, TierKind
from airflow_llmsched.domain.layout import Offload, ParallelLayout
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.memory import memory_breakdown
from airflow_llmsched.planner.perf.memory_offload import has_room_outside, offload_terms_s, offloaded_bytes
from airflow_llmsched.planner.perf.parameters import count_parameters
from tests.support.fleets import job
from tests.support.models import LLAMA2_7B, LLAMA2_70B, MIXTRAL_8X7B

NODE = node_shape("p5.48xlarge")
NUM = count_parameters(LLAMA2_7B).total


def table_of(offload: Offload, **layout: int) -> LayoutTable:
    values = {"dp": 1, "num_micro_batches": 4} | layout
    return LayoutTable.of([ParallelLayout(offload=offload, **values)])  # type: ignore[arg-type]


def outside(offload: Offload, **layout: int) -> tuple[int, int]:
    by_tier = offloaded_bytes(job(LLAMA2_7B), table_of(offload, **layout))
    return int(by_tier[TierKind.HOST_DRAM][0]), int(by_tier[TierKind.NVME][0])


def test_the_host_has_what_the_accelerator_has_not() -> None:
    """12 bytes of state a parameter; with ZeRO 2 gradients in FP32 too, with offloaded weights 2 more."""
    assert outside(Offload.NONE) == (0, 0)
    assert outside(Offload.OPTIMIZER_HOST) == (12 * NUM, 0)
    assert outside(Offload.OPTIMIZER_HOST, dp=8, zero_stage=2) == (pytest.approx(16 * NUM / 8, rel=1e-6), 0)
    assert outside(Offload.PARAMETERS_HOST, dp=8, zero_stage=3) == (pytest.approx(18 * NUM / 8, rel=1e-6), 0)


def test_disks_have_the_large_part_and_the_host_the_gradients() -> None:
    host, disk = outside(Offload.PARAMETERS_NVME, dp=8, zero_stage=3)
    assert (host, disk) == (pytest.approx(4 * NUM / 8, rel=1e-6), pytest.approx(14 * NUM / 8, rel=1e-6))


@settings(max_examples=25, deadline=None)
@given(
    offload=st.sampled_from([Offload.OPTIMIZER_HOST, Offload.OPTIMIZER_NVME, Offload.PARAMETERS_HOST]),
    dp=st.sampled_from([2, 8]), tp=st.sampled_from([1, 4]), model=st.sampled_from([LLAMA2_7B, MIXTRAL_8X7B]),
)  # fmt: skip
def test_offload_moves_bytes_and_loses_none(offload: Offload, dp: int, tp: int, model: object) -> None:
    """Without a pipeline, what the accelerator's terms lose is what the other tiers get."""
    one = job(model)  # type: ignore[arg-type]
    layout = ParallelLayout(dp=dp, tp=tp, zero_stage=3)
    here, away = (memory_breakdown(one, each) for each in (layout, replace(layout, offload=offload)))
    lost = sum(here[name] - away[name] for name in ("weights", "gradients", "optimizer"))
    by_tier = offloaded_bytes(one, LayoutTable.of([replace(layout, offload=offload)]))
    assert lost == sum(int(num_bytes_C[0]) for num_bytes_C in by_tier.values())


def test_activations_of_all_micro_batches_in_flight_are_on_the_host() -> None:
    layout = ParallelLayout(dp=1, pp=4, num_micro_batches=8)
    kept = memory_breakdown(job(LLAMA2_7B), layout)["activations"]
    away = LayoutTable.of([replace(layout, offload=Offload.ACTIVATIONS_HOST)])
    assert offloaded_bytes(job(LLAMA2_7B), away)[TierKind.HOST_DRAM][0] == kept


def terms(offload: Offload, shape: NodeShape = NODE, **layout: int) -> tuple[float, float]:
    by_name = offload_terms_s(job(LLAMA2_7B), table_of(offload, **layout), shape)
    return float(by_name["offload_traffic"][0]), float(by_name["offload_update"][0])


def test_an_update_on_the_host_reads_and_writes_its_state_and_sends_weights_back() -> None:
    """ZeRO-Offload: 4 bytes of gradients out; 4 + 2 * 12 + 2 through the host's memory; 2 of weights back."""
    link, memory = NODE.host_bandwidth_bytes_per_s, NODE.host.memory_bandwidth_bytes_per_s / 8
    shard = -(-NUM // 8)
    traffic_s, update_s = terms(Offload.OPTIMIZER_HOST, dp=8, zero_stage=2)
    assert traffic_s == pytest.approx(4 * shard / link)
    assert update_s == pytest.approx(30 * shard / memory + 2 * shard / link)


def test_offloaded_weights_are_fetched_twice_for_every_micro_batch() -> None:
    few, many = (
        terms(Offload.PARAMETERS_HOST, dp=8, zero_stage=3, num_micro_batches=number)[0] for number in (1, 5)
    )  # fmt: skip
    shard = -(-NUM // 8)
    assert many - few == pytest.approx(4 * 2 * 2 * shard / NODE.host_bandwidth_bytes_per_s)


def test_disks_make_an_update_slower_than_host_memory_alone() -> None:
    host, disk = (terms(offload, dp=8, zero_stage=3)[1] for offload in (Offload.OPTIMIZER_HOST, Offload.OPTIMIZER_NVME))
    assert disk > host


def test_nothing_is_moved_without_offload() -> None:
    assert terms(Offload.NONE) == (0.0, 0.0)


def test_a_node_without_disks_can_offload_nothing_to_them() -> None:
    diskless = replace(NODE, host=replace(NODE.host, disk_bytes=0, disk_read_bytes_per_s=0, disk_write_bytes_per_s=0))
    table = table_of(Offload.OPTIMIZER_NVME, dp=8, zero_stage=2)
    assert terms(Offload.OPTIMIZER_NVME, diskless, dp=8, zero_stage=2)[1] == np.inf
    assert has_room_outside(job(LLAMA2_7B), table, NODE).tolist() == [True]
    assert has_room_outside(job(LLAMA2_7B), table, diskless).tolist() == [False]


@settings(max_examples=40, deadline=None)
@given(
    one=st.tuples(st.sampled_from([LLAMA2_7B, LLAMA2_70B]), st.sampled_from(Offload), st.sampled_from([4, 8, 16])),
    other=st.tuples(st.sampled_from([LLAMA2_7B, LLAMA2_70B]), st.sampled_from(Offload), st.sampled_from([4, 8, 16])),
    num_ranks=st.integers(1, 7),
)
def test_ranks_of_two_gangs_on_a_node_find_what_they_offload_beside_one_another(one, other, num_ranks) -> None:
    held = {TierKind.HOST_DRAM: 0, TierKind.NVME: 0}
    for (model, offload, dp), number in ((one, num_ranks), (other, 8 - num_ranks)):
        table = table_of(offload, dp=dp, zero_stage=3)
        assume(has_room_outside(job(model), table, NODE)[0])
        for tier, num_bytes_C in offloaded_bytes(job(model), table).items():
            held[tier] += number * int(num_bytes_C[0])
    assert held[TierKind.HOST_DRAM] <= NODE.host.memory_bytes
    assert held[TierKind.NVME] <= NODE.host.disk_bytes


def test_a_host_that_is_full_is_told_apart_from_one_that_is_not() -> None:
    """70B: 18 bytes of each parameter over 8 ranks are 157 GB each; a rank of p5 has 256 GB of its host, of p4d 144."""
    table = table_of(Offload.PARAMETERS_HOST, dp=8, zero_stage=3)
    one = job(LLAMA2_70B)
    assert has_room_outside(one, table, NODE).tolist() == [True]
    assert has_room_outside(one, table, node_shape("p4d.24xlarge")).tolist() == [False]
    assert offload_terms_s(one, table, node_shape("p4d.24xlarge"))["offload_update"].tolist() == [np.inf]


@given(factor=st.floats(1.0, 8.0))
@settings(max_examples=20, deadline=None)
def test_a_faster_host_never_slows_a_step(factor: float) -> None:
    faster = replace(
        NODE, host=replace(NODE.host, memory_bandwidth_bytes_per_s=factor * NODE.host.memory_bandwidth_bytes_per_s)
    )
    for offload in Offload:
        for slow_s, fast_s in zip(terms(offload, dp=8), terms(offload, faster, dp=8), strict=True):
            assert fast_s <= slow_s
