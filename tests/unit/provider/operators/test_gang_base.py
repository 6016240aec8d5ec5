from __future__ import annotations

import datetime
import inspect
import threading
from pathlib import Path

import pytest
from airflow.sdk.bases.operator import TriggerFailureReason
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.supervisor import WatchedSubprocess

from airflow_llmsched.control import events as ev
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import SpecError
from airflow_llmsched.provider.gang_watch import KILLED, GangWatch
from airflow_llmsched.provider.operators import gang_base
from airflow_llmsched.provider.operators.gang_base import MAX_BROKEN_WATCHES, GangFailedError

TRIGGER_FAILED = {"error": TriggerFailureReason.TRIGGER_FAILURE.value, "traceback": ["Traceback", "ImportError: x"]}


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime(2026, 3, 29, 1, 30, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
        datetime.timedelta(seconds=90),
        Path("/x"),
        {1, 2},
        {"deep": [{"at": Path("/x")}]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_option_that_would_not_survive_the_trip_is_refused_before_anything_starts(slow, deferrable, value):
    with pytest.raises(AirflowFailException, match=r"engine_options\.note") as refused:
        slow.run("run_gang", deferrable=deferrable, engine_options={**slow.options, "note": value})
    assert isinstance(refused.value.__cause__, SpecError)
    assert not slow.engine.find(slow.scope.run_key)


def test_a_trigger_that_airflow_could_not_run_is_reconciled_and_watched_again(slow):
    deferred = slow.defer("run_gang")
    (before,) = slow.live()
    deferred.again(deferred.task.resume_execution, "__fail__", TRIGGER_FAILED, deferred.context)
    assert slow.live() == [before]
    assert deferred.trigger.watch["handle"]["native_id"] == before.native_id


def test_triggers_that_keep_failing_end_the_gang_instead_of_going_on_for_ever(slow):
    deferred = slow.defer("run_gang")
    # Airflow replaces the task's own arguments when a trigger fails, so the count cannot be among them.
    for _ in range(MAX_BROKEN_WATCHES - 1):
        deferred.again(deferred.task.resume_execution, "__fail__", dict(TRIGGER_FAILED), deferred.context)
    (gang,) = slow.live()
    failed = rf"(?s)stopped {gang.key.name}: watching failed {MAX_BROKEN_WATCHES} times in a row.*ImportError: x"
    with pytest.raises(GangFailedError, match=failed):
        deferred.task.resume_execution("__fail__", dict(TRIGGER_FAILED), deferred.context)
    assert not slow.live()


def test_a_watch_that_ends_well_starts_the_count_again(slow):
    deferred = slow.defer("run_gang")
    woke = {"handover": {"kind": "woke", "at_s": 0.0}, "yielded_at_s": 0.0}
    for _ in range(MAX_BROKEN_WATCHES):
        deferred.again(deferred.task.resume_execution, "__fail__", dict(TRIGGER_FAILED), deferred.context)
        deferred.again(deferred.resume, woke)
    assert len(slow.live()) == 1


def test_airflows_own_time_limit_stops_the_gang_and_says_what_to_do(slow):
    deferred = slow.defer("run_gang")
    timeout = {"error": TriggerFailureReason.TRIGGER_TIMEOUT.value}
    with pytest.raises(GangFailedError, match=r"time limit.*budget\.deadline"):
        deferred.task.resume_execution("__fail__", timeout, deferred.context)
    assert not slow.live()
    assert any(isinstance(event, ev.CancelRequested) for event in slow.journal())


def test_other_resumptions_are_airflows(slow):
    deferred = slow.defer("run_gang")
    payload = {"broken": "x", "yielded_at_s": 0.0}
    deferred.again(deferred.task.resume_execution, "resume", {"event": payload}, deferred.context)
    assert len(slow.live()) == 1


def test_killing_the_worker_ends_the_generation_record_first(slow):
    deferred = slow.defer("run_gang")
    assert len(slow.live()) == 1
    deferred.task.on_kill()
    assert not slow.live()
    kinds = [event.kind for event in slow.journal()]
    (request,) = [event for event in slow.journal() if isinstance(event, ev.CancelRequested)]
    assert request.reason == KILLED
    assert kinds.index("cancel_requested") < kinds.index("run_cancelled")


def test_a_kill_that_comes_twice_is_one(slow, monkeypatch):
    """Field case A28: also while the first is at work."""
    deferred = slow.defer("run_gang")
    reasons = []

    def cancel(_settings, reason):
        reasons.append(reason)
        deferred.task.on_kill()  # a second SIGTERM

    monkeypatch.setattr(deferred.task, "cancel", cancel)
    deferred.task.on_kill()
    deferred.task.on_kill()
    assert reasons == [KILLED]


def test_a_kill_that_hangs_gives_up_and_says_who_ends_the_gang(slow, monkeypatch, capsys):
    """Field case A28."""
    deferred = slow.defer("run_gang")
    never = threading.Event()
    monkeypatch.setattr(gang_base, "KILL_LIMIT_S", 0.1)
    monkeypatch.setattr(LocalEngine, "stop", lambda *_arguments, **_named: never.wait(60))
    deferred.task.on_kill()
    assert "release sees to it" in capsys.readouterr().out
    assert [event.kind for event in slow.journal()][-1] == "cancel_requested"
    never.set()


def test_a_kill_that_fails_is_logged_and_leaves_the_task_to_its_end(slow, monkeypatch, capsys):
    deferred = slow.defer("run_gang")

    def fail(_settings, _reason):
        raise OSError("disk gone")

    monkeypatch.setattr(deferred.task, "cancel", fail)
    deferred.task.on_kill()
    shown = capsys.readouterr().out
    assert "may still be alive" in shown
    assert "disk gone" in shown


def test_the_limit_of_a_kill_lies_below_airflows():
    delay = inspect.signature(WatchedSubprocess.kill).parameters["escalation_delay"]
    assert delay.default > gang_base.KILL_LIMIT_S


def test_killing_a_worker_that_had_not_begun_touches_nothing(slow):
    slow.defer("run_gang")
    slow.task("run_gang").on_kill()
    assert len(slow.live()) == 1


@pytest.mark.parametrize("num_failures", [1, MAX_BROKEN_WATCHES - 1])
def test_a_blocking_watch_that_breaks_starts_again_like_the_trigger(pipeline, monkeypatch, num_failures):
    pipeline.prepare()
    step, failures = GangWatch.step, []

    def shaky(self):
        if len(failures) < num_failures:
            failures.append(1)
            raise RuntimeError("unforeseen")
        return step(self)

    monkeypatch.setattr(GangWatch, "step", shaky)
    assert pipeline.run("run_gang")["num_attempts"] == 1
    assert len(failures) == num_failures


def test_a_blocking_watch_that_stays_broken_stops_the_gang(slow, monkeypatch):
    """Field case A4."""

    def broken(_self):
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(GangWatch, "step", broken)
    with pytest.raises(GangFailedError, match="3 times in a row: RuntimeError: unforeseen"):
        slow.run("run_gang")
    assert not slow.live()


@pytest.mark.parametrize(
    ("spec_deadline_s", "timeout_s", "expected_s"),
    [
        (None, None, None),
        (7200.0, None, 7200.0),
        (None, 3600.0, 3540.0),
        (None, 100.0, 80.0),
        (7200.0, 3600.0, 3540.0),
        (600.0, 3600.0, 600.0),
    ],
)
def test_our_deadline_lies_below_airflows(make_pipeline, spec_deadline_s, timeout_s, expected_s):
    budget = {"steps": 6} | ({} if spec_deadline_s is None else {"deadline": f"{spec_deadline_s:.0f}s"})
    made = make_pipeline(arguments=("--step-s=60",), budget=budget).prepare()
    timeout = None if timeout_s is None else datetime.timedelta(seconds=timeout_s)
    deferred = made.defer("run_gang", execution_timeout=timeout)
    deadline_s = None if expected_s is None else made.started.timestamp() + expected_s
    assert deferred.trigger.settings["deadline_s"] == pytest.approx(deadline_s)
    assert deferred.trigger.watch["deadline_s"] == pytest.approx(deadline_s)


def test_a_deadline_that_came_from_airflows_time_limit_says_so(slow):
    timeout = datetime.timedelta(seconds=3)
    with pytest.raises(GangFailedError, match=r"^deadline reached .*execution_timeout \(0:00:03\)"):
        slow.run("run_gang", execution_timeout=timeout)
    assert not slow.live()


def test_a_failed_gang_shows_the_last_lines_of_the_guilty_rank(make_pipeline):
    made = make_pipeline(arguments=("--fail-at=3",)).prepare()
    with pytest.raises(GangFailedError, match=r"rank 1 .*exited with code 3") as failed:
        made.run("run_gang")
    assert str(failed.value).count("giving up at step 3") == 1
