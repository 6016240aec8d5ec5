"""Buckets of the ETTR ledger: every wall-clock second of a run is in exactly one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Bucket(StrEnum):
    """What a second was spent on.

    QUEUE waiting for Airflow to start one of our tasks, or for capacity. PROVISION planning, acquiring, submitting
    and releasing. STAGE moving and checking data. INIT from the launch of ranks to their first training step
    (imports, rendezvous, loading). USEFUL training steps that were kept. SAVE training stopped to write a checkpoint.
    LOST training that was thrown away, and ranks alive without progress. RECOVER from noticing a fault to the next
    launch. EVALUATE held-out evaluation. HANDOFF between a trigger's event and the worker that acts on it, and from
    the worker back to a trigger, while no gang runs. UNCLASSIFIED seconds that nothing measured covers.
    """

    QUEUE = "queue"
    PROVISION = "provision"
    STAGE = "stage"
    INIT = "init"
    USEFUL = "useful"
    SAVE = "save"
    LOST = "lost"
    RECOVER = "recover"
    EVALUATE = "evaluate"
    HANDOFF = "handoff"
    UNCLASSIFIED = "unclassified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A measured stretch of time, [start_s, end_s) in Unix seconds."""

    bucket: Bucket
    start_s: float
    end_s: float
    label: str = ""
    attempt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where the wall time of [start_s, end_s) went. ``spans`` tile it without gap or overlap, so the totals sum to it.

    ``ettr_ratio`` is the effective training time ratio: useful seconds over wall seconds, 0 for an empty run.
    """

    start_s: float
    end_s: float
    spans: tuple[Span, ...]
    totals_s: Mapping[Bucket, float]
    ettr_ratio: float

    @property
    def wall_s(self) -> float:
        """Length of the run."""
        return self.end_s - self.start_s

    def ratio(self, bucket: Bucket) -> float:
        """Share of the wall time in ``bucket``, 0 for an empty run."""
        return self.totals_s.get(bucket, 0.0) / self.wall_s if self.wall_s > 0 else 0.0
