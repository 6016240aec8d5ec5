"""The ETTR ledger: every wall-clock second of a run in exactly one bucket. Pure: no clock, no I/O.

Every bucket is made of measured intervals; none is computed as what the others leave over. A sweep over the run gives
each instant to the most specific measurement that covers it, and instants that none covers are ``UNCLASSIFIED``
intervals, so the spans tile the wall time. Precedence, strongest first (the order of ``_Layer``):

1. SAVE: a rank's save span, united over ranks: training stood still.
2. EVALUATE: a rank's evaluation span inside training.
3. INIT: from the launch (the engine's ``started_at_s`` or ``launched_at_s``, whichever came first) to
   ``agent.ready()`` of the last rank, but no further than the end of the gang's first step, which proves that all
   ranks were ready.
4. Steps. USEFUL when the run kept the step, else LOST (see :mod:`airflow_llmsched.control.lineage`). A step that takes
   longer than max(3 x median, median + 1 s) is a stall: its excess over the running median is LOST. The excess of an
   attempt's first step is warm-up (connections, allocators, compilation) and INIT.
5. A gang's tail, from the last step or span of its ranks to its end: PROVISION (giving back) when it succeeded, else
   LOST (ranks alive without progress). A gang that ended otherwise and never got anywhere is LOST from its launch.
6. What control measured: HANDOFF, then EVALUATE, STAGE, RECOVER, PROVISION, QUEUE.
7. What follows from times control recorded: RECOVER from a gang's end to the next launch, PROVISION from the first
   intent to the first launch, HANDOFF from the last gang's end to control's seeing it.

Clocks of nodes and control may disagree, and records may come late, twice or out of order: intervals are clipped to
the run, empty and backward ones are dropped, and of two equally specific ones the earlier start wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from airflow_llmsched.control.lineage import AttemptSteps, BoolArray, FloatArray, attempt_steps, in_order
from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.ledger import Bucket, Ledger, Span
from airflow_llmsched.domain.progress import AgentSpan, AgentSpanKind, NodeReport

# Axes: S = step record of one attempt, I = interval of one layer, E = edge of the sweep
STALL_FACTOR = 3.0
STALL_MARGIN_S = 1.0
MEDIAN_WINDOW_STEPS = 33
"""Steps the running median looks at. A slow-down of more than half of it is the attempt's pace, not a stall."""

_MEDIAN_CHUNK_STEPS = 1 << 16
_UNASSIGNED = -1
_NO_ATTEMPT = -1


class _Layer(IntEnum):
    """How specific a measurement is; lower values win."""

    SAVE = auto()
    TRAINING_EVALUATION = auto()
    INIT = auto()
    STEP = auto()
    TAIL = auto()
    HANDOFF = auto()
    EVALUATE = auto()
    STAGE = auto()
    RECOVER = auto()
    PROVISION = auto()
    QUEUE = auto()
    RECORDED = auto()


_CONTROL_LAYER = {
    Bucket.HANDOFF: _Layer.HANDOFF,
    Bucket.EVALUATE: _Layer.EVALUATE,
    Bucket.STAGE: _Layer.STAGE,
    Bucket.RECOVER: _Layer.RECOVER,
    Bucket.PROVISION: _Layer.PROVISION,
    Bucket.QUEUE: _Layer.QUEUE,
}
_AGENT_LAYER = {
    AgentSpanKind.SAVE: (_Layer.SAVE, Bucket.SAVE, "checkpoint"),
    AgentSpanKind.EVALUATE: (_Layer.TRAINING_EVALUATION, Bucket.EVALUATE, "in training"),
}


@dataclass(frozen=True, slots=True, order=True)
class _Tag:
    """What an interval says about an instant. The order makes results independent of the order of inputs."""

    bucket: str
    attempt: int
    label: str


_NOTHING_MEASURED = _Tag(Bucket.UNCLASSIFIED.value, _NO_ATTEMPT, "")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Intervals:
    """Intervals of one layer and one tag."""

    layer: _Layer
    tag: _Tag
    start_s_I: FloatArray
    end_s_I: FloatArray


def build_ledger(
    *,
    run_start_s: float,
    run_end_s: float,
    spans: Iterable[Span] = (),
    attempts: Iterable[AttemptRecord] = (),
    reports: Mapping[int, Sequence[NodeReport]] | None = None,
) -> Ledger:
    """Account for [run_start_s, run_end_s), in Unix seconds.

    Args:
        run_start_s: When the run began. A run that ends before it starts (clock set back) is empty.
        run_end_s: When it ended, or now for a run that goes on.
        spans: What operators and control measured: QUEUE, PROVISION, STAGE, RECOVER, EVALUATE and HANDOFF.
        attempts: The launches of one generation.
        reports: What agents said, by attempt number.

    Raises:
        ValueError: A span in a bucket that only agents measure, or attempts of more than one generation.
    """
    ordered = in_order(attempts)
    reports = reports or {}
    end_s = max(run_start_s, run_end_s)
    intervals = [
        *_from_control(spans),
        *_from_agents(ordered, reports),
        *_from_records(ordered),
    ]
    swept = tuple(_sweep(intervals, run_start_s, end_s))
    totals_s = {
        bucket: math.fsum(span.end_s - span.start_s for span in swept if span.bucket is bucket) for bucket in Bucket
    }
    wall_s = end_s - run_start_s
    return Ledger(
        start_s=run_start_s,
        end_s=end_s,
        spans=swept,
        totals_s=totals_s,
        ettr_ratio=totals_s[Bucket.USEFUL] / wall_s if wall_s > 0 else 0.0,
    )


def launch_s(record: AttemptRecord) -> float | None:
    """When the gang was launched, by the engine or by control, whichever saw it first. None: never."""
    started_s = record.status.started_at_s if record.status else None
    return min((at_s for at_s in (record.launched_at_s, started_s) if at_s is not None), default=None)


def end_s(record: AttemptRecord) -> float | None:
    """When the gang ended by the engine's account, else when control saw it. None: not yet."""
    ended_s = record.status.ended_at_s if record.status and record.status.phase.ended else None
    return record.end_seen_at_s if ended_s is None else ended_s


def stalls(steps: AttemptSteps) -> tuple[BoolArray, FloatArray]:
    """Return which steps stalled, and the time each step should have taken (seconds).

    The running median is taken of seconds per token, so that a batch schedule does not look like a stall.
    """
    duration_s_S = steps.end_s_S - steps.start_s_S
    weight_S = np.where((steps.num_tokens_S > 0).all(), steps.num_tokens_S, 1).astype(np.float64)
    typical_s_S = _running_median(duration_s_S / weight_S) * weight_S
    limit_s_S = np.maximum(STALL_FACTOR * typical_s_S, typical_s_S + STALL_MARGIN_S)
    return duration_s_S > limit_s_S, typical_s_S


def _running_median(value_S: FloatArray) -> FloatArray:
    """Lower median over a centred window, which at both ends is the first and last whole one."""
    num_steps, width = len(value_S), MEDIAN_WINDOW_STEPS
    if num_steps <= width:
        middle = (num_steps - 1) // 2
        return np.full(num_steps, np.partition(value_S, middle)[middle] if num_steps else 0.0)
    windows = np.lib.stride_tricks.sliding_window_view(value_S, width)
    median_W = np.concatenate(
        [
            np.partition(windows[first : first + _MEDIAN_CHUNK_STEPS], width // 2, axis=1)[:, width // 2]
            for first in range(0, len(windows), _MEDIAN_CHUNK_STEPS)
        ]
    )
    centre_S = np.clip(np.arange(num_steps) - width // 2, 0, len(windows) - 1)
    return np.asarray(median_W[centre_S], dtype=np.float64)


def _from_control(spans: Iterable[Span]) -> Iterator[_Intervals]:
    for span in spans:
        layer = _CONTROL_LAYER.get(span.bucket)
        if layer is None:
            raise ValueError(f"a measured span may not claim bucket {span.bucket.value!r}: only records fill it")
        yield _one(layer, span)


def _from_agents(ordered: Sequence[AttemptRecord], reports: Mapping[int, Sequence[NodeReport]]) -> Iterator[_Intervals]:
    steps_by_attempt = attempt_steps(ordered, reports)
    for record in ordered:
        number = record.key.attempt
        steps = steps_by_attempt[number]
        spans = [span for report in reports.get(number, ()) for span in report.spans]
        for span in spans:
            if span.kind in _AGENT_LAYER:
                layer, bucket, label = _AGENT_LAYER[span.kind]
                yield _one(layer, _span(bucket, number, label, span.start_s, span.end_s))
        yield from _start_up(record, steps, spans)
        yield from _training(number, steps)
        yield from _tail(record, steps, spans)


def _start_up(record: AttemptRecord, steps: AttemptSteps, spans: Sequence[AgentSpan]) -> Iterator[_Intervals]:
    launched_s = launch_s(record)
    ready_s = max((span.end_s for span in spans if span.kind is AgentSpanKind.INIT), default=None)
    if len(steps):
        first_start_s, first_end_s = float(steps.start_s_S[0]), float(steps.end_s_S[0])
        ready_s = first_start_s if ready_s is None else min(ready_s, first_end_s)
    if launched_s is not None and ready_s is not None:
        yield _one(_Layer.INIT, _span(Bucket.INIT, record.key.attempt, "start-up", launched_s, ready_s))


def _training(number: int, steps: AttemptSteps) -> Iterator[_Intervals]:
    """Split each step into its excess, taken to come first, and its work."""
    stalled_S, typical_s_S = stalls(steps)
    work_start_s_S = np.where(stalled_S, steps.end_s_S - typical_s_S, steps.start_s_S)
    warm_up_S = stalled_S & steps.kept_S & (np.arange(len(steps)) == 0)
    stall_S = stalled_S & steps.kept_S & ~warm_up_S
    start_s_S, end_s_S, kept_S = steps.start_s_S, steps.end_s_S, steps.kept_S
    for bucket, label, start_s_I, end_s_I in (
        (Bucket.USEFUL, "training", work_start_s_S[kept_S], end_s_S[kept_S]),
        (Bucket.LOST, "steps thrown away", start_s_S[~kept_S], end_s_S[~kept_S]),
        (Bucket.LOST, "stall", start_s_S[stall_S], work_start_s_S[stall_S]),
        (Bucket.INIT, "warm-up", start_s_S[warm_up_S], work_start_s_S[warm_up_S]),
    ):
        yield _Intervals(layer=_Layer.STEP, tag=_Tag(bucket.value, number, label), start_s_I=start_s_I, end_s_I=end_s_I)


def _tail(record: AttemptRecord, steps: AttemptSteps, spans: Sequence[AgentSpan]) -> Iterator[_Intervals]:
    ended_s, launched_s = end_s(record), launch_s(record)
    if ended_s is None or launched_s is None:
        return
    signs_s = [span.end_s for span in spans] + ([float(steps.end_s_S.max())] if len(steps) else [])
    last_sign_s = max(signs_s, default=None)
    number = record.key.attempt
    if record.status is None or record.status.phase is not GangPhase.SUCCEEDED:
        since_s = launched_s if last_sign_s is None else last_sign_s
        yield _one(_Layer.TAIL, _span(Bucket.LOST, number, "no progress until the end", since_s, ended_s))
    elif last_sign_s is not None:
        yield _one(_Layer.TAIL, _span(Bucket.PROVISION, number, "giving back", last_sign_s, ended_s))


def _from_records(ordered: Sequence[AttemptRecord]) -> Iterator[_Intervals]:
    found: list[Span] = []
    for earlier, later in pairwise(ordered):
        until_s = _launched_or_over_s(later)
        found.append(_span(Bucket.RECOVER, later.key.attempt, "relaunch", _over_s(earlier), until_s))
    if ordered:
        first, last = ordered[0], ordered[-1]
        until_s = _launched_or_over_s(first)
        found.append(_span(Bucket.PROVISION, first.key.attempt, "launch", first.intended_at_s, until_s))
        if last.end_seen_at_s is not None:
            found.append(_span(Bucket.HANDOFF, last.key.attempt, "end seen", _over_s(last), last.end_seen_at_s))
    yield from (_one(_Layer.RECORDED, span) for span in found)


def _over_s(record: AttemptRecord) -> float:
    """When an attempt was over; one that was never launched ended with its fault, or as it was meant to start."""
    ended_s = end_s(record)
    if ended_s is not None:
        return ended_s
    return record.fault.at_s if record.fault else record.intended_at_s


def _launched_or_over_s(record: AttemptRecord) -> float:
    launched_s = launch_s(record)
    return _over_s(record) if launched_s is None else launched_s


def _span(bucket: Bucket, attempt: int, label: str, start_s: float, end_s: float) -> Span:
    return Span(bucket=bucket, start_s=start_s, end_s=end_s, label=label, attempt=attempt)


def _one(layer: _Layer, span: Span) -> _Intervals:
    return _Intervals(
        layer=layer,
        tag=_Tag(span.bucket.value, _NO_ATTEMPT if span.attempt is None else span.attempt, span.label),
        start_s_I=np.array([span.start_s], dtype=np.float64),
        end_s_I=np.array([span.end_s], dtype=np.float64),
    )


def _sweep(intervals: Sequence[_Intervals], run_start_s: float, run_end_s: float) -> Iterator[Span]:
    """Yield spans that tile the run. Linear in the number of intervals apart from sorting."""
    if run_end_s <= run_start_s:
        return
    tags = sorted({each.tag for each in intervals} | {_NOTHING_MEASURED})
    code = {tag: index for index, tag in enumerate(tags)}
    layers = [
        _disjoint([each for each in intervals if each.layer is layer], code, run_start_s, run_end_s) for layer in _Layer
    ]
    edge_s_E = np.unique(np.concatenate([[run_start_s, run_end_s], *(part for layer in layers for part in layer[:2])]))
    code_E = np.full(len(edge_s_E) - 1, _UNASSIGNED, dtype=np.int64)
    for start_s_I, end_s_I, code_I in layers:
        if not len(start_s_I):
            continue
        open_E = np.flatnonzero(code_E == _UNASSIGNED)
        at_s_E = edge_s_E[open_E]
        candidate_E = np.searchsorted(start_s_I, at_s_E, side="right") - 1
        hit_E = (candidate_E >= 0) & (end_s_I[candidate_E] > at_s_E)
        code_E[open_E[hit_E]] = code_I[candidate_E[hit_E]]
    code_E[code_E == _UNASSIGNED] = code[_NOTHING_MEASURED]
    first_E = np.flatnonzero(np.diff(code_E, prepend=_UNASSIGNED))
    border_s = [*edge_s_E[first_E].tolist(), run_end_s]
    for index, tag_code in enumerate(code_E[first_E].tolist()):
        tag = tags[tag_code]
        yield Span(
            bucket=Bucket(tag.bucket),
            start_s=border_s[index],
            end_s=border_s[index + 1],
            label=tag.label,
            attempt=None if tag.attempt == _NO_ATTEMPT else tag.attempt,
        )


def _disjoint(
    intervals: Sequence[_Intervals], code: Mapping[_Tag, int], run_start_s: float, run_end_s: float
) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """Clip one layer to the run and make it free of overlaps: the earlier start wins, the later one gets the rest."""
    start_s_I = np.concatenate([each.start_s_I for each in intervals]) if intervals else np.empty(0)
    end_s_I = np.concatenate([each.end_s_I for each in intervals]) if intervals else np.empty(0)
    code_I = np.repeat(
        np.array([code[each.tag] for each in intervals], dtype=np.int64),
        np.array([len(each.start_s_I) for each in intervals], dtype=np.int64),
    )
    sound_I = np.isfinite(start_s_I) & np.isfinite(end_s_I) & (end_s_I > start_s_I)
    start_s_I = np.clip(start_s_I[sound_I], run_start_s, run_end_s)
    end_s_I = np.clip(end_s_I[sound_I], run_start_s, run_end_s)
    code_I = code_I[sound_I]
    order = np.lexsort((code_I, end_s_I, start_s_I))
    start_s_I, end_s_I, code_I = start_s_I[order], end_s_I[order], code_I[order]
    if len(start_s_I):
        start_s_I[1:] = np.maximum(start_s_I[1:], np.maximum.accumulate(end_s_I)[:-1])
    left_I = end_s_I > start_s_I
    return start_s_I[left_I], end_s_I[left_I], code_I[left_I]
