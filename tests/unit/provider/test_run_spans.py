from __future__ import annotations

import pytest

from airflow_llmsched.control.journal import Journal, JournalRaceError
from airflow_llmsched.domain.ledger import Bucket, Span
from airflow_llmsched.provider import run_spans


def _spans(scope):
    return [event.span for event in Journal(scope.store(), scope.run_key).read()]


def test_the_first_task_waited_since_the_runs_start(scope):
    assert run_spans.queued(scope, until_s=1007.5, label="open_run") == Span(
        bucket=Bucket.QUEUE, start_s=1000.0, end_s=1007.5, label="open_run"
    )


def test_a_task_records_its_wait_and_its_own_time(scope, monkeypatch):
    monkeypatch.setattr(run_spans.time, "time", lambda: 1020.0)
    with run_spans.measured(scope, Bucket.STAGE, label="stage", task_started_s=1005.0):
        pass
    waited, worked = _spans(scope)
    assert (waited.bucket, waited.start_s, waited.end_s) == (Bucket.QUEUE, 1000.0, 1005.0)
    assert (worked.bucket, worked.start_s, worked.end_s) == (Bucket.STAGE, 1005.0, 1020.0)


def test_a_task_that_fails_records_its_time_all_the_same(scope, monkeypatch):
    monkeypatch.setattr(run_spans.time, "time", lambda: 1020.0)
    with pytest.raises(RuntimeError), run_spans.measured(scope, Bucket.STAGE, label="stage", task_started_s=1005.0):
        raise RuntimeError
    assert [span.bucket for span in _spans(scope)] == [Bucket.QUEUE, Bucket.STAGE]


def test_the_next_task_waited_since_the_last_mark(scope):
    run_spans.note_spans(scope, Span(bucket=Bucket.STAGE, start_s=1000.0, end_s=1020.0))
    assert run_spans.last_mark_s(scope) == 1020.0
    assert run_spans.queued(scope, until_s=1024.0, label="next").start_s == 1020.0


def test_spans_without_length_leave_no_record(scope):
    run_spans.note_spans(scope, Span(bucket=Bucket.QUEUE, start_s=5.0, end_s=5.0))
    assert _spans(scope) == []


def test_a_lost_race_is_tried_again(scope, monkeypatch):
    lost = [True, True]
    append = Journal.append

    def racing(self, events, *, number):
        if lost:
            lost.pop()
            raise JournalRaceError("someone else was first")
        append(self, events, number=number)

    monkeypatch.setattr(Journal, "append", racing)
    run_spans.note_spans(scope, Span(bucket=Bucket.QUEUE, start_s=5.0, end_s=6.0))
    assert len(_spans(scope)) == 1


def test_losing_every_race_is_an_error(scope, monkeypatch):
    def racing(self, events, *, number):
        raise JournalRaceError("someone else was first")

    monkeypatch.setattr(Journal, "append", racing)
    with pytest.raises(JournalRaceError):
        run_spans.note_spans(scope, Span(bucket=Bucket.QUEUE, start_s=5.0, end_s=6.0))
