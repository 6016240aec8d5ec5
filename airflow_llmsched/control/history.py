"""What a journal says about the past: the attempts, and the stretches of time that control measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.machine import advance
from airflow_llmsched.control.run_state import RunPhase, RunState
from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.checkpoint import CheckpointRef
from airflow_llmsched.domain.health import Fault
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.ledger import Bucket, Span


def attempts(events: Iterable[ev.AnyEvent]) -> tuple[AttemptRecord, ...]:
    """Return every intended launch, oldest first, all generations."""
    records: dict[AttemptKey, AttemptRecord] = {}
    plan = None
    resumed_from: CheckpointRef | None = None
    current: AttemptKey | None = None
    for event in events:
        if isinstance(event, ev.PlanChosen):
            plan = event.plan
        elif isinstance(event, ev.CheckpointChosen):
            resumed_from = event.checkpoint
        elif isinstance(event, ev.LaunchIntended) and plan is not None:
            current = event.key
            records[current] = AttemptRecord(
                key=event.key,
                plan=plan,
                channel_root=event.channel_root,
                intended_at_s=event.at_s,
                resumed_from=resumed_from,
            )
        elif isinstance(event, ev.OthersStopped | ev.RunCancelled):
            records = {key: _over(record, event.at_s) for key, record in records.items()}
        elif current is not None:
            records[current] = _with(records[current], event)
    return tuple(records.values())


def _over(record: AttemptRecord, at_s: float) -> AttemptRecord:
    """Whatever had been launched was gone by ``at_s``, though nobody watched it to its end."""
    if record.launched_at_s is None or record.end_seen_at_s is not None:
        return record
    return replace(record, end_seen_at_s=at_s)


def _with(record: AttemptRecord, event: ev.AnyEvent) -> AttemptRecord:
    if isinstance(event, ev.Launched | ev.Adopted):
        return replace(record, launched_at_s=event.at_s)
    if isinstance(event, ev.LaunchRefused):
        return replace(record, end_seen_at_s=event.at_s, fault=event.fault)
    if isinstance(event, ev.GangEnded):
        return replace(record, end_seen_at_s=event.at_s, status=event.status, fault=event.fault)
    if isinstance(event, ev.FaultDetected):
        return replace(record, fault=_first(record.fault, event.fault))
    if isinstance(event, ev.Stopped) and record.status is None:
        return replace(record, end_seen_at_s=event.at_s, status=event.status)
    return record


def _first(known: Fault | None, new: Fault) -> Fault:
    return new if known is None else known


_BEFORE_LAUNCH = frozenset({RunPhase.CLOSING, RunPhase.PLANNING, RunPhase.RESUMING, RunPhase.READY, RunPhase.LAUNCHING})
_RECOVERING = frozenset({RunPhase.MOVING, RunPhase.YIELDING, RunPhase.RECOVERING, RunPhase.ASSESSING})
_GIVING_BACK = frozenset({RunPhase.ENDING, RunPhase.FINISHING, RunPhase.FAILING, RunPhase.CANCELLING})
_NEW_WORKER = (ev.Resumed, ev.Reopened)
_BESIDE_THE_STORY = (ev.SpanNoted, ev.NoticeReceived, ev.CheckpointSeen, ev.LookFailed, ev.Released)
"""Events that do not move the run on: the phase's time goes on through them."""


def spans(run: RunKey, events: Sequence[ev.AnyEvent]) -> tuple[Span, ...]:
    """Return the stretches that control measured: between two recorded events, by the phase between them.

    PROVISION before the generation's first launch and while giving back; RECOVER from a fault to the next launch; QUEUE
    while waiting for capacity or for Airflow to start another worker; HANDOFF between a trigger's yield and the worker.
    They may overlap (a fault is noticed before it is handed over); the ledger gives the more specific one precedence.
    """
    found: list[Span] = []
    state = RunState(run=run)
    launched = False
    since_s: float | None = None
    for event in events:
        if isinstance(event, ev.SpanNoted):
            found.append(event.span)
        elif isinstance(event, ev.HandedOver):
            found.append(_span(Bucket.HANDOFF, event.yielded_at_s, event.at_s, "trigger to worker", state))
        elif isinstance(event, ev.Released):
            found.append(_span(Bucket.PROVISION, event.started_at_s, event.at_s, "release", state))
        elif since_s is not None and not isinstance(event, _BESIDE_THE_STORY):
            bucket = _bucket(state.phase, launched, new_worker=isinstance(event, _NEW_WORKER))
            if bucket is not None:
                found.append(_span(bucket, since_s, event.at_s, state.phase.value, state))
        state, _ = advance(state, event)
        launched = state.launched_at_s is not None or (launched and not isinstance(event, ev.Opened))
        if not isinstance(event, (*_BESIDE_THE_STORY, ev.HandedOver)):
            since_s = event.at_s
    return tuple(span for span in found if span.end_s > span.start_s)


def _bucket(phase: RunPhase, launched: bool, *, new_worker: bool) -> Bucket | None:
    """Return what the time in ``phase`` went to; None while a gang runs, or nothing is open."""
    if phase is RunPhase.WATCHING:
        return None
    if new_worker or phase is RunPhase.WAITING:
        return Bucket.QUEUE
    if phase in _BEFORE_LAUNCH:
        return Bucket.RECOVER if launched else Bucket.PROVISION
    if phase in _RECOVERING:
        return Bucket.RECOVER
    return Bucket.PROVISION if phase in _GIVING_BACK else None


def _span(bucket: Bucket, start_s: float, end_s: float, label: str, state: RunState) -> Span:
    return Span(bucket=bucket, start_s=start_s, end_s=end_s, label=label, attempt=state.attempt or None)
