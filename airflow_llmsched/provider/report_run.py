"""Gathers what is known of a run and has the report written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from airflow_llmsched.control import events as ev
from airflow_llmsched.control import history
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.machine import fold
from airflow_llmsched.control.records import read_all
from airflow_llmsched.control.run_state import RunPhase, RunState
from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.checkpoint import CheckpointRef, Verdict, VerifyDepth
from airflow_llmsched.domain.progress import NodeReport
from airflow_llmsched.domain.run_report import EvaluationResult, PriceList, RunNames, RunOutcome, RunReport
from airflow_llmsched.domain.workload import WorkloadSpec, count_phase_steps
from airflow_llmsched.errors import CouldNotLookError, DataError
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.perf.job import job_of
from airflow_llmsched.planner.perf.step import model_flop_per_token
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.channels import open_channel
from airflow_llmsched.provider.gang_run import checkpoint_format
from airflow_llmsched.provider.places import checkpoint_root, storage_roots
from airflow_llmsched.provider.rentals import open_book
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.reports import files
from airflow_llmsched.reports.build import ModelSpeed, build_report, with_question

T = TypeVar("T")

_OUTCOMES = {
    RunPhase.SUCCEEDED: RunOutcome.SUCCEEDED,
    RunPhase.FAILED: RunOutcome.FAILED,
    RunPhase.CANCELLED: RunOutcome.CANCELLED,
}


def write_report(scope: RunScope, *, end_s: float) -> dict[str, Any]:
    """Write ``report.html`` and ``report.json`` into the run's folder. Returns their paths and the main figures."""
    report = gather(scope, end_s=end_s)
    html_path, json_path = files.write(report, scope.directory)
    return {
        "html": str(html_path),
        "json": str(json_path),
        "outcome": report.outcome.value,
        "num_attempts": len(report.attempts),
        "ettr_ratio": round(report.ledger.ettr_ratio, 4),
        "usd": report.usd,
        "rented_usd": report.rented_usd,
    }


def gather(scope: RunScope, *, end_s: float) -> RunReport:
    """Return the report of the run's last generation as far as it is known. Raises ``StoreError``, ``JournalError``."""
    events = Journal(scope.store(), scope.run_key).read()
    state = fold(scope.run_key, events)
    launched = history.attempts(events)
    attempts = tuple(each for each in launched if each.key.generation == state.generation)
    spec = _or_none(run_files.read_spec, scope)
    start_s = _start_s(scope, events, state)
    evaluation = _evaluation(scope, generation_start_s=start_s)
    rented = open_book(scope).read()
    report = build_report(
        names=RunNames(
            run_key=scope.run_key,
            generation=state.generation,
            workload=spec.name if spec else "unknown",
            dag_id=scope.dag_id,
            run_id=scope.run_id,
        ),
        outcome=_outcome(state, spec, evaluation),
        reason=state.reason,
        run_start_s=start_s,
        run_end_s=end_s,
        created_at_s=time.time(),
        spans=history.spans(scope.run_key, events),
        attempts=attempts,
        earlier=tuple(each for each in launched if each.key.generation != state.generation),
        reports={each.key.attempt: _reports(each) for each in attempts},
        checkpoints=tuple(_checkpoints(scope, spec, events)) if spec else (),
        line=state.line,
        evaluation=evaluation,
        prices=_prices(launched),
        speed=_speed(spec, attempts),
        rentals=rented.rentals,
    )
    damage = tuple(f"What was rented is not known in full: {each}" for each in rented.damage)
    report = replace(report, notes=(*report.notes, *damage))
    return with_question(report, "" if state.phase.terminal else state.asks)


def _outcome(state: RunState, spec: WorkloadSpec | None, evaluation: EvaluationResult | None) -> RunOutcome:
    outcome = _OUTCOMES.get(state.phase, RunOutcome.FAILED if state.phase is RunPhase.NEW else RunOutcome.UNFINISHED)
    if outcome is RunOutcome.SUCCEEDED and spec is not None and spec.evaluation is not None:
        return RunOutcome.SUCCEEDED if evaluation is not None and evaluation.passed else RunOutcome.FAILED
    return outcome


def _start_s(scope: RunScope, events: tuple[ev.AnyEvent, ...], state: RunState) -> float:
    """Return when the generation began: the DAG run's start, or for a cleared run when it was opened again."""
    opened = [event for event in events if isinstance(event, ev.Opened)]
    if len(opened) > 1:
        return max(event.at_s for event in opened if event.generation == state.generation)
    return scope.started_at_s


def _reports(attempt: AttemptRecord) -> tuple[NodeReport, ...]:
    return read_all(open_channel(attempt.channel_root))


def _checkpoints(
    scope: RunScope, spec: WorkloadSpec, events: tuple[ev.AnyEvent, ...]
) -> Iterator[tuple[CheckpointRef, Verdict | None]]:
    adapter = checkpoint_format(spec)
    intended = [event.checkpoint_root for event in events if isinstance(event, ev.LaunchIntended)]
    known = (checkpoint_root(scope, spec), *storage_roots(scope.run_key), *filter(None, intended))
    for root in dict.fromkeys(known):
        with contextlib.suppress(CouldNotLookError):  # the report notes which marked ones nobody saw on storage
            for ref in adapter.scan(root):
                yield ref, adapter.verify(ref, depth=VerifyDepth.SIZES) if ref.complete else None


def _evaluation(scope: RunScope, *, generation_start_s: float) -> EvaluationResult | None:
    """Return what is known of the evaluation; one of a generation before this one does not count."""
    found = _or_none(_read_evaluation, scope)
    return found if found is not None and found.evaluated_at_s >= generation_start_s else None


def _read_evaluation(scope: RunScope) -> EvaluationResult:
    return run_files.read(scope, run_files.EVALUATION_FILE, EvaluationResult, made_by="EvaluateCheckpointOperator")


def _prices(attempts: tuple[AttemptRecord, ...]) -> PriceList | None:
    shapes = node_shapes()
    used = {attempt.plan.node_shape for attempt in attempts} & set(shapes)
    if not used:
        return None
    return PriceList(
        usd_per_hour={name: shapes[name].usd_per_hour for name in used},
        source="; ".join(sorted({shapes[name].source for name in used})),
    )


def _speed(spec: WorkloadSpec | None, attempts: tuple[AttemptRecord, ...]) -> ModelSpeed | None:
    """Return what MFU is measured against, by the planner's own count; None where nothing says what is computed."""
    if spec is None or spec.model is None:
        return None
    shapes = node_shapes()
    used = {attempt.plan.node_shape for attempt in attempts} & set(shapes)
    peaks = {name: shapes[name].accelerator.peak_flop_per_s.get(spec.precision.compute) for name in used}
    flop_per_token, first_step = [], 1
    for phase, num_steps in zip(spec.batch, count_phase_steps(spec.batch, spec.budget), strict=True):
        job = job_of(spec, phase)
        assert job is not None, "a workload with a model has a job"
        flop_per_token.append((first_step, float(model_flop_per_token(job))))
        first_step += num_steps
    return ModelSpeed(
        flop_per_token=tuple(flop_per_token),
        peak_flop_per_s={name: peak for name, peak in peaks.items() if peak is not None},
    )


def _or_none(read: Callable[[RunScope], T], scope: RunScope) -> T | None:
    try:
        return read(scope)
    except DataError:
        return None
