"""Calibration on steps whose true rates are known, since they were predicted with them and then disturbed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.learning.calibration import (
    MAX_GROUPS_PER_SOURCE,
    by_generation,
    calibrate,
    fit_kind,
    thinned,
)
from airflow_llmsched.planner.perf.calibration import Calibration, StepKind
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.measured import MeasuredStep
from airflow_llmsched.planner.perf.predict import MeasuredSteps
from airflow_llmsched.planner.perf.rates import Rates, prior_of_generation
from tests.support.fleets import job
from tests.support.measured import STEP, measured
from tests.support.models import GPT2, LLAMA2_7B

PRIOR = prior_of_generation("hopper")
TRUTH = PRIOR.changed(
    {"matmul_ratio": 0.62, "memory_ratio": 0.7, "kernel_s": 4e-6, "network_ratio": 0.55, "node_link_ratio": 0.6}
)
LAYOUTS = [
    ParallelLayout(dp=dp, tp=tp, micro_batch_size=micro, num_micro_batches=4, zero_stage=zero)
    for dp, tp in ((8, 1), (4, 2), (2, 4), (32, 1), (8, 4))
    for micro in (1, 4)
    for zero in (0, 1)
]
JOBS = (job(GPT2, sequence_length_tokens=1024), job(LLAMA2_7B, sequence_length_tokens=2048))


def of_truth(number: int, *, first: int = 0, noise: float = 0.02) -> list[MeasuredStep]:
    """``number`` measurements, five of each source."""
    chosen = [(JOBS[each % 2], LAYOUTS[each % len(LAYOUTS)]) for each in range(first, first + number)]
    bare = [
        measured(source=f"run {row // 5}", row=row, job=of, layout=layout)
        for row, (of, layout) in enumerate(chosen, start=first)
    ]
    step_s_M = MeasuredSteps(bare).predicted_s_M(lambda _: TRUTH)
    rng = np.random.default_rng(number)
    return [
        replace(step, step_s=float(step_s * math.exp(noise * rng.normal())))
        for step, step_s in zip(bare, step_s_M, strict=True)
    ]


def fitted(steps: list[MeasuredStep]) -> Calibration:
    return calibrate(steps, prior=prior_of_generation, fitted_on="2026-11-30")


def error_on(steps: list[MeasuredStep], calibration: Calibration) -> float:
    rows = MeasuredSteps(steps)
    return float(np.median(np.abs(rows.predicted_s_M(calibration.rates_of) / rows.step_s_M - 1)))


@pytest.fixture(scope="module")
def learnt() -> dict[int, Calibration]:
    return {number: fitted(of_truth(number)) for number in (2, 15)}


def test_prediction_improves_with_history_and_the_band_narrows(learnt):
    fresh = of_truth(20, first=40)
    nothing = Calibration(fitted_on="")
    errors = [error_on(fresh, each) for each in (nothing, learnt[2], learnt[15])]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.03
    bands = [each.error_ratio(STEP.shape.accelerator) for each in (nothing, learnt[2], learnt[15])]
    assert bands[0] > bands[2]
    assert bands[1] > bands[2]


def test_the_band_holds_most_of_what_was_not_fitted_on(learnt):
    fresh = MeasuredSteps(of_truth(20, first=40))
    off_M = np.abs(np.log(fresh.predicted_s_M(learnt[15].rates_of) / fresh.step_s_M))
    band = math.log1p(learnt[15].error_ratio(STEP.shape.accelerator))
    assert np.mean(off_M < band) >= 0.8


def test_what_was_measured_of_dense_models_does_not_narrow_the_band_of_mixtures(learnt):
    chip = STEP.shape.accelerator
    unmeasured = Calibration(fitted_on="").error_ratio(chip)
    assert learnt[15].error_ratio(chip) < unmeasured
    assert learnt[15].error_ratio(chip, StepKind.MIXTURE) == unmeasured


def test_a_model_that_alone_tells_how_long_the_host_takes_is_left_out_by_fitting_without_it() -> None:
    """Its host is six times faster than the prior says: without it, nothing tells, and its steps seem to wait."""
    quick = PRIOR.changed({"host_kernel_s": PRIOR.host_kernel_s / 6})
    large = replace(STEP.job, model=LLAMA2_7B, num_sequences=256)
    bare = [
        *(
            measured(row=tp, job=large, layout=ParallelLayout(dp=8, tp=tp, micro_batch_size=4, num_micro_batches=4))
            for tp in (1, 2, 4, 8)
        ),
        *(
            measured(row=10 + many, layout=ParallelLayout(dp=8, micro_batch_size=1, num_micro_batches=many))
            for many in (2, 4, 8, 16, 32, 64)
        ),
    ]
    step_s_M = MeasuredSteps(bare).predicted_s_M(lambda _: quick)
    steps = [replace(step, step_s=float(step_s)) for step, step_s in zip(bare, step_s_M, strict=True)]
    ignorant_M = MeasuredSteps(steps[4:]).predicted_s_M(lambda _: PRIOR) / step_s_M[4:] - 1
    kind = fit_kind(steps, prior=PRIOR).kind
    assert ignorant_M.min() <= kind.error_ratio_by_kind[StepKind.HOST_BOUND] <= ignorant_M.max()
    assert kind.error_ratio < 0.5


def test_one_measurement_hardly_moves_rates_from_their_prior():
    (step,) = of_truth(1)
    rates = fitted([replace(step, step_s=3 * step.step_s)]).kinds["hopper"].rates
    assert rates.matmul_ratio == pytest.approx(PRIOR.matmul_ratio, rel=0.15)


def test_a_fit_says_what_it_was_fitted_to(learnt):
    kind = learnt[15].kinds["hopper"]
    assert kind.num_rows_by_source == {"run 0": 5, "run 1": 5, "run 2": 5}
    assert kind.left_out_error_ratio < 0.05


def test_generations_are_fitted_each_to_its_own_rows():
    older = measured(shape=node_shape("p4d.24xlarge"))
    assert list(by_generation([STEP, older])) == ["ampere", "hopper"]


def test_a_fit_begun_at_one_of_more_steps_ends_where_one_begun_anew_does():
    steps = of_truth(15)
    whole, rest = fit_kind(steps, prior=PRIOR), steps[:10]
    begun, anew = fit_kind(rest, prior=PRIOR, begin=whole).kind.rates, fit_kind(rest, prior=PRIOR).kind.rates
    assert begun.matmul_ratio == pytest.approx(anew.matmul_ratio, rel=0.02)
    assert begun.memory_ratio == pytest.approx(anew.memory_ratio, rel=0.05)
    assert whole.start([*rest, measured(source="unknown")]) is None


def test_of_a_source_of_many_jobs_some_of_every_size_are_fitted_on():
    steps = [
        measured(row=length, job=replace(STEP.job, sequence_length_tokens=length)) for length in range(64, 64 * 65, 64)
    ]
    kept = [step.job.sequence_length_tokens for step in thinned(steps)]
    assert len(kept) == MAX_GROUPS_PER_SOURCE
    assert (kept[0], kept[-1]) == (64, 64 * 64)
    assert thinned([STEP, STEP]) == [STEP, STEP]


def test_rates_stay_possible_however_fast_the_steps_were():
    rates = fitted([replace(step, step_s=step.step_s / 20) for step in of_truth(10)]).kinds["hopper"].rates
    assert isinstance(rates, Rates)
    assert rates.matmul_ratio <= 1


def test_a_slow_host_is_found_though_at_the_prior_no_pass_waits_for_it():
    slow = TRUTH.changed({"host_kernel_s": 8 * PRIOR.host_kernel_s})
    small = [
        measured(row=row, layout=ParallelLayout(dp=8, micro_batch_size=micro, num_micro_batches=number))
        for row, (micro, number) in enumerate([(1, 1), (1, 4), (2, 2), (2, 8), (4, 4)])
    ]
    step_s_M = MeasuredSteps(small).predicted_s_M(lambda _: slow)
    steps = [replace(step, step_s=float(step_s)) for step, step_s in zip(small, step_s_M, strict=True)]
    found = fitted(steps)
    assert found.kinds["hopper"].rates.host_kernel_s > 2 * PRIOR.host_kernel_s
    assert error_on(steps, found) < 0.05
