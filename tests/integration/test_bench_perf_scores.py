"""Scores of predictions, on measurements whose scores are known by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.perf.predict import MeasuredSteps
from tests.bench.perf_scores import (
    constant_mfu_s_M,
    regrets,
    relative_errors_M,
    without_file,
    without_hidden_sizes,
    without_scales,
)
from tests.support.measured import STEP, measured
from tests.support.models import LLAMA2_7B

OTHER_SIZE = measured(job=replace(STEP.job, model=LLAMA2_7B))
ONE_RANK = measured(layout=ParallelLayout(dp=1, micro_batch_size=16))


def test_a_hidden_size_that_is_scored_was_fitted_on_in_no_file():
    steps = [STEP, OTHER_SIZE, replace(STEP, source="b"), replace(OTHER_SIZE, source="b")]
    folds = list(without_hidden_sizes(steps, source="b"))
    assert [len(fold.test) for fold in folds] == [1, 1]
    for fold in folds:
        (scored,) = fold.test
        assert all(step.job.model.hidden_size != scored.job.model.hidden_size for step in fold.train)
        assert scored.source == "b"


def test_a_number_of_accelerators_that_is_scored_was_fitted_on_in_no_file():
    steps = [STEP, ONE_RANK, replace(STEP, source="b")]
    folds = list(without_scales(steps))
    assert [len(fold.test) for fold in folds] == [1, 2]
    for fold in folds:
        assert {step.num_ranks for step in fold.train}.isdisjoint(step.num_ranks for step in fold.test)
        assert len(fold.train) + len(fold.test) == len(steps)


def test_a_file_that_is_scored_was_not_fitted_on():
    fold = without_file([STEP, replace(STEP, source="b")], source="b")
    assert {step.source for step in fold.train} == {"a table"}
    assert {step.source for step in fold.test} == {"b"}


def test_errors_are_relative_to_what_was_measured():
    assert relative_errors_M(np.array([0.4, 0.6]), [STEP, STEP]) == pytest.approx([0.2, 0.2])


def test_regret_is_what_our_pick_costs_beyond_the_best_and_lone_set_ups_do_not_count():
    split = measured(layout=ParallelLayout(dp=2, tp=4, micro_batch_size=8), step_s=0.6)
    assert regrets(np.array([1.0, 0.9, 3.0]), [STEP, split, ONE_RANK]) == pytest.approx([0.2])
    assert regrets(np.array([0.9, 1.0, 3.0]), [STEP, split, ONE_RANK]) == pytest.approx([0.0])


def test_constant_utilisation_predicts_half_the_time_on_twice_the_ranks():
    twice = measured(layout=ParallelLayout(dp=8, tp=2, micro_batch_size=2), step_s=0.25)
    assert constant_mfu_s_M(MeasuredSteps([STEP]), MeasuredSteps([twice])) == pytest.approx([0.25])


def test_a_long_file_does_not_decide_the_constant_utilisation():
    slow = [replace(STEP, source="long", step_s=1.0)] * 5
    fast = [replace(STEP, source="short", step_s=0.25), replace(STEP, source="shorter", step_s=0.25)]
    assert constant_mfu_s_M(MeasuredSteps([*slow, *fast]), MeasuredSteps([STEP])) == pytest.approx([0.25])
