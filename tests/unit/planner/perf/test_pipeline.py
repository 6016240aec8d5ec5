from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

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
