"""Which optimizer steps a run kept, and which it threw away. Pure.

The run's final state is followed backwards: the last launch resumed from a checkpoint, the launch that wrote it
resumed from another, and so on. Steps on that line are kept; everything else was trained for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.checkpoint import SavedBy
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.progress import CheckpointMark, NodeReport, StepRecord

# Axes: S = step record of one attempt, in order of its start
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_NOTHING = -math.inf
_EVERYTHING = math.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttemptSteps:
    """The steps of one attempt as arrays, each record once. ``kept_S`` is False for what the run threw away."""

    step_S: IntArray
    start_s_S: FloatArray
    end_s_S: FloatArray
    loss_S: FloatArray
    num_tokens_S: IntArray
    kept_S: BoolArray

    def __len__(self) -> int:
        return len(self.step_S)


def in_order(attempts: Iterable[AttemptRecord]) -> tuple[AttemptRecord, ...]:
    """Return the attempts of one generation by number.

    Raises:
        ValueError: Records of two generations, or one attempt number used twice.
    """
    ordered = tuple(sorted(attempts, key=lambda record: record.key.attempt))
    if len({(record.key.run, record.key.generation) for record in ordered}) > 1:
        raise ValueError("attempts of more than one run or generation: give those of one generation")
    if len({record.key.attempt for record in ordered}) < len(ordered):
        raise ValueError("two attempt records carry the same attempt number: give the latest record of each attempt")
    return ordered


def attempt_steps(
    attempts: Iterable[AttemptRecord], reports: Mapping[int, Sequence[NodeReport]]
) -> dict[int, AttemptSteps]:
    """Return every attempt's steps with what became of them, by attempt number.

    A run that succeeded keeps all of its last attempt; so does one that is still training, for now. When the last
    attempt ended otherwise, the newest checkpoint it marked bounds what is kept.
    """
    ordered = in_order(attempts)
    steps = {record.key.attempt: _arrays(reports.get(record.key.attempt, ())) for record in ordered}
    marks = {record.key.attempt: _marks(reports.get(record.key.attempt, ())) for record in ordered}
    kept_through = _kept_through(ordered, steps, marks)
    return {number: _with_kept(found, kept_through[number]) for number, found in steps.items()}


def _kept_through(
    ordered: Sequence[AttemptRecord],
    steps: Mapping[int, AttemptSteps],
    marks: Mapping[int, Sequence[CheckpointMark]],
) -> dict[int, float]:
    bounds = {record.key.attempt: _NOTHING for record in ordered}
    if not ordered:
        return bounds
    current, earlier = ordered[-1], list(ordered[:-1])
    bounds[current.key.attempt] = _last_bound(current, marks[current.key.attempt])
    while earlier and _resume_step(current) > 0:
        writer = _writer_of(current, earlier, steps, marks)
        if writer is None:
            break
        bounds[writer.key.attempt] = _resume_step(current)
        earlier = earlier[: earlier.index(writer)]
        current = writer
    return bounds


def _last_bound(last: AttemptRecord, marks: Sequence[CheckpointMark]) -> float:
    status = last.status
    ended = last.end_seen_at_s is not None or (status is not None and status.phase.ended)
    if not ended or (status is not None and status.phase is GangPhase.SUCCEEDED):
        return _EVERYTHING
    return max((mark.step for mark in marks), default=_resume_step(last))


def _writer_of(
    resumed: AttemptRecord,
    earlier: Sequence[AttemptRecord],
    steps: Mapping[int, AttemptSteps],
    marks: Mapping[int, Sequence[CheckpointMark]],
) -> AttemptRecord | None:
    """The attempt that wrote the checkpoint ``resumed`` started from, by the best evidence there is.

    Where attempts have folders of their own, the folder tells. Else records do, which end early when a node dies with
    unflushed ones: an attempt that got close counts when none got there.
    """
    target = _resume_step(resumed)
    path = resumed.resumed_from.path if resumed.resumed_from else ""
    saved_by = resumed.resumed_from.saved_by if resumed.resumed_from else None

    def evidence(record: AttemptRecord) -> tuple[bool, bool, bool, bool, bool, int]:
        in_its_folder = saved_by is not None and saved_by == SavedBy.of_key(record.key)
        found, own = steps[record.key.attempt], marks[record.key.attempt]
        at_step = [mark for mark in own if mark.step == target]
        reached = len(found) > 0 and int(found.step_S.max()) >= target
        marked = any(mark.path == path for mark in at_step)
        return in_its_folder, marked, bool(at_step), reached, len(found) > 0, record.key.attempt

    able = [record for record in earlier if _resume_step(record) < target and any(evidence(record)[:5])]
    return max(able, key=evidence, default=None)


def _resume_step(record: AttemptRecord) -> int:
    return record.resumed_from.step if record.resumed_from else 0


def _marks(reports: Sequence[NodeReport]) -> tuple[CheckpointMark, ...]:
    return tuple(mark for report in reports for mark in report.marks)


def _arrays(reports: Sequence[NodeReport]) -> AttemptSteps:
    records: list[StepRecord] = [record for report in reports for record in report.steps]
    step_S = np.fromiter((record.step for record in records), np.int64, len(records))
    start_s_S = np.fromiter((record.start_s for record in records), np.float64, len(records))
    end_s_S = np.fromiter((record.end_s for record in records), np.float64, len(records))
    loss_S = np.fromiter((record.loss for record in records), np.float64, len(records))
    num_tokens_S = np.fromiter((record.num_tokens for record in records), np.int64, len(records))
    order = np.lexsort((num_tokens_S, loss_S, end_s_S, step_S, start_s_S))
    step_S, start_s_S, end_s_S = step_S[order], start_s_S[order], end_s_S[order]
    fresh_S = np.ones(len(records), dtype=bool)
    if len(records) > 1:  # a reader that starts over delivers a record twice
        same_step, same_start = step_S[1:] == step_S[:-1], start_s_S[1:] == start_s_S[:-1]
        fresh_S[1:] = ~(same_step & same_start & (end_s_S[1:] == end_s_S[:-1]))
    return AttemptSteps(
        step_S=step_S[fresh_S],
        start_s_S=start_s_S[fresh_S],
        end_s_S=end_s_S[fresh_S],
        loss_S=loss_S[order][fresh_S],
        num_tokens_S=num_tokens_S[order][fresh_S],
        kept_S=np.ones(int(fresh_S.sum()), dtype=bool),
    )


def _with_kept(found: AttemptSteps, kept_through: float) -> AttemptSteps:
    """Of a step trained twice within one attempt only the last counts."""
    last_S = np.zeros(len(found), dtype=bool)
    _, first_from_the_end = np.unique(found.step_S[::-1], return_index=True)
    last_S[len(found) - 1 - first_from_the_end] = True
    return AttemptSteps(
        step_S=found.step_S,
        start_s_S=found.start_s_S,
        end_s_S=found.end_s_S,
        loss_S=found.loss_S,
        num_tokens_S=found.num_tokens_S,
        kept_S=last_S & (found.step_S <= kept_through),
    )
