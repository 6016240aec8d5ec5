"""From what Slurm and the agents say of one gang to its status. Pure: the same sight gives the same end at any time.

Slurm says whether processes can still be there, and who took them: preemption, time limits, nodes that failed, somebody
who cancelled. The agents say how ranks ended. Where both speak of an end, the platform's deed explains the ranks' ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_llmsched.domain.gang import GangPhase, GangStatus, NodeStatus
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.engines import agent_states
from airflow_llmsched.engines.agent_states import GangFacts
from airflow_llmsched.engines.slurm.records import JobRecord
from airflow_llmsched.engines.slurm.states import hopeless

AGENTS_END_S = 60.0
"""How long Slurm may take to end a job all of whose ranks have ended, before the agents' word alone counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSight:
    """All that was seen of one gang. A source that does not list the job is None; one that failed is no sight at all.

    ``agents`` are the records of the job's present life: a requeued job begins anew. ``unlisted_since_s`` and
    ``ended_since_s`` are when the looker first missed the job, and first saw the end it sees now; ``stop_at_s`` when
    the engine was told to stop it. ``requeues``: Slurm may requeue the job, as its site wants.
    """

    job_id: str
    nodes: tuple[NodeId, ...]
    queue: JobRecord | None = None
    accounting: JobRecord | None = None
    completion: JobRecord | None = None
    agents: GangFacts | None = None
    unlisted_since_s: float | None = None
    ended_since_s: float | None = None
    stop_at_s: float | None = None
    requeues: bool = False
    vanish_grace_s: float = 60.0
    requeue_grace_s: float = 30.0

    @property
    def record(self) -> JobRecord | None:
        """What counts of the sources: the queue, else the last word of those that keep ends.

        Accounting that shows a job alive which the controller does not know has missed its end, and says nothing.
        """
        kept = [each for each in (self.accounting, self.completion) if each is not None and each.state.phase.ended]
        return self.queue or (kept[0] if kept else None)


def status_of(sight: JobSight, *, now_s: float) -> GangStatus:
    """Return the gang's status."""
    status = _status_of(sight, now_s=now_s)
    return replace(status, queued_until_s=_queued_until_s(sight, status))


def _queued_until_s(sight: JobSight, status: GangStatus) -> float | None:
    if status.phase is GangPhase.PENDING:
        return status.observed_at_s
    return None if sight.record is None else sight.record.started_at_s


def _status_of(sight: JobSight, *, now_s: float) -> GangStatus:
    agents = None if sight.agents is None else agent_states.status_of(sight.agents, now_s=now_s)
    record = sight.record
    if record is None:
        return _unlisted(sight, agents, now_s=now_s)
    if not record.state.phase.ended:
        return _live(sight, record, agents, now_s=now_s)
    if _may_come_back(sight, record, now_s=now_s):
        reason = f"job {sight.job_id} {record.state.says}; Slurm may requeue it"
        return _waiting(sight, reason, now_s=now_s)
    return _ended(sight, record, agents, now_s=now_s)


def _unlisted(sight: JobSight, agents: GangStatus | None, *, now_s: float) -> GangStatus:
    if agents is not None and agents.phase.ended and not _unconfirmed(sight, agents):
        return _by_agents(sight, agents)
    missing_s = 0.0 if sight.unlisted_since_s is None else now_s - sight.unlisted_since_s
    reason = f"job {sight.job_id} is in none of Slurm's lists"
    if missing_s < sight.vanish_grace_s:
        if agents is None or agents.phase.ended:
            return _waiting(sight, reason, now_s=now_s)
        return replace(agents, reason=reason)
    return GangStatus(
        phase=GangPhase.LOST,
        observed_at_s=now_s,
        nodes=_nodes(sight, agents, GangPhase.LOST),
        reason=f"{reason}, for {missing_s:.0f} s now",
        fault=FaultKind.GANG_LOST,
        started_at_s=None if agents is None else agents.started_at_s,
        ended_at_s=sight.unlisted_since_s,
        unconfirmed_nodes=_unconfirmed(sight, agents),
    )


def _live(sight: JobSight, record: JobRecord, agents: GangStatus | None, *, now_s: float) -> GangStatus:
    what = f"job {sight.job_id} {record.state.says}"
    if record.state.phase is GangPhase.PENDING:
        return _queued(sight, record, now_s=now_s)
    if agents is None:
        status = _waiting(sight, f"{what}; its agents have not spoken yet", now_s=now_s)
        return replace(status, phase=GangPhase.STARTING)
    if agents.phase.ended:
        is_clear = agents.phase is GangPhase.SUCCEEDED or (
            sight.stop_at_s is not None and agents.phase is GangPhase.STOPPED
        )
        if is_clear or now_s >= (agents.ended_at_s or now_s) + AGENTS_END_S:
            return _by_agents(sight, agents)
        # Not yet the last word: Slurm will say whether it was the one who ended the ranks.
        nodes = tuple(replace(node, phase=GangPhase.RUNNING) for node in agents.nodes)
        reason = f"the ranks have ended ({agents.reason}); {what}"
        return GangStatus(
            phase=GangPhase.RUNNING,
            observed_at_s=now_s,
            nodes=nodes,
            reason=reason,
            started_at_s=agents.started_at_s,
        )
    phase = GangPhase.STARTING if agents.phase is GangPhase.PENDING else agents.phase
    is_usual = record.state.word == "RUNNING"
    return replace(agents, phase=phase, reason=agents.reason if is_usual or agents.reason else what)


def _queued(sight: JobSight, record: JobRecord, *, now_s: float) -> GangStatus:
    words = [f"job {sight.job_id} {record.state.says}"]
    if record.reason:
        words.append(f"({record.reason})")
    if record.num_restarts:
        words.append(f"after {record.num_restarts} restart{'s' * (record.num_restarts > 1)} by Slurm")
    never = hopeless(record.reason)
    if never is None:
        return _waiting(sight, " ".join(words), now_s=now_s)
    status = _waiting(sight, f"{' '.join(words)} and will not start by itself: {never}", now_s=now_s)
    return replace(status, fault=FaultKind.START_FAILED)


def _may_come_back(sight: JobSight, record: JobRecord, *, now_s: float) -> bool:
    if not (sight.requeues and record.state.requeued) or sight.stop_at_s is not None:
        return False
    return sight.ended_since_s is None or now_s < sight.ended_since_s + sight.requeue_grace_s


def _ended(sight: JobSight, record: JobRecord, agents: GangStatus | None, *, now_s: float) -> GangStatus:
    """Who ended it, from the surest to the least sure."""
    if agents is not None and agents.phase is GangPhase.SUCCEEDED:
        return agents
    native = _native(sight, record, agents, now_s=now_s)
    if record.state.phase in (GangPhase.PREEMPTED, GangPhase.LOST):
        return native
    if sight.stop_at_s is not None and (agents is None or agents.phase in (GangPhase.STOPPED, GangPhase.LOST)):
        return replace(native, phase=GangPhase.STOPPED, fault=None, reason="stopped", first_end=None)
    if agents is None or not agents.phase.ended or _knows_better(record, agents):
        return native
    return _ranks_ended(sight, record, agents, native)


def _ranks_ended(sight: JobSight, record: JobRecord, agents: GangStatus, native: GangStatus) -> GangStatus:
    if agents.noticed and agents.phase is not GangPhase.STOPPED:
        reason = f"the gang ended after Slurm's notice ({agents.reason})"
        return replace(native, phase=GangPhase.PREEMPTED, fault=FaultKind.PREEMPTED, reason=reason, first_end=None)
    if record.state.word == "OUT_OF_MEMORY":
        return replace(agents, reason=f"job {sight.job_id} ran out of memory: {agents.reason}")
    return agents


def _knows_better(record: JobRecord, agents: GangStatus) -> bool:
    """Whether Slurm's word for an end counts, though the agents have one: it saw what did not reach their files."""
    if record.state.word == "CANCELLED":
        return agents.phase is not GangPhase.FAILED
    return record.state.word in ("COMPLETED", "OUT_OF_MEMORY") and agents.phase is GangPhase.LOST


def _native(sight: JobSight, record: JobRecord, agents: GangStatus | None, *, now_s: float) -> GangStatus:
    """Return the end as Slurm tells it."""
    phase = record.state.phase
    started_at_s = None if agents is None else agents.started_at_s
    ended_at_s = record.ended_at_s or sight.ended_since_s or now_s
    is_lost = phase is GangPhase.LOST
    return GangStatus(
        phase=phase,
        observed_at_s=now_s,
        nodes=_nodes(sight, agents, phase),
        reason="" if phase is GangPhase.SUCCEEDED else _why(sight, record),
        fault=_fault(record, agents),
        first_end=agents.first_end if agents is not None and phase is GangPhase.FAILED else None,
        started_at_s=started_at_s,
        ended_at_s=min(now_s, max(ended_at_s, started_at_s or 0.0)),
        unconfirmed_nodes=_unconfirmed(sight, agents) if is_lost and record.started_at_s is not None else (),
    )


def _fault(record: JobRecord, agents: GangStatus | None) -> FaultKind | None:
    if record.state.word == "FAILED":
        has_started = agents is not None and agents.started_at_s is not None
        return FaultKind.RANK_FAILED if has_started else FaultKind.START_FAILED
    return record.state.fault


def _why(sight: JobSight, record: JobRecord) -> str:
    said = f"job {sight.job_id} {record.state.says}"
    if record.state.word == "CANCELLED":
        return f"{said} by uid {record.cancelled_by}" if record.cancelled_by else f"{said} by somebody else"
    if record.signal is not None:
        said += f" (signal {record.signal})"
    elif record.exit_code:
        said += f" (exit code {record.exit_code})"
    return f"{said}: {record.reason}" if record.reason else said


def _by_agents(sight: JobSight, agents: GangStatus) -> GangStatus:
    if sight.stop_at_s is not None and agents.phase is GangPhase.LOST:
        return replace(agents, phase=GangPhase.STOPPED, fault=None, reason="stopped", first_end=None)
    return agents


def _waiting(sight: JobSight, reason: str, *, now_s: float) -> GangStatus:
    nodes = tuple(NodeStatus(node=node, phase=GangPhase.PENDING) for node in sight.nodes)
    return GangStatus(phase=GangPhase.PENDING, observed_at_s=now_s, nodes=nodes, reason=reason)


def _nodes(sight: JobSight, agents: GangStatus | None, phase: GangPhase) -> tuple[NodeStatus, ...]:
    """Return the nodes of an ended gang: as the agents left them, and where they left no word, as the job ended."""
    known = {} if agents is None else {node.node: node for node in agents.nodes}
    plain = {node: NodeStatus(node=node, phase=phase) for node in sight.nodes}
    return tuple(
        known[node] if node in known and known[node].phase.ended and known[node].phase is not GangPhase.LOST else each
        for node, each in plain.items()
    )


def _unconfirmed(sight: JobSight, agents: GangStatus | None) -> tuple[NodeId, ...]:
    """Return nodes on which nobody has seen the ranks end: their supervisors left no last record."""
    if agents is None or sight.agents is None:
        return sight.nodes
    gone = {node.node for node in sight.agents.nodes if node.exit is not None}
    return tuple(node for node in sight.nodes if node not in gone)
