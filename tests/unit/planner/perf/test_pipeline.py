from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout, PipelineSchedule
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.micro_batch import MicroBatch
from airflow_llmsched.planner.perf.pipeline import bubble_s, transfer_s
from tests.support.fleets import job
from tests.support.models import LLAMA2_7B

H100 = node_shape("p5.48xlarge")
PIPELINE = ParallelLayout(dp=1, pp=4, num_micro_batches=32)


def even_stages(pp: int = 4) -> MicroBatch:
    """Stages of 3 s each: a third forward, a third gradients to weights."""
    return MicroBatch(
        terms_s={}, forward_s_C=np.array([1.0]), backward_s_C=np.array([2.0]), weight_gradient_s_C=np.array([1.0]),
        whole_model_s_C=np.array([3.0 * pp]),
    )  # fmt: skip


def bubble(layout: ParallelLayout) -> float:
    return float(bubble_s(LayoutTable.of([layout]), even_stages(layout.pp))[0])


def test_the_bubble_is_its_textbook_share() -> None:
    """Narayanan et al. 2021, section 2.2: (p - 1) / m of the ideal time, and 1/v of that with v chunks."""
    assert bubble(PIPELINE) / (32 * 3) == pytest.approx(3 / 32)
    assert bubble(replace(PIPELINE, vp=2, schedule=PipelineSchedule.INTERLEAVED)) == pytest.approx(bubble(PIPELINE) / 2)


def test_gradients_to_weights_fill_two_thirds_of_the_bubble() -> None:
    """Qi et al. 2023, table 1, ZB-H1 with F = B = W: (p - 1)(F + B - W) against (p - 1)(F + B + W)."""
    filled = bubble(replace(PIPELINE, schedule=PipelineSchedule.ZERO_BUBBLE))
    assert filled == pytest.approx(bubble(PIPELINE) / 3)


def played_s(pp: int, num_micro_batches: int, *, forward_s: int, input_s: int, weight_s: int) -> int:
    """Play ZB-H1 second by second: backward first, then forward while fewer than 1F1B's are in flight, else weights."""
    num_done = np.zeros((3, pp), dtype=int)  # forward, to inputs, to weights
    running = [(0, -1)] * pp  # until when, what
    for now_s in range(10_000):
        for stage, (until_s, what) in enumerate(running):
            if what >= 0 and until_s <= now_s:
                num_done[what, stage] += 1
                running[stage] = (now_s, -1)
        if (num_done == num_micro_batches).all():
            return now_s
        for stage, (_, what) in enumerate(running):
            if what >= 0:
                continue
            forward, inputs, weights = num_done[:, stage]
            if inputs < (num_done[1, stage + 1] if stage + 1 < pp else forward):
                running[stage] = (now_s + input_s, 1)
            elif forward < (num_done[0, stage - 1] if stage else num_micro_batches) and forward - inputs < pp - stage:
                running[stage] = (now_s + forward_s, 0)
            elif weights < inputs:
                running[stage] = (now_s + weight_s, 2)
    raise AssertionError


@given(
    pp=st.integers(2, 8),
    num_micro_batches=st.integers(1, 20),
    seconds=st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 12)),
)
@example(pp=8, num_micro_batches=3, seconds=(1, 1, 1))
@example(pp=4, num_micro_batches=9, seconds=(2, 2, 2))
def test_a_zero_bubble_step_is_no_shorter_than_what_its_first_stage_waits_for_and_does(
    pp: int, num_micro_batches: int, seconds: tuple[int, int, int]
) -> None:
    forward_s, input_s, weight_s = seconds
    each_s = sum(seconds)
    layout = ParallelLayout(dp=1, pp=pp, num_micro_batches=num_micro_batches, schedule=PipelineSchedule.ZERO_BUBBLE)
    one = MicroBatch(
        terms_s={}, forward_s_C=np.array([forward_s]), backward_s_C=np.array([input_s + weight_s]),
        weight_gradient_s_C=np.array([weight_s]), whole_model_s_C=np.array([each_s * pp]),
    )  # fmt: skip
    told_s = num_micro_batches * each_s + float(bubble_s(LayoutTable.of([layout]), one)[0])
    first_backward_s = pp * forward_s + (pp - 1) * input_s
    assert told_s >= first_backward_s + num_micro_batches * (input_s + weight_s) - 1e-9
    played = played_s(pp, num_micro_batches, forward_s=forward_s, input_s=input_s, weight_s=weight_s)
    if weight_s >= forward_s:
        assert told_s <= played + 1e-9
    if forward_s == input_s == weight_s:
        assert told_s == pytest.approx(played)


def test_one_stage_has_no_bubble_and_sends_nothing() -> None:
    table = LayoutTable.of([ParallelLayout(dp=4)])
    machine = Machine(shape=H100, ranks_per_node_C=np.array([4]))
    assert bubble_s(table, even_stages(1)) == transfer_s(job(LLAMA2_7B), table, machine, even_stages(1)) == 0


def transfer(layout: ParallelLayout, *, ranks: int = 8) -> float:
    machine = Machine(shape=H100, ranks_per_node_C=np.array([ranks]))
    return float(transfer_s(job(LLAMA2_7B), LayoutTable.of([layout]), machine, even_stages())[0])


def test_stages_on_several_nodes_send_over_the_network() -> None:
    assert transfer(PIPELINE, ranks=1) > transfer(PIPELINE)


def test_ranks_of_a_tensor_group_send_shares() -> None:
    assert transfer(replace(PIPELINE, tp=2)) < transfer(PIPELINE)


def test_chunks_hide_what_they_send() -> None:
    assert transfer(replace(PIPELINE, vp=2, schedule=PipelineSchedule.INTERLEAVED)) < transfer(PIPELINE) / 2
