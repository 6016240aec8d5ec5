from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.perf.calibration import StepKind, rates_of
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.predict import MeasuredSteps
from airflow_llmsched.planner.perf.step import model_flop_per_step, step_breakdown
from tests.support.measured import STEP, measured
from tests.support.models import MIXTRAL_8X7B


def test_steps_of_several_jobs_and_machines_are_each_predicted_as_if_alone():
    steps = [
        STEP,
        measured(shape=node_shape("p4d.24xlarge")),
        measured(layout=ParallelLayout(dp=8, micro_batch_size=2)),
        measured(job=replace(STEP.job, sequence_length_tokens=512), ranks_per_node=4),
    ]
    alone = [
        sum(step_breakdown(each.job, each.layout, shape=each.shape, ranks_per_node=each.ranks_per_node).values())
        for each in steps
    ]
    assert MeasuredSteps(steps).predicted_s_M() == pytest.approx(alone)
    assert len(set(alone)) == len(alone)


def test_steps_are_told_apart_by_what_decides_how_far_predictions_are_off():
    mixture = measured(job=replace(STEP.job, model=MIXTRAL_8X7B))
    rows = MeasuredSteps([STEP, mixture])
    assert rows.kinds(lambda chip: rates_of(chip).changed({"host_kernel_s": 0.0})) == [
        StepKind.PLAIN,
        StepKind.MIXTURE,
    ]
    assert rows.kinds(lambda chip: rates_of(chip).changed({"host_kernel_s": 1.0})) == [StepKind.HOST_BOUND] * 2


def test_model_operations_are_those_of_each_job():
    longer = measured(job=replace(STEP.job, num_sequences=32))
    assert MeasuredSteps([STEP, longer]).model_flop_M() == pytest.approx(
        [model_flop_per_step(STEP.job), model_flop_per_step(longer.job)]
    )
