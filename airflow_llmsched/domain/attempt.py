"""One launch of a run, from intent to end, as the journal remembers it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmsched.domain.checkpoint import CheckpointRef
from airflow_llmsched.domain.gang import GangStatus
from airflow_llmsched.domain.health import Fault
from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.domain.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """Times are Unix seconds. ``end_seen_at_s``: control learned of the end; ``status.ended_at_s``: it happened."""

    key: AttemptKey
    plan: Plan
    channel_root: str
    intended_at_s: float
    resumed_from: CheckpointRef | None = None
    launched_at_s: float | None = None
    end_seen_at_s: float | None = None
    status: GangStatus | None = None
    fault: Fault | None = None
