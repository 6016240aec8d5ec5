"""Buckets of the ETTR ledger: every wall-clock second of a run is in exactly one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Bucket(StrEnum):
    """What a second was spent on.

    QUEUE waiting for Airflow to start one of our tasks, or for capacity. PROVISION planning, acquiring, submitting and
    releasing. STAGE moving and checking data. INIT from the launch of ranks to their first training step (imports, rendezvous,
    loading). USEFUL training steps that were kept. SAVE training stopped to write a checkpoint. LOST training that was thrown
    away, and ranks alive without progress. RECOVER from noticing a fault to the next launch. EVALUATE held-out evaluation.
    HANDOFF between a trigger's event and the worker that acts on it, and from the worker back to a trigger, while no gang runs.
    UNCLASSIFIED seconds that nothing measured covers.
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
