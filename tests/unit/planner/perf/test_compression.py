from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.workload import CompressionKind, GradientCompression
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.collectives import Link, Span, all_reduce_s
from airflow_llmsched.planner.perf.compression import (
    METHODS,
    compress_s,
    exchange_s,
    kept_bytes,
    pytorch_settings,
)
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.memory import memory_breakdown
from airflow_llmsched.planner.perf.replicas import compression_s
from airflow_llmsched.planner.perf.step import step_breakdown
from tests.support.fleets import job

H100 = node_shape("p5.48xlarge")
SLOW = replace(H100, inter_node_bandwidth_bytes_per_s=1e9)
LAYOUT = ParallelLayout(dp=64, num_micro_batches=4)
kinds = st.sampled_from(CompressionKind)


def network(size: int, *, bytes_per_s: float = 1e9) -> Span:
    """Return a group with one member in each node, whose messages cost bytes alone."""
    one = Link(bytes_per_s=bytes_per_s, latency_s=0.0)
    return Span(size_C=np.array([size]), members_C=np.array([1]), domains_C=np.array([size]), inner=one, outer=one)


def sent_s(kind: CompressionKind, *, size: int = 8, parameters: float = 1e9, **others: float) -> float:
    asked = GradientCompression(kind=kind, **others)  # type: ignore[arg-type]
    return float(
        exchange_s(asked, np.array([parameters]), network(size), hidden_size=4096, split_C=np.array([1]))[0]
    )  # fmt: skip


def test_the_bytes_of_each_kind_are_those_of_its_method() -> None:
    # 0.1% of 1e9 values of 8 bytes, from each of 8 to all others
    assert sent_s(CompressionKind.TOP_K) == pytest.approx(7 * 8e6 / 1e9)
    # one byte a value, from each to all others
    assert sent_s(CompressionKind.EIGHT_BIT) == pytest.approx(7 * 1e9 / 1e9)
    # one bit a value, in pieces to their servers and whole back
    assert sent_s(CompressionKind.ONE_BIT) == pytest.approx(2 * 7 / 8 * 1e9 / 8 / 1e9)
    # two factors of 4 / 4096 of the matrix in FP32, each reduced by all
    assert sent_s(CompressionKind.POWER_SGD) == pytest.approx(2 * 2 * 7 / 8 * 4 * 4 / 4096 * 1e9 / 1e9)


def test_a_wider_rank_and_more_kept_values_send_more() -> None:
    assert sent_s(CompressionKind.POWER_SGD, rank=8) == pytest.approx(2 * sent_s(CompressionKind.POWER_SGD, rank=4))
    assert sent_s(CompressionKind.TOP_K, kept_ratio=0.01) == pytest.approx(10 * sent_s(CompressionKind.TOP_K))


def test_what_cannot_be_added_up_on_its_way_loses_to_an_exact_reduction_in_large_groups() -> None:
    exact_s = {size: float(all_reduce_s(num_bytes=4e9, span=network(size))[0]) for size in (4, 64)}
    assert sent_s(CompressionKind.EIGHT_BIT, size=4) < exact_s[4]
    assert sent_s(CompressionKind.EIGHT_BIT, size=64) > exact_s[64]
    assert sent_s(CompressionKind.ONE_BIT, size=64) < exact_s[64] / 16


@given(kind=kinds)
def test_a_replica_alone_neither_sends_nor_compresses(kind: CompressionKind) -> None:
    asked = GradientCompression(kind=kind)
    machine = Machine(shape=H100, ranks_per_node_C=np.array([1]))
    assert sent_s(kind, size=1) == 0.0
    assert compress_s(asked, np.array([1e9]), np.array([1]), machine).tolist() == [0.0]


@pytest.mark.parametrize("kind", CompressionKind)
def test_every_kind_states_its_risk(kind: CompressionKind) -> None:
    assert len(METHODS[kind].risk) > 80


@pytest.mark.parametrize("kind", CompressionKind)
def test_residuals_are_a_term_of_memory_and_compressing_one_of_the_step(kind: CompressionKind) -> None:
    asked = job(compression=GradientCompression(kind=kind))
    exact_bytes, bytes_by_term = memory_breakdown(job(), LAYOUT), memory_breakdown(asked, LAYOUT)
    assert bytes_by_term["compression"] == METHODS[kind].kept_bytes * (exact_bytes["gradients"] // 4)
    exact_s, seconds = (step_breakdown(each, LAYOUT, shape=SLOW, ranks_per_node=8) for each in (job(), asked))
    assert seconds["compression"] > 0
    assert "compression" not in exact_s
    assert seconds["matmul"] == exact_s["matmul"]


@pytest.mark.parametrize("kind", [CompressionKind.POWER_SGD, CompressionKind.ONE_BIT, CompressionKind.TOP_K])
def test_on_a_slow_network_a_compressed_step_is_shorter_and_inside_a_node_it_is_not(kind: CompressionKind) -> None:
    asked = job(compression=GradientCompression(kind=kind))
    slow, fast = (
        sum(step_breakdown(asked, layout, shape=shape, ranks_per_node=8).values())
        / sum(step_breakdown(job(), layout, shape=shape, ranks_per_node=8).values())
        for layout, shape in ((LAYOUT, SLOW), (ParallelLayout(dp=8, num_micro_batches=32), H100))
    )
    assert slow < 0.9
    assert fast > 0.99


def test_sharded_gradients_are_exchanged_as_ever() -> None:
    sharded = replace(LAYOUT, zero_stage=1, shard_size=8)
    asked = job(compression=GradientCompression(kind=CompressionKind.TOP_K))
    plain, compressed = (step_breakdown(each, sharded, shape=SLOW, ranks_per_node=8) for each in (job(), asked))
    assert compressed == plain | {"compression": 0.0}
    assert memory_breakdown(asked, sharded)["compression"] == 0


@given(kind=kinds, parameters=st.floats(1, 1e12), factor=st.floats(1, 10))
def test_a_faster_network_never_sends_slower(kind: CompressionKind, parameters: float, factor: float) -> None:
    asked, num = GradientCompression(kind=kind), np.array([parameters])
    slow, fast = (
        exchange_s(asked, num, network(16, bytes_per_s=rate), hidden_size=4096, split_C=np.array([8]))[0]
        for rate in (1e9, 1e9 * factor)
    )
    assert fast <= slow


def test_kept_bytes_are_whole() -> None:
    assert kept_bytes(GradientCompression(kind=CompressionKind.TOP_K), np.array([3])).tolist() == [24]


def test_pytorch_has_hooks_for_two_kinds_and_knows_every_name_in_them() -> None:
    """The lines are run as far as they can be without a process group: the state is made, the hooks are found."""
    from torch.distributed.algorithms.ddp_comm_hooks import (
        powerSGD_hook,
        quantization_hooks,
    )

    class Model:
        def register_comm_hook(self, state: object, hook: object) -> None:
            self.state, self.hook = state, hook

    names = {"powerSGD_hook": powerSGD_hook, "quantization_hooks": quantization_hooks}
    registered = {}
    for kind in CompressionKind:
        line = pytorch_settings(GradientCompression(kind=kind, rank=8, num_exact_steps=7))
        if line is not None:
            model = Model()
            eval(line, names | {"model": model})
            registered[kind] = model
    assert set(registered) == {CompressionKind.POWER_SGD, CompressionKind.EIGHT_BIT}
    assert registered[CompressionKind.POWER_SGD].state.matrix_approximation_rank == 8
    assert registered[CompressionKind.POWER_SGD].state.start_powerSGD_iter == 7


def test_layouts_of_a_table_are_priced_each_for_itself() -> None:
    asked = job(compression=GradientCompression(kind=CompressionKind.TOP_K))
    table = LayoutTable.of([LAYOUT, ParallelLayout(dp=1, num_micro_batches=256)])
    found = compression_s(asked, table, Machine(shape=H100, ranks_per_node_C=np.array([8, 1])))
    assert found[0] > 0 == found[1]
