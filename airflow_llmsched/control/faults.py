"""Why a gang ended, from what its engine says. One table per question; an end that is nobody's fault is None."""

from __future__ import annotations

from airflow_llmsched.domain.gang import GangPhase, GangStatus, RankEnd
from airflow_llmsched.domain.health import Fault, FaultKind
from airflow_llmsched.domain.identity import NodeId

DISK_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")
"""How the C library words ENOSPC and EDQUOT; Python, torch and NCCL pass it on."""

_BY_PHASE = {
    GangPhase.PREEMPTED: FaultKind.PREEMPTED,
    GangPhase.STOPPED: FaultKind.STOPPED_OUTSIDE,
}


def fault_of(status: GangStatus, *, last_step: int | None, num_steps: int | None) -> Fault | None:
    """Return why an ended gang must not count as a success, or None when it is one.

    A gang whose ranks all exit 0 before ``num_steps`` left early. Without a step count, or from a trainer that reports
    no steps, exit 0 is success.
    """
    if status.phase is GangPhase.SUCCEEDED:
        return _left_early(status, last_step, num_steps)
    end = status.first_end
    return Fault(
        kind=_kind(status),
        summary=status.reason or f"gang ended as {status.phase}",
        at_s=status.ended_at_s if status.ended_at_s is not None else status.observed_at_s,
        node=_node(status),
        rank=end.rank if end else None,
        exit_code=_code(end),
        log_tail=end.log_tail if end else "",
    )


def _left_early(status: GangStatus, last_step: int | None, num_steps: int | None) -> Fault | None:
    if num_steps is None or last_step is None or last_step >= num_steps:
        return None
    return Fault(
        kind=FaultKind.RANK_EXITED_EARLY,
        summary=f"every rank exited 0 after step {last_step} of {num_steps}",
        at_s=status.ended_at_s if status.ended_at_s is not None else status.observed_at_s,
        rank=0,
        exit_code=0,
    )


def _kind(status: GangStatus) -> FaultKind:
    if status.phase is GangPhase.FAILED:
        return _kind_of_failure(status)
    if status.fault is not None:
        return status.fault
    if status.phase is GangPhase.LOST:
        return FaultKind.NODE_LOST if _first_in(status, GangPhase.LOST) else FaultKind.GANG_LOST
    return _BY_PHASE[status.phase]


def _kind_of_failure(status: GangStatus) -> FaultKind:
    if _taken(status):
        # Peers of a node that was taken often fail first, on a broken connection: the platform did that, not the code.
        return FaultKind.PREEMPTED
    texts = (status.reason, status.first_end.log_tail if status.first_end else "")
    if any(full in text for full in DISK_FULL_TEXTS for text in texts):
        return FaultKind.DISK_FULL
    if status.fault is not None:
        return status.fault
    if status.first_end is not None:
        return FaultKind.RANK_EXITED_EARLY if status.first_end.exit_code == 0 else FaultKind.RANK_FAILED
    return FaultKind.START_FAILED if status.started_at_s is None else FaultKind.RANK_FAILED


def _taken(status: GangStatus) -> NodeId | None:
    """Return a node whose announced time was up when the gang ended."""
    ended_at_s = status.ended_at_s if status.ended_at_s is not None else status.observed_at_s
    for node in status.noticed:
        if node.notice_deadline_s is not None and node.notice_deadline_s <= ended_at_s:
            return node.node
    return None


def _node(status: GangStatus) -> NodeId | None:
    if status.phase is GangPhase.PREEMPTED or _taken(status):
        return _taken(status) or _first_in(status, GangPhase.PREEMPTED)
    if status.phase is GangPhase.LOST:
        return _first_in(status, GangPhase.LOST)
    return status.first_end.node if status.first_end else None


def _first_in(status: GangStatus, phase: GangPhase) -> NodeId | None:
    return next((node.node for node in status.nodes if node.phase is phase), None)


def _code(end: RankEnd | None) -> int | None:
    if end is None:
        return None
    return end.exit_code if end.signal is None else -end.signal
