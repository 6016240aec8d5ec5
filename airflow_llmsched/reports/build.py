"""From what control and agents recorded to a run report. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.control.allowances import answer_command
from airflow_llmsched.control.checkpoint_line import CheckpointLine
from airflow_llmsched.control.lease_book import Rental
from airflow_llmsched.control.ledger import build_ledger, end_s, launch_s, stalls
from airflow_llmsched.control.lineage import AttemptSteps, attempt_steps, in_order
from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.checkpoint import CheckpointRef, Damaged, Sound, Verdict
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.ledger import Bucket, Ledger, Span
from airflow_llmsched.domain.progress import CheckpointMark, NodeReport
from airflow_llmsched.domain.run_report import (
    AttemptRow,
    CheckpointRow,
    CheckpointState,
    EvaluationResult,
    PriceList,
    RunNames,
    RunOutcome,
    RunReport,
    StepRow,
)
from airflow_llmsched.units import HOUR_S

# Axes: S = step record of one attempt, in order of its start
MAX_UNCLASSIFIED_RATIO = 0.02
NO_LINE = CheckpointLine()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpeed:
    """What MFU is measured against.

    ``flop_per_token`` is the model FLOP of a trained token from each step on (step, FLOP; ascending), as sequences may
    grow. ``peak_flop_per_s`` is the dense peak of one accelerator, by node shape, as attempts may have different ones.
    """

    flop_per_token: tuple[tuple[int, float], ...]
    peak_flop_per_s: Mapping[str, float]

    def model_flop(self, steps: AttemptSteps) -> float:
        """Return the model FLOP of an attempt's kept steps."""
        first, flop = np.array(self.flop_per_token, dtype=np.float64).T
        phase_S = np.maximum(np.searchsorted(first, steps.step_S, side="right") - 1, 0)
        return float((steps.num_tokens_S * flop[phase_S])[steps.kept_S].sum())


def build_report(
    *,
    names: RunNames,
    outcome: RunOutcome,
    run_start_s: float,
    run_end_s: float,
    created_at_s: float,
    reason: str = "",
    spans: Iterable[Span] = (),
    attempts: Iterable[AttemptRecord] = (),
    earlier: Iterable[AttemptRecord] = (),
    reports: Mapping[int, Sequence[NodeReport]] | None = None,
    checkpoints: Iterable[tuple[CheckpointRef, Verdict | None]] = (),
    line: CheckpointLine = NO_LINE,
    evaluation: EvaluationResult | None = None,
    prices: PriceList | None = None,
    speed: ModelSpeed | None = None,
    rentals: Iterable[Rental] = (),
) -> RunReport:
    """Put the report together; what is missing leaves a note, never an error.

    ``run_start_s`` to ``created_at_s`` are Unix seconds, ``run_end_s`` is now for a run that goes on. ``spans``,
    ``attempts`` and ``reports`` are as in :func:`airflow_llmsched.control.ledger.build_ledger`; attempts of generations
    before are ``earlier`` ones, which only cost. ``checkpoints`` is what storage holds, each with the verdict of a
    verification or None; ``line`` says which of it the run can go on from. ``rentals`` are the run's, ended or not.

    Raises:
        ValueError: As :func:`airflow_llmsched.control.ledger.build_ledger`.
    """
    ordered, before, reports = in_order(attempts), tuple(earlier), reports or {}
    ledger = build_ledger(run_start_s=run_start_s, run_end_s=run_end_s, spans=spans, attempts=ordered, reports=reports)
    by_attempt = attempt_steps(ordered, reports)
    rows = tuple(_attempt_row(record, by_attempt[record.key.attempt], prices, ledger.end_s) for record in ordered)
    kept_s = _kept_durations(by_attempt)
    rented_usd = [each.cost_usd(run_end_s) for each in rentals if not each.was_refused]
    earlier_usd = _sum([_cost(record, prices, ledger.end_s)[1] for record in before])
    return RunReport(
        names=names,
        outcome=outcome,
        reason=reason,
        created_at_s=created_at_s,
        ledger=ledger,
        attempts=rows,
        steps=tuple(row for record in ordered for row in _step_rows(record, by_attempt[record.key.attempt])),
        checkpoints=_checkpoint_rows(ordered, reports, checkpoints, line, generation=names.generation),
        evaluation=evaluation,
        usd=_sum([earlier_usd, *(row.usd for row in rows)]),
        price_source=prices.source if prices else None,
        num_tokens_kept=sum(int(each.num_tokens_S[each.kept_S].sum()) for each in by_attempt.values()),
        num_tokens_lost=sum(int(each.num_tokens_S[~each.kept_S].sum()) for each in by_attempt.values()),
        step_s_median=float(np.median(kept_s)) if len(kept_s) else None,
        step_s_p95=float(np.quantile(kept_s, 0.95)) if len(kept_s) else None,
        mfu_ratio=_mfu_ratio(ordered, by_attempt, speed),
        notes=_notes(ordered, by_attempt, ledger, evaluation, rows, unpriced=_unpriced((*ordered, *before), prices)),
        earlier_usd=earlier_usd,
        num_earlier_attempts=len(before),
        rented_usd=sum(rented_usd) if rented_usd else None,
        num_rentals=len(rented_usd),
    )


def with_question(report: RunReport, asks: str) -> RunReport:
    """Return the report saying first that the run waits to be told about its budget, where it ``asks`` anything."""
    if not asks:
        return report
    answer = answer_command(report.names.run_key)
    words = f"The run waits for an answer about its budget: {asks}. Answer with: {answer}."
    return replace(report, notes=(words, *report.notes))


def _attempt_row(
    record: AttemptRecord, steps: AttemptSteps, prices: PriceList | None, report_end_s: float
) -> AttemptRow:
    node_s, usd = _cost(record, prices, report_end_s)
    duration_s_S = (steps.end_s_S - steps.start_s_S)[steps.kept_S]
    return AttemptRow(
        attempt=record.key.attempt,
        name=record.key.name,
        layout=record.plan.layout,
        placement=record.plan.placement,
        node_shape=record.plan.node_shape,
        predicted_step_s=record.plan.prediction.step_s,
        intended_at_s=record.intended_at_s,
        launched_at_s=launch_s(record),
        ended_at_s=end_s(record),
        phase=record.status.phase if record.status else None,
        resumed_from_step=record.resumed_from.step if record.resumed_from else None,
        num_steps_kept=int(steps.kept_S.sum()),
        num_steps_lost=int((~steps.kept_S).sum()),
        step_s_median=float(np.median(duration_s_S)) if len(duration_s_S) else None,
        node_s=node_s,
        usd=usd,
        fault=record.fault,
        reason=record.status.reason if record.status else "",
    )


def _cost(record: AttemptRecord, prices: PriceList | None, report_end_s: float) -> tuple[float, float | None]:
    """Return the node time of one launch (seconds) and what it cost; None for a shape without a price."""
    launched_s, ended_s = launch_s(record), end_s(record)
    held_until_s = report_end_s if ended_s is None else ended_s
    node_s = 0.0 if launched_s is None else max(0.0, held_until_s - launched_s) * len(record.plan.placement.nodes)
    usd_per_hour = prices.usd_per_hour.get(record.plan.node_shape) if prices else None
    return node_s, None if usd_per_hour is None else node_s / HOUR_S * usd_per_hour


def _unpriced(records: Iterable[AttemptRecord], prices: PriceList | None) -> tuple[str, ...]:
    return tuple(sorted({record.plan.node_shape for record in records} - set(prices.usd_per_hour if prices else ())))


def _sum(costs_usd: Sequence[float | None]) -> float | None:
    known = [each for each in costs_usd if each is not None]
    return sum(known) if len(known) == len(costs_usd) else None


def _step_rows(record: AttemptRecord, steps: AttemptSteps) -> Iterable[StepRow]:
    stalled_S, typical_s_S = stalls(steps)
    duration_s_S = steps.end_s_S - steps.start_s_S
    stall_s_S = np.where(stalled_S, duration_s_S - typical_s_S, 0.0)
    columns = zip(
        steps.step_S.tolist(),
        steps.end_s_S.tolist(),
        duration_s_S.tolist(),
        steps.loss_S.tolist(),
        steps.num_tokens_S.tolist(),
        steps.kept_S.tolist(),
        stall_s_S.tolist(),
        strict=True,
    )
    for step, ended_s, step_s, loss, num_tokens, kept, stall_s in columns:
        yield StepRow(
            attempt=record.key.attempt,
            step=step,
            end_s=ended_s,
            step_s=step_s,
            loss=loss if math.isfinite(loss) else None,
            num_tokens=num_tokens,
            kept=kept,
            stall_s=stall_s,
        )


def _checkpoint_rows(
    ordered: Sequence[AttemptRecord],
    reports: Mapping[int, Sequence[NodeReport]],
    checkpoints: Iterable[tuple[CheckpointRef, Verdict | None]],
    line: CheckpointLine,
    *,
    generation: int,
) -> tuple[CheckpointRow, ...]:
    """Join what storage holds with the trainer's marks; storage decides about the state."""
    marked: dict[str, tuple[int, CheckpointMark]] = {}
    for record in ordered:
        for report in reports.get(record.key.attempt, ()):
            marked.update((mark.path, (record.key.attempt, mark)) for mark in report.marks)
    rows = []
    for ref, verdict in checkpoints:
        attempt, mark = marked.pop(ref.path, (None, None))
        if ref.saved_by is not None and ref.saved_by.generation == generation:
            attempt = ref.saved_by.attempt
        state, reason = _checkpoint_state(ref, verdict, line)
        rows.append(
            CheckpointRow(
                step=ref.step,
                path=ref.path,
                state=state,
                attempt=attempt,
                saved_at_s=mark.at_s if ref.saved_at_s is None and mark else ref.saved_at_s,
                digest=verdict.digest if isinstance(verdict, Sound) else None,
                num_bytes=verdict.num_bytes if isinstance(verdict, Sound) else None,
                reason=reason,
            )
        )
    rows += [
        CheckpointRow(
            step=mark.step, path=mark.path, state=CheckpointState.MARKED, attempt=attempt, saved_at_s=mark.at_s
        )
        for attempt, mark in marked.values()
    ]
    return tuple(sorted(rows, key=lambda row: (row.step, row.path)))


def _checkpoint_state(ref: CheckpointRef, verdict: Verdict | None, line: CheckpointLine) -> tuple[CheckpointState, str]:
    if ref.torn_reason is not None:
        return CheckpointState.TORN, ref.torn_reason
    if isinstance(verdict, Damaged):
        return CheckpointState.DAMAGED, verdict.reason
    if why := line.why_not(ref):
        return CheckpointState.GIVEN_UP, why
    if isinstance(verdict, Sound):
        return CheckpointState.VERIFIED, f"verified by {verdict.depth.value}"
    return CheckpointState.COMPLETE, ""


def _kept_durations(by_attempt: Mapping[int, AttemptSteps]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    kept = [(each.end_s_S - each.start_s_S)[each.kept_S] for each in by_attempt.values()]
    return np.concatenate(kept) if kept else np.empty(0)


def _mfu_ratio(
    ordered: Sequence[AttemptRecord], by_attempt: Mapping[int, AttemptSteps], speed: ModelSpeed | None
) -> float | None:
    """Chowdhery et al. (2022), PaLM: observed token throughput over the throughput at the hardware's dense peak.

    Attempts on a shape whose peak is not known count on neither side.
    """
    if speed is None:
        return None
    model_flop = possible_flop = 0.0
    for record in ordered:
        peak_flop_per_s = speed.peak_flop_per_s.get(record.plan.node_shape)
        if peak_flop_per_s is None:
            continue
        steps = by_attempt[record.key.attempt]
        model_flop += speed.model_flop(steps)
        kept_s = float((steps.end_s_S - steps.start_s_S)[steps.kept_S].sum())
        possible_flop += kept_s * record.plan.placement.world_size * peak_flop_per_s
    return model_flop / possible_flop if possible_flop > 0 else None


def _notes(
    ordered: Sequence[AttemptRecord],
    by_attempt: Mapping[int, AttemptSteps],
    ledger: Ledger,
    evaluation: EvaluationResult | None,
    rows: Sequence[AttemptRow],
    *,
    unpriced: Sequence[str],
) -> tuple[str, ...]:
    notes = []
    if not ordered:
        notes.append("No gang was launched, so there are no steps, checkpoints or costs.")
    silent = [str(number) for number, steps in by_attempt.items() if not len(steps)]
    if silent:
        notes.append(f"No training step is recorded for attempt {', '.join(silent)}.")
    missing = _num_missing_steps(by_attempt)
    if missing:
        notes.append(f"Steps between the first and the last one kept that have no record: {missing}.")
    notes += _began_again(ordered, by_attempt)
    not_finite = sum(int((~np.isfinite(steps.loss_S)).sum()) for steps in by_attempt.values())
    if not_finite:
        notes.append(f"Steps whose loss was not a finite number: {not_finite}.")
    if evaluation is None:
        notes.append("No evaluation result is known.")
    if unpriced:
        notes.append(f"No list price is known for node shape {', '.join(unpriced)}, so the cost is not known.")
    unending = [str(row.attempt) for row in rows if row.ended_at_s is None and row.launched_at_s is not None]
    if unending:
        notes.append(f"The end of attempt {', '.join(unending)} is not recorded; it is charged to the end of the run.")
    if any(row.phase is GangPhase.LOST for row in rows):
        notes.append("A gang was lost: its last records may be missing.")
    if ledger.ratio(Bucket.UNCLASSIFIED) > MAX_UNCLASSIFIED_RATIO:
        notes.append(f"{ledger.ratio(Bucket.UNCLASSIFIED):.1%} of the wall time is covered by no measurement.")
    return tuple(notes)


def _began_again(ordered: Sequence[AttemptRecord], by_attempt: Mapping[int, AttemptSteps]) -> Iterable[str]:
    """A trainer that looks for its last checkpoint where it saves finds none there: each attempt has its own folder."""
    for record in ordered:
        step_S = by_attempt[record.key.attempt].step_S
        if record.resumed_from is not None and len(step_S) and int(step_S.min()) <= record.resumed_from.step:
            yield (
                f"Attempt {record.key.attempt} was to go on from step {record.resumed_from.step} but trained step "
                f"{int(step_S.min())}: have the trainer load LLMSCHED_RESUME_FROM, or set checkpoint.separate_paths to "
                "false if it has one path for loading and saving."
            )


def _num_missing_steps(by_attempt: Mapping[int, AttemptSteps]) -> int:
    kept = [steps.step_S[steps.kept_S] for steps in by_attempt.values()]
    seen = np.unique(np.concatenate(kept)) if kept else np.empty(0, dtype=np.int64)
    return int(seen[-1] - seen[0] + 1 - len(seen)) if len(seen) else 0
