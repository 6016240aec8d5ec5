"""Time that tasks measure for the run's ledger, kept in the run's journal beside what control records there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from airflow_llmsched.control.events import SpanNoted
from airflow_llmsched.control.journal import Journal, JournalRaceError
from airflow_llmsched.domain.ledger import Bucket, Span
from airflow_llmsched.provider.run_scope import RunScope

MAX_RACES = 20


def note_spans(scope: RunScope, *spans: Span) -> None:
    """Record spans; those without length are left out. Raises ``StoreError``."""
    kept = [span for span in spans if span.end_s > span.start_s]
    journal = Journal(scope.store(), scope.run_key)
    for races_left in reversed(range(MAX_RACES if kept else 0)):
        events = [SpanNoted(at_s=time.time(), span=span) for span in kept]
        try:
            journal.append(events, number=journal.num_records() + 1)
        except JournalRaceError:
            if not races_left:
                raise
        else:
            break


def queued(scope: RunScope, *, until_s: float, label: str) -> Span:
    """Return the wait for Airflow to start this task: since the last thing the journal knows."""
    return Span(bucket=Bucket.QUEUE, start_s=min(last_mark_s(scope), until_s), end_s=until_s, label=label)


def last_mark_s(scope: RunScope) -> float:
    """Return the time up to which the journal accounts for the run, in Unix seconds; at first its start."""
    marks_s = [scope.started_at_s]
    events = Journal(scope.store(), scope.run_key).read()
    marks_s.extend(event.span.end_s if isinstance(event, SpanNoted) else event.at_s for event in events)
    return max(marks_s)


@contextlib.contextmanager
def measured(scope: RunScope, bucket: Bucket, *, label: str, task_started_s: float) -> Iterator[None]:
    """Record the wait before this task, and its own time under ``bucket`` however it ends."""
    waited = queued(scope, until_s=task_started_s, label=label)
    try:
        yield
    finally:
        note_spans(scope, waited, Span(bucket=bucket, start_s=task_started_s, end_s=time.time(), label=label))
