from __future__ import annotations

from dataclasses import replace

from airflow_llmsched import codec
from airflow_llmsched.domain.run_report import RunOutcome, RunReport, StepRow
from airflow_llmsched.reports.build import build_report
from tests.support.history import T0, preempted_run


def with_steps(*rows: tuple[int, int, bool], outcome: RunOutcome = RunOutcome.SUCCEEDED) -> RunReport:
    steps = tuple(
        StepRow(attempt=attempt, step=step, end_s=T0, step_s=1.0, loss=3.0 - step, num_tokens=1, kept=kept)
        for attempt, step, kept in rows
    )
    return replace(build_report(**preempted_run()), steps=steps, outcome=outcome)


def test_steps_trained_twice_are_exactly_the_lost_ones_after_a_clean_resume():
    report = with_steps((1, 1, True), (1, 2, False), (1, 3, False), (2, 2, True), (2, 3, True))
    assert report.lost_steps == (2, 3)
    assert report.steps_trained_twice == (2, 3)
    assert report.retrained_only_lost


def test_a_step_lost_twice_is_stated_twice():
    report = with_steps((1, 1, False), (2, 1, False), (3, 1, True))
    assert report.lost_steps == report.steps_trained_twice == (1, 1)
    assert report.retrained_only_lost


def test_a_kept_step_trained_again_is_found():
    report = with_steps((1, 1, True), (1, 2, True), (2, 2, True))
    assert report.lost_steps == ()
    assert report.steps_trained_twice == (2,)
    assert not report.retrained_only_lost


def test_a_lost_step_that_was_never_made_up_is_wrong_only_in_a_run_that_succeeded():
    rows = ((1, 1, True), (1, 2, False))
    assert not with_steps(*rows).retrained_only_lost
    assert with_steps(*rows, outcome=RunOutcome.FAILED).retrained_only_lost


def test_the_final_loss_is_that_of_the_last_kept_step():
    assert with_steps((1, 1, True), (1, 2, True), (1, 3, False)).final_loss == 1.0
    assert with_steps((1, 1, False)).final_loss is None
    assert with_steps().final_loss is None


def test_faults_are_counted_by_attempt():
    assert build_report(**preempted_run()).num_faults == 1


def test_a_report_survives_json():
    report = build_report(**preempted_run())
    assert codec.from_json(RunReport, codec.to_json(report)) == report
