"""The benchmark of the performance model in a short form, on typed rows: what it leaves out, scores and says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.predict import MeasuredSteps
from airflow_llmsched.planner.perf.rates import prior_of_generation
from tests.bench.perf_steps import MULTI, WITH_BAR, Scorer, rows
from tests.support.fleets import job
from tests.support.measured import measured
from tests.support.models import GPT2, LLAMA2_7B

TRUTH = prior_of_generation("hopper").changed({"matmul_ratio": 0.6, "memory_ratio": 0.7})
LAYOUTS = [ParallelLayout(dp=dp, tp=8 // dp, micro_batch_size=2, num_micro_batches=16 // dp) for dp in (1, 2, 4, 8)]


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    bare = [
        measured(source=source, row=row, job=job(model, sequence_length_tokens=1024, num_sequences=32), layout=layout)
        for source in (MULTI, WITH_BAR[0], WITH_BAR[1])
        for model in (GPT2, LLAMA2_7B)
        for row, layout in enumerate(LAYOUTS)
    ]
    true_s_M = MeasuredSteps(bare).predicted_s_M(lambda _: TRUTH)
    steps = [replace(step, step_s=float(step_s)) for step, step_s in zip(bare, true_s_M, strict=True)]
    return Scorer(steps, fitted_on="2026-11-30")


def test_predictions_out_of_sample_are_near_the_truth_and_beat_a_constant_utilisation(scorer):
    found = {row.name: row for row in rows(scorer, [MULTI, WITH_BAR[0]])}
    mape = found[f"{MULTI}: MAPE, hidden size left out"]
    assert mape.reached
    assert mape.value < mape.reference["constant MFU"]
    assert found[f"{MULTI}: mean regret of 2 picks"].reached
    assert found[f"{WITH_BAR[0]}: median error of 8 rows, file left out"].reached


def test_what_is_fitted_to_everything_names_its_sources(scorer):
    assert set(scorer.calibration.kinds["hopper"].num_rows_by_source) == {MULTI, WITH_BAR[0], WITH_BAR[1]}


def test_a_file_of_a_generation_that_nothing_else_measured_is_scored_by_the_prior(scorer):
    older = [replace(step, source=WITH_BAR[2], shape=node_shape("p4d.24xlarge")) for step in scorer.source(MULTI).steps]
    scored = Scorer([*scorer.source(WITH_BAR[0]).steps, *older], fitted_on="2026-11-30").source(WITH_BAR[2])
    prior = prior_of_generation("ampere")
    assert scored.predicted_s_M == pytest.approx(MeasuredSteps(scored.steps).predicted_s_M(lambda _: prior))
