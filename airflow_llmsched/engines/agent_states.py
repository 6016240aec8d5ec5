"""What the files and processes of one attempt mean: the one place where they become gang phases. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from signal import SIGTERM
from typing import Any

from airflow_llmsched.agent.watch import describe_end
from airflow_llmsched.domain.gang import GangPhase, GangStatus, NodeStatus, RankEnd
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.errors import InternalError

PHASE: dict[FaultKind, GangPhase] = {
    FaultKind.RANK_FAILED: GangPhase.FAILED,
    FaultKind.RANK_EXITED_EARLY: GangPhase.FAILED,
    FaultKind.START_FAILED: GangPhase.FAILED,
    FaultKind.START_TIMEOUT: GangPhase.FAILED,
    FaultKind.DISK_FULL: GangPhase.FAILED,
    FaultKind.PREEMPTED: GangPhase.PREEMPTED,
    FaultKind.NODE_LOST: GangPhase.LOST,
    FaultKind.GANG_LOST: GangPhase.LOST,
}
"""The phase of a gang that ended for a fault the agents named. Faults that only control can see are not among them."""

ORPHANS_END_S = 15.0
"""How long rank wrappers may take, beyond the grace, to end their ranks once they have lost their supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node's part. ``exit`` is the supervisor's last record; ``stray``: processes of ours live on without it."""

    node: NodeId
    claimed: bool = False
    supervisor_alive: bool = False
    stray: bool = False
    started_at_s: float | None = None
    alive_at_s: float | None = None
    notice_deadline_s: float | None = None
    exit: Mapping[str, Any] | None = None

    @property
    def taken(self) -> bool:
        """Whether the platform took the node while the gang had it."""
        if self.notice_deadline_s is None:
            return False
        if self.exit is None:
            return self.claimed and not self.supervisor_alive
        if self._ended_early:
            return True
        return bool(self.exit["at_s"] >= self.notice_deadline_s) and self.exit["outcome"] != "done"

    @property
    def taken_at_s(self) -> float:
        """When the platform began to take the node: as announced, unless it told a rank to end before that."""
        assert self.notice_deadline_s is not None
        ends = self.exit["ends"] if self.exit is not None and self._ended_early else []
        told_s = [float(end["at_s"]) for end in ends if end["signal"] == SIGTERM]
        return min([self.notice_deadline_s, *told_s])

    @property
    def ahead_s(self) -> float:
        """By how much its clock is ahead of the first node's, as far as its supervisor could tell."""
        return 0.0 if self.exit is None else float(self.exit.get("ahead_s", 0.0))

    @property
    def _ended_early(self) -> bool:
        return self.exit is not None and (self.exit["outcome"], self.exit.get("fault")) == ("terminated", "preempted")


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFacts:
    """One attempt. ``abort`` is the first supervisor's reason to give up, ``stop_at_s`` when the engine was told to.

    ``grace_s`` is what ranks get to end when nobody says otherwise.
    """

    nodes: tuple[NodeFacts, ...]
    submitted_at_s: float
    start_limit_s: float
    grace_s: float = 0.0
    go: bool = False
    stop_at_s: float | None = None
    abort: Mapping[str, Any] | None = None


def status_of(facts: GangFacts, *, now_s: float) -> GangStatus:
    """Return the gang's status. Pure; the same facts give the same end at any later time."""
    nodes = tuple(_node_status(node, facts, now_s=now_s) for node in facts.nodes)
    starts = [node.started_at_s for node in facts.nodes]
    status = GangStatus(
        phase=_live_phase(nodes),
        observed_at_s=now_s,
        nodes=nodes,
        started_at_s=None if None in starts else max(start for start in starts if start is not None),
    )
    if not all(node.phase.ended for node in nodes):
        return _live(status, facts, now_s=now_s)
    return _ended(status, facts)


def _live(status: GangStatus, facts: GangFacts, *, now_s: float) -> GangStatus:
    """A gang whose ranks nobody on their node will ever end is alive, but must be ended from outside."""
    left = [node.node for node in facts.nodes if _is_left_alone(node, facts, now_s=now_s)]
    if not left:
        return status
    names = ", ".join(left)
    reason = f"node {names}: supervisor and rank wrappers are gone, and ranks they left go on unwatched"
    return replace(status, fault=FaultKind.NODE_LOST, reason=reason)


def _is_left_alone(node: NodeFacts, facts: GangFacts, *, now_s: float) -> bool:
    last_sign_s = facts.submitted_at_s if node.alive_at_s is None else node.alive_at_s
    return node.stray and now_s >= last_sign_s + facts.grace_s + ORPHANS_END_S


def _node_status(node: NodeFacts, facts: GangFacts, *, now_s: float) -> NodeStatus:
    phase, reason = _node_phase(node, facts, now_s=now_s)
    return NodeStatus(node=node.node, phase=phase, notice_deadline_s=node.notice_deadline_s, reason=reason)


def _node_phase(node: NodeFacts, facts: GangFacts, *, now_s: float) -> tuple[GangPhase, str]:
    if node.exit is not None:
        return _exit_phase(node, node.exit)
    if not node.claimed:
        return _unclaimed_phase(facts, now_s=now_s)
    if node.supervisor_alive:
        if node.started_at_s is not None:
            return GangPhase.RUNNING, ""
        return (GangPhase.STARTING if facts.go else GangPhase.PENDING), ""
    return _orphan_phase(node)


def _unclaimed_phase(facts: GangFacts, *, now_s: float) -> tuple[GangPhase, str]:
    if facts.stop_at_s is not None:
        return GangPhase.STOPPED, "stopped before it started"
    if facts.abort is not None or now_s >= facts.submitted_at_s + facts.start_limit_s:
        return GangPhase.LOST, "its supervisor never started"
    return GangPhase.PENDING, ""


def _orphan_phase(node: NodeFacts) -> tuple[GangPhase, str]:
    if node.stray:
        return GangPhase.RUNNING, "its supervisor is gone; the ranks it left are ending"
    if node.taken:
        return GangPhase.PREEMPTED, "preempted"
    return GangPhase.LOST, "its supervisor is gone and left no word"


def _exit_phase(node: NodeFacts, end: Mapping[str, Any]) -> tuple[GangPhase, str]:
    if node.taken:
        return GangPhase.PREEMPTED, "preempted"
    outcome, reason = end["outcome"], end["reason"]
    if outcome == "done":
        return GangPhase.SUCCEEDED, ""
    if outcome == "stopped":
        return GangPhase.STOPPED, "stopped"
    if outcome == "terminated":
        return GangPhase.LOST, reason
    if outcome == "aborted":
        return (GangPhase.FAILED if any(_failed(each) for each in end["ends"]) else GangPhase.STOPPED), reason
    raise InternalError(f"node {node.node}: unknown outcome {outcome!r} in its exit record")


def _live_phase(nodes: Sequence[NodeStatus]) -> GangPhase:
    phases = {node.phase for node in nodes}
    if phases <= {GangPhase.PENDING}:
        return GangPhase.PENDING
    if phases & {GangPhase.PENDING, GangPhase.STARTING}:
        return GangPhase.STARTING
    return GangPhase.RUNNING


def _ended(status: GangStatus, facts: GangFacts) -> GangStatus:
    status = replace(status, ended_at_s=_ended_at_s(facts, status))
    if all(node.phase is GangPhase.SUCCEEDED for node in status.nodes):
        return replace(status, phase=GangPhase.SUCCEEDED)
    taken = [node for node in facts.nodes if node.taken]
    deadline_s = min((node.taken_at_s - node.ahead_s for node in taken), default=float("inf"))
    first = _first(facts, _failed)
    if first is not None and first.at_s < deadline_s and not _stopped(facts):
        return _failed_status(status, facts, first)
    if taken:
        names = ", ".join(node.node for node in taken)
        reason = f"node {names} was preempted"
        return replace(status, phase=GangPhase.PREEMPTED, fault=FaultKind.PREEMPTED, reason=reason)
    if facts.abort is not None:
        return _aborted(status, facts, facts.abort)
    if facts.stop_at_s is not None and all(node.phase is GangPhase.STOPPED for node in status.nodes):
        return replace(status, phase=GangPhase.STOPPED, reason="stopped")
    lost = ", ".join(f"{node.node} ({node.reason})" for node in status.nodes if node.phase is GangPhase.LOST)
    return replace(status, phase=GangPhase.LOST, fault=FaultKind.NODE_LOST, reason=f"lost node {lost}")


def _stopped(facts: GangFacts) -> bool:
    return facts.stop_at_s is not None and facts.abort is None


def _failed_status(status: GangStatus, facts: GangFacts, first: RankEnd) -> GangStatus:
    """The earliest failure is the cause, whoever spoke first; but a full disk or a failed start explains it."""
    abort = facts.abort
    fault = FaultKind.RANK_FAILED
    reason = _describe(facts, first)
    if abort is not None and abort["fault"] in (FaultKind.START_FAILED, FaultKind.DISK_FULL):
        fault, reason = FaultKind(abort["fault"]), abort["reason"]
        # the rank that the reason speaks of: on another node one may have failed a moment earlier
        first = _first(facts, lambda end: _failed(end) and end["rank"] == abort["rank"]) or first
    if first.log_tail:
        reason += f"; its last lines:\n{first.log_tail}"
    return replace(status, phase=GangPhase.FAILED, fault=fault, first_end=first, reason=reason)


def _aborted(status: GangStatus, facts: GangFacts, abort: Mapping[str, Any]) -> GangStatus:
    fault = FaultKind(abort["fault"])
    if fault not in PHASE:
        raise InternalError(f"an agent ended a gang for {fault.value}, which agents cannot see")
    first = None
    if abort["rank"] is not None:
        first = _first(facts, lambda end: end["rank"] == abort["rank"] and not end["forced"])
    return replace(status, phase=PHASE[fault], fault=fault, reason=abort["reason"], first_end=first)


def _first(facts: GangFacts, wanted: Any) -> RankEnd | None:
    """Return the earliest end, of any node, that ``wanted`` accepts."""
    ends = [(node.node, end) for node, end in _ends(facts) if wanted(end)]
    if not ends:
        return None
    node, end = min(ends, key=lambda each: (each[1]["at_s"], each[1]["rank"]))
    return RankEnd(
        rank=end["rank"],
        node=node,
        exit_code=end["exit_code"],
        signal=end["signal"],
        at_s=end["at_s"],
        log_tail=end["log_tail"],
    )


def _describe(facts: GangFacts, first: RankEnd) -> str:
    record = next(end for node, end in _ends(facts) if node.node == first.node and end["rank"] == first.rank)
    return describe_end(record, node=first.node)


def _ends(facts: GangFacts) -> Iterable[tuple[NodeFacts, Mapping[str, Any]]]:
    """Yield how ranks ended, by one clock: what came first on several machines is the cause."""
    for node in facts.nodes:
        for end in node.exit["ends"] if node.exit is not None else ():
            yield node, {**end, "at_s": end["at_s"] - node.ahead_s}


def _failed(end: Mapping[str, Any]) -> bool:
    return end["exit_code"] != 0 and not end["forced"]


def _ended_at_s(facts: GangFacts, status: GangStatus) -> float:
    """Return when the last node ended; for one that left no word, when it was last known to be alive."""
    times = [
        node.exit["at_s"] - node.ahead_s if node.exit is not None else (node.alive_at_s or facts.submitted_at_s)
        for node in facts.nodes
    ]
    return max([*times, status.started_at_s or facts.submitted_at_s])
