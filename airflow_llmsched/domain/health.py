"""Faults, and whose fault they are. Failure budgets are kept per class; preemption spends none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_llmsched.domain.identity import NodeId


class FailureClass(StrEnum):
    """Who must act: the user's code, the platform, or nobody (the platform took back what it had lent)."""

    CODE = "code"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTION = "preemption"


class FaultKind(StrEnum):
    """What went wrong."""

    RANK_FAILED = "rank_failed"
    RANK_EXITED_EARLY = "rank_exited_early"
    HUNG = "hung"
    START_FAILED = "start_failed"
    START_TIMEOUT = "start_timeout"
    DISK_FULL = "disk_full"
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    GANG_LOST = "gang_lost"
    STOPPED_OUTSIDE = "stopped_outside"


FAILURE_CLASS: dict[FaultKind, FailureClass] = {
    FaultKind.RANK_FAILED: FailureClass.CODE,
    FaultKind.RANK_EXITED_EARLY: FailureClass.CODE,
    FaultKind.HUNG: FailureClass.INFRASTRUCTURE,
    FaultKind.START_FAILED: FailureClass.CODE,
    FaultKind.START_TIMEOUT: FailureClass.INFRASTRUCTURE,
    FaultKind.DISK_FULL: FailureClass.INFRASTRUCTURE,
    FaultKind.PREEMPTED: FailureClass.PREEMPTION,
    FaultKind.NODE_LOST: FailureClass.INFRASTRUCTURE,
    FaultKind.GANG_LOST: FailureClass.INFRASTRUCTURE,
    FaultKind.STOPPED_OUTSIDE: FailureClass.CODE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, as detected at ``at_s`` (Unix seconds). ``log_tail`` is the end of what the guilty rank wrote."""

    kind: FaultKind
    summary: str
    at_s: float
    node: NodeId | None = None
    rank: int | None = None
    exit_code: int | None = None
    log_tail: str = ""

    @property
    def failure_class(self) -> FailureClass:
        """Which budget the fault is charged to."""
        return FAILURE_CLASS[self.kind]
