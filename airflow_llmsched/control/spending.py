"""What a run has spent, and when its budget will be used up. Pure.

A gang costs its plan's list price from its launch to its end; ranks that train, wait or hang cost alike. What a run has
rented costs its offer's price for as long as it is held, whether or not a gang runs on it: both count, each by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """What has been spent, and what goes on being spent."""

    usd: float = 0.0
    usd_per_hour: float = 0.0

    def used_up_at_s(self, *, max_usd: float, now_s: float) -> float | None:
        """Return when it will have reached ``max_usd``: at the earliest now, None when it never will."""
        left_usd = max_usd - self.usd
        if left_usd <= 0:
            return now_s
        return now_s + left_usd / self.usd_per_hour * HOUR_S if self.usd_per_hour > 0 else None


def spent_usd(attempts: Iterable[AttemptRecord], *, now_s: float) -> float:
    """Return what all launches have cost up to ``now_s`` (Unix seconds)."""
    return sum(_hours(attempt, now_s) * attempt.plan.prediction.usd_per_hour for attempt in attempts)


def launch_spend(attempts: Iterable[AttemptRecord], *, now_s: float) -> Spend:
    """Return what all launches have cost up to ``now_s`` (Unix seconds), and what those that run cost an hour."""
    known = tuple(attempts)
    usd_per_hour = sum(
        attempt.plan.prediction.usd_per_hour
        for attempt in known
        if attempt.launched_at_s is not None and _end_s(attempt) is None
    )
    return Spend(usd=spent_usd(known, now_s=now_s), usd_per_hour=usd_per_hour)


def used_up_at_s(attempts: Iterable[AttemptRecord], *, max_usd: float, now_s: float) -> float | None:
    """Return when what is running will have used up ``max_usd``: at the earliest now, None when it never will."""
    return launch_spend(attempts, now_s=now_s).used_up_at_s(max_usd=max_usd, now_s=now_s)


def _hours(attempt: AttemptRecord, now_s: float) -> float:
    if attempt.launched_at_s is None:
        return 0.0
    end_s = _end_s(attempt)
    return max(0.0, (now_s if end_s is None else end_s) - attempt.launched_at_s) / HOUR_S


def _end_s(attempt: AttemptRecord) -> float | None:
    if attempt.status is not None and attempt.status.ended_at_s is not None:
        return attempt.status.ended_at_s
    return attempt.end_seen_at_s
