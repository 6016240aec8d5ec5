"""Whether a gang that still lives has outlived its run. Pure: facts in, verdict out; whatever is in doubt is spared.

Leases and teardowns end gangs in time. The reaper is for what both missed, such as a node agent that hung, or a run
whose records were deleted. It reaps only what has expired, and whose agents are silent, and whose run Airflow calls
finished or does not know. That Airflow or an agent could not be asked is never taken for an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.gang import FoundGang
from airflow_llmsched.domain.identity import RunKey


class AirflowWord(StrEnum):
    """What Airflow says of a DAG run."""

    RUNNING = "running"
    FINISHED = "finished"
    UNKNOWN = "unknown"
    """Airflow was asked and has no such run: it was deleted."""
    COULD_NOT_ASK = "could_not_ask"


AskAirflow = Callable[[str, str], AirflowWord]
"""Takes dag id and run id; never raises for an Airflow that does not answer."""

WORD_OF_STATE = {
    "queued": AirflowWord.RUNNING,
    "running": AirflowWord.RUNNING,
    "success": AirflowWord.FINISHED,
    "failed": AirflowWord.FINISHED,
}
"""Airflow's states of a DAG run. Look up with ``COULD_NOT_ASK`` as the default: an unknown state is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaperLimits:
    """How long to wait before anything counts as over, in seconds.

    ``skew_s``: a lease must have run out for this long, so that clocks may differ. ``silence_s``: agents must not have
    given a sign for this long. ``unleased_s``: a gang without a lease expires this long after its run's last record.
    """

    skew_s: float = 60.0
    silence_s: float = 600.0
    unleased_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFacts:
    """What the run's journal says. ``written_at_s`` is when its last event was recorded, in Unix seconds."""

    num_records: int
    phase: RunPhase
    written_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFacts:
    """A live gang and what its channel says. ``unheard`` is why the channel could not be read, empty when it was."""

    gang: FoundGang
    lease_until_s: float | None = None
    agents_seen_at_s: float | None = None
    unheard: str = ""

    @property
    def last_sign_s(self) -> float:
        """When its agents last gave any sign; their launch is one."""
        signs_s = (self.agents_seen_at_s, self.gang.agents_seen_at_s, self.gang.submitted_at_s)
        return max(sign_s for sign_s in signs_s if sign_s is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """All that is known of a run of which something lives.

    ``journal`` is None when there is none; ``unreadable`` is why it could not be read. ``deployment_id`` is what the
    gangs say, None when they say nothing. ``airflow`` is None until Airflow has been asked.
    """

    run_key: RunKey
    gangs: tuple[GangFacts, ...]
    dag_id: str = ""
    run_id: str = ""
    deployment_id: str | None = None
    journal: JournalFacts | None = None
    unreadable: str = ""
    airflow: AirflowWord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reap:
    """The run is over and what lives of it is to be stopped."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """What lives is to be left alone."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """All else speaks for reaping: ask Airflow, and judge again with its word."""


def judge(facts: RunFacts, *, deployment_id: str, now_s: float, limits: ReaperLimits) -> Reap | Spare | Ask:
    """Return what to do about a run. ``deployment_id`` is that of the state root which the reaper looks after."""
    silent_s = now_s - max((gang.last_sign_s for gang in facts.gangs), default=now_s)
    expired_s = now_s - _expires_at_s(facts, limits)
    spared = (
        _nothing_lives(facts)
        or _not_ours(facts, deployment_id)
        or _unsure(facts)
        or _not_expired(facts, expired_s)
        or _not_silent(silent_s, limits)
    )
    if spared:
        return Spare(reason=spared)
    if facts.airflow is None:
        return Ask()
    if facts.airflow not in _OVER:
        return Spare(reason=_unasked(facts) if facts.airflow is AirflowWord.COULD_NOT_ASK else _GOES_ON)
    word = _OVER[facts.airflow]
    return Reap(reason=f"expired {expired_s:.0f} s ago, agents silent for {silent_s:.0f} s, and Airflow {word}")


_GOES_ON = "Airflow calls its DAG run running"
_OVER = {
    AirflowWord.FINISHED: "calls its DAG run finished",
    AirflowWord.UNKNOWN: "does not know its DAG run",
}


def _nothing_lives(facts: RunFacts) -> str:
    return "" if facts.gangs else "nothing of it lives"


def _not_ours(facts: RunFacts, deployment_id: str) -> str:
    if facts.deployment_id is not None and facts.deployment_id != deployment_id:
        return f"belongs to deployment {facts.deployment_id}: run its own reaper, with its state root"
    if facts.deployment_id is None and facts.journal is None and not facts.unreadable:
        return "says not whose it is, and this state root does not know it"
    return ""


def _unsure(facts: RunFacts) -> str:
    if facts.unreadable:
        return f"its journal could not be read, which is not the same as absent: {facts.unreadable}"
    unheard = [gang.unheard for gang in facts.gangs if gang.unheard]
    return f"its agents could not be heard: {unheard[0]}" if unheard else ""


def _not_expired(facts: RunFacts, expired_s: float) -> str:
    if expired_s >= 0:
        return ""
    leased = any(gang.lease_until_s is not None for gang in facts.gangs)
    return (
        f"not expired: {'its lease holds' if leased else 'without a lease it may stay'} for another {-expired_s:.0f} s"
    )


def _not_silent(silent_s: float, limits: ReaperLimits) -> str:
    if silent_s >= limits.silence_s:
        return ""
    return f"its agents speak: last sign {max(0.0, silent_s):.0f} s ago, silent only after {limits.silence_s:.0f} s"


def _expires_at_s(facts: RunFacts, limits: ReaperLimits) -> float:
    """Return when the last of its gangs expires. One whose lease nobody ever renewed counts as one without."""
    written_s = facts.journal.written_at_s if facts.journal else float("-inf")
    ends_s = (
        gang.lease_until_s + limits.skew_s
        if gang.lease_until_s is not None
        else max(written_s, gang.gang.submitted_at_s) + limits.unleased_s
        for gang in facts.gangs
    )
    return max(ends_s, default=float("inf"))


def _unasked(facts: RunFacts) -> str:
    if not facts.dag_id:
        return "nothing names its DAG run, so Airflow cannot be asked about it"
    return f"Airflow could not be asked about run {facts.run_id!r} of DAG {facts.dag_id!r}"
