from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.software import LossKernel, Software
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.end_work import embedding_operations, head_operations
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.layer_work import LayerWork
from airflow_llmsched.planner.perf.ops import Device
from airflow_llmsched.planner.perf.rates import Rates
from tests.support.fleets import job
from tests.support.models import LLAMA2_7B

H100 = node_shape("p5.48xlarge").accelerator
RATES = Rates(kernel_s=0.0, matmul_half_area_size=0.0, matmul_half_depth_size=0.0)


def work(task: TransformerJob, tp: int = 1) -> LayerWork:
    return LayerWork(job=task, table=LayoutTable.of([ParallelLayout(dp=1, tp=tp)]), device=Device.of(task, H100, RATES))


def head_s(task: TransformerJob, *, phase: str = "forward", tp: int = 1) -> float:
    return sum(float(np.squeeze(getattr(each, phase).total_s)) for each in head_operations(work(task, tp)))


def test_logits_and_loss_are_split_by_words() -> None:
    assert head_s(job(LLAMA2_7B), tp=8) == pytest.approx(head_s(job(LLAMA2_7B)) / 8, rel=0.05)


def test_a_larger_vocabulary_costs_in_proportion() -> None:
    larger = replace(LLAMA2_7B, vocab_size=10 * LLAMA2_7B.vocab_size)
    assert head_s(job(larger)) == pytest.approx(10 * head_s(job(LLAMA2_7B)), rel=0.05)


def test_a_fused_loss_reads_logits_less_often() -> None:
    fused = replace(job(LLAMA2_7B), software=Software(loss=LossKernel.FUSED))
    assert head_s(fused) < head_s(job(LLAMA2_7B))
    assert head_s(fused, phase="backward") < head_s(job(LLAMA2_7B), phase="backward")


def test_the_embedding_multiplies_nothing() -> None:
    (operation,) = embedding_operations(work(job(LLAMA2_7B)))
    assert operation.forward.matmul_s == operation.backward.matmul_s == 0
    assert operation.forward.total_s > 0


def test_predicting_a_token_further_ahead_takes_the_head_again_and_one_input_of_two() -> None:
    ahead = replace(LLAMA2_7B, num_predict_ahead_layers=1)
    projection_s = head_s(job(ahead)) - 2 * head_s(job(LLAMA2_7B))
    assert 0 < projection_s < 0.5 * head_s(job(LLAMA2_7B))
