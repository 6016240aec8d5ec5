from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from airflow_llmsched.cli.demo_summary import shortfalls, summary
from airflow_llmsched.domain.run_report import RunOutcome, RunReport
from airflow_llmsched.reports.build import build_report
from tests.support.history import preempted_run


@pytest.fixture(scope="module")
def good() -> RunReport:
    """A run as the demo promises it: on half the ranks twice the micro-batches keep the global batch."""
    report = build_report(**preempted_run())
    first, second = report.attempts
    halved = replace(second.layout, num_micro_batches=2 * second.layout.num_micro_batches)
    return replace(report, attempts=(first, replace(second, layout=halved)))


def _text(report: RunReport) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(summary(report))
    return out.getvalue()


def test_a_run_that_was_preempted_and_resumed_smaller_is_what_the_demo_promises(good):
    assert shortfalls(good) == []
    assert "everything the demo promises happened" in _text(good)


def test_the_summary_fits_one_screen_and_shows_attempts_ledger_loss_and_cost(good):
    text = _text(good)
    assert len(text.splitlines()) <= 40
    held_out = "held-out loss at step 80: 2.310 nats/byte (gate 2.8: passed)"
    for expected in ("dp=4 zero=0 micro=1x2", "preempted", "succeeded", held_out, "useful", "USD"):
        assert expected in text


def test_a_run_without_preemption_falls_short(good):
    second = replace(good.attempts[1])
    assert shortfalls(replace(good, attempts=(second,))) == ["no attempt was preempted"]


def test_a_preemption_without_a_resume_falls_short(good):
    (found,) = shortfalls(replace(good, attempts=good.attempts[:1]))
    assert "no attempt resumed" in found


@pytest.mark.parametrize("change", ["from_start", "as_large", "other_batch"])
def test_a_restart_that_is_no_resume_on_fewer_ranks_falls_short(good, change):
    first, second = good.attempts
    second = {
        "from_start": replace(second, resumed_from_step=None),
        "as_large": replace(second, placement=first.placement),
        "other_batch": replace(second, layout=replace(second.layout, num_micro_batches=1)),
    }[change]
    (found,) = shortfalls(replace(good, attempts=(first, second)))
    assert "no attempt resumed from a checkpoint on fewer ranks" in found


def test_steps_trained_twice_without_having_been_lost_fall_short(good):
    again = replace(good, steps=(*good.steps, good.steps[0]))
    assert any("trained twice" in each for each in shortfalls(again))


def test_a_failed_gate_falls_short_with_both_numbers(good):
    evaluation = replace(good.evaluation, passed=False, loss=5.0)
    assert shortfalls(replace(good, evaluation=evaluation)) == ["held-out loss 5.000 is above the gate 2.8"]
    assert shortfalls(replace(good, evaluation=None)) == ["there was no evaluation"]


def test_a_held_out_loss_that_is_no_number_falls_short(good):
    evaluation = replace(good.evaluation, passed=False, loss=None)
    assert shortfalls(replace(good, evaluation=evaluation)) == ["held-out loss unknown is above the gate 2.8"]


def test_a_failed_run_says_why(good):
    failed = replace(good, outcome=RunOutcome.FAILED, reason="rank 3 ran out of disk")
    assert "the run failed: rank 3 ran out of disk" in shortfalls(failed)
    assert "not as promised" in _text(failed)


def test_an_unknown_price_is_not_shown_as_zero(good):
    assert "unknown" in _text(replace(good, usd=None))
