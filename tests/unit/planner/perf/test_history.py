from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.run_report import RunReport
from airflow_llmsched.domain.workload import BatchPhase
from airflow_llmsched.planner.perf.hardware import LOCAL_SHAPE
from airflow_llmsched.planner.perf.history import MIN_STEPS, measured_attempts
from airflow_llmsched.planner.perf.job import job_of
from airflow_llmsched.reports.build import build_report
from tests.support.history import preempted_run
from tests.support.specs import load_small

WORKLOAD = load_small()


@pytest.fixture(scope="module")
def report() -> RunReport:
    built = build_report(**preempted_run())
    return replace(built, attempts=tuple(replace(each, node_shape=LOCAL_SHAPE) for each in built.attempts))


def test_each_attempt_that_trained_long_enough_is_one_measurement(report):
    first, second = measured_attempts(report, WORKLOAD)
    assert (first.source, first.row, second.row) == (report.names.run_key, 1, 2)
    assert [first.step_s, second.step_s] == [attempt.step_s_median for attempt in report.attempts]
    assert (first.num_ranks, second.num_ranks) == (4, 2)
    assert first.ranks_per_node <= first.num_ranks
    assert first.job == job_of(WORKLOAD)


def test_attempts_of_few_steps_or_of_unknown_machines_do_not_count(report):
    first, second = report.attempts
    short = replace(first, num_steps_kept=MIN_STEPS - 1, num_steps_lost=0)
    unknown = replace(second, node_shape="abacus")
    unmeasured = replace(second, step_s_median=None)
    assert measured_attempts(replace(report, attempts=(short, unknown, unmeasured)), WORKLOAD) == []


def test_a_batch_that_changes_and_a_model_that_is_not_known_tell_nothing(report):
    phases = (*WORKLOAD.batch, BatchPhase(from_tokens=10**6, sequence_length_tokens=64, num_sequences=64))
    assert not measured_attempts(report, replace(WORKLOAD, batch=phases))
    assert not measured_attempts(report, replace(WORKLOAD, model=None))
