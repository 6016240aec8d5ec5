"""One look at many gangs: what Slurm lists, what lies in their folders, and what a looker must remember in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.domain.gang import GangPhase, GangStatus, NodeStatus, abandoned_status
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines.agent_states import GangFacts, NodeFacts
from airflow_llmsched.engines.slurm import status
from airflow_llmsched.engines.slurm.client import SlurmClient
from airflow_llmsched.engines.slurm.options import SlurmOptions
from airflow_llmsched.engines.slurm.records import JobRecord
from airflow_llmsched.engines.slurm.shelf import Shelf
from airflow_llmsched.errors import CouldNotLookError

_GIVE_UP = EffectPoint("slurm.poll.give_up")

_MAX_REMEMBERED = 16_384

Attempt = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One gang as it was found. ``attempt`` is what its folder holds (``agent.shelf``), None where it has none.

    ``ended`` is how it ended, where that stands already. ``accounting`` and ``completion`` were asked only of a job
    that Slurm's controller does not list; ``unasked`` is why one of them could not be.
    """

    name: str
    attempt: Attempt | None
    jobs: tuple[JobRecord, ...] = ()
    accounting: JobRecord | None = None
    completion: JobRecord | None = None
    unasked: str | None = None
    ended: GangStatus | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether the attempt was given up before anyone submitted it."""
        return self.attempt is not None and "abandoned" in self.attempt

    @property
    def unreadable(self) -> str | None:
        """Why its files could not be read, None where they could."""
        return None if self.attempt is None else self.attempt.get("unreadable")

    @property
    def has_job(self) -> bool:
        """Whether a job was queued for the attempt, or its place was taken so that none can be."""
        return bool(self.jobs) or self.ended is not None or self.taken is not None

    @property
    def taken(self) -> Mapping[str, Any] | None:
        """Who took the job's place: the job itself, or one who gave the attempt up (its ``job_id`` is None)."""
        return None if self.attempt is None else self.attempt.get("job")

    @property
    def job(self) -> JobRecord | None:
        """The attempt's job as Slurm lists it: the one that took its place, else the first queued."""
        if self.taken is not None:
            return next((job for job in self.jobs if job.job_id == self.taken["job_id"]), None)
        return min(self.jobs, key=lambda job: int(job.job_id), default=None)

    @property
    def has_no_ranks(self) -> bool:
        """Whether every node's supervisor has said, last of all, how its ranks ended."""
        life = None if self.attempt is None else self.attempt.get("life")
        return self.ended is not None or (life is not None and all(node["exit"] for node in life["nodes"]))

    @property
    def agents_seen_at_s(self) -> float | None:
        """When its agents last gave a sign (Unix seconds), None where they have not."""
        life = None if self.attempt is None else self.attempt.get("life")
        signs_s = [] if life is None else [node["alive_at_s"] for node in life["nodes"]]
        return max((sign_s for sign_s in signs_s if sign_s is not None), default=None)


class Looker:
    """Looks at gangs through one client and one shelf. It may be thrown away at any time: then graces begin anew."""

    def __init__(self, *, options: SlurmOptions, client: SlurmClient, shelf: Shelf) -> None:
        self._options = options
        self._client = client
        self._shelf = shelf
        self._ended: dict[str, GangStatus] = {}
        self._submits: dict[str, Mapping[str, Any]] = {}
        self._missed_since_s: dict[str, float] = {}
        self._ended_since_s: dict[str, float] = {}

    def look_at(self, name: str) -> Look:
        """Return what there is of one. Raises ``ValueError`` when its files cannot be read."""
        look = self.look([name])[name]
        if look.unreadable is not None:
            raise ValueError(look.unreadable)
        return look

    def look(self, names: Sequence[str], *, jobs: Sequence[JobRecord] | None = None) -> dict[str, Look]:
        """Return what there is of each. One call of Slurm's, none for those whose end stands."""
        open_names = [name for name in names if name not in self._ended]
        if open_names and jobs is None:
            jobs = self._client.jobs()
        by_name: dict[str, list[JobRecord]] = {}
        for job in jobs or ():
            by_name.setdefault(job.name, []).append(job)
        attempts = self._attempts(open_names, by_name)
        looks = {
            name: Look(
                name=name, attempt=attempts[name], jobs=tuple(by_name.get(name, ())), ended=_ended(attempts[name])
            )
            for name in open_names
        }
        for name in names:
            if name not in looks:
                looks[name] = Look(name=name, attempt={"submit": self._submits.get(name)}, ended=self._ended[name])
        return self._with_unlisted(looks)

    def waiting(self) -> dict[str, Mapping[str, int]]:
        """Return how many slots of which node each of our gangs in Slurm's queue will take."""
        if self._options.chooses_nodes:
            return {}
        jobs = self._client.jobs()
        has_nodes = {job.name for job in jobs if job.nodes and is_live(job)}
        names = {job.name for job in jobs if job.state.phase is GangPhase.PENDING} - has_nodes
        self._learn(sorted(names - self._submits.keys()))
        return {name: self._submits[name]["wanted"] for name in names if name in self._submits}

    def remember(self, name: str, ended: GangStatus) -> None:
        """Ask no more about a gang: how it ended stands."""
        if len(self._ended) >= _MAX_REMEMBERED:
            self._ended.clear()
            self._submits.clear()
        self._ended[name] = ended
        self._missed_since_s.pop(name, None)
        self._ended_since_s.pop(name, None)

    def status_of(self, look: Look, *, now_s: float) -> GangStatus:
        """Return the status of a gang whose end does not stand yet.

        Raises ``ValueError`` for unreadable files, ``CouldNotLookError`` where only a source that does not answer can
        say how it ended.
        """
        if look.unreadable is not None:
            raise ValueError(look.unreadable)
        if look.attempt is None:
            return _without_folder(look, now_s=now_s)
        if look.is_abandoned:
            return abandoned_status(observed_at_s=now_s, at_s=look.attempt["abandoned"]["at_s"])
        if look.taken is not None and look.taken["job_id"] is None:
            return _given_up(look, now_s=now_s)
        job = look.job
        missed_since_s = self._since_s(self._missed_since_s, look.name, job is None, now_s=now_s)
        if job is None and look.taken is None:
            return self._not_queued(look, missed_since_s, now_s=now_s)
        ended_since_s = self._since_s(
            self._ended_since_s, look.name, job is not None and job.state.phase.ended, now_s=now_s
        )
        stop = look.attempt["stop"]
        sight = status.JobSight(
            job_id=job.job_id if job is not None else look.taken["job_id"] if look.taken is not None else "",
            nodes=_nodes(look.attempt),
            queue=job,
            accounting=look.accounting,
            completion=look.completion,
            agents=_facts(look.attempt, job),
            unlisted_since_s=missed_since_s,
            ended_since_s=ended_since_s,
            stop_at_s=None if stop is None else stop["at_s"],
            requeues=self._options.requeue,
            vanish_grace_s=self._options.vanish_grace_s,
            requeue_grace_s=self._options.requeue_grace_s,
        )
        found = status.status_of(sight, now_s=now_s)
        if look.unasked is not None and sight.record is None and found.phase is not GangPhase.SUCCEEDED:
            raise CouldNotLookError(look.unasked)
        return found

    def _attempts(self, names: Sequence[str], by_name: Mapping[str, Sequence[JobRecord]]) -> dict[str, Attempt | None]:
        """Return what the folders hold. Of jobs that wait in the queue for the first time nothing new is to be read."""
        queued = {name for name in names if name in self._submits and _only_waits(by_name.get(name, ()))}
        found = self._learn([name for name in names if name not in queued])
        for name in queued:
            found[name] = {"submit": self._submits[name], "job": None, "stop": None, "abort": None, "life": None}
        return found

    def _learn(self, names: Sequence[str]) -> dict[str, Attempt | None]:
        found: dict[str, Attempt | None] = dict(self._shelf.look(names=names)) if names else {}
        for name, attempt in found.items():
            if attempt is not None and "submit" in attempt:
                self._submits[name] = attempt["submit"]
        return found

    def _with_unlisted(self, looks: dict[str, Look]) -> dict[str, Look]:
        """Ask those of Slurm's sources that keep ends about started jobs which the controller does not list."""
        missing = {
            look.taken["job_id"]: look
            for look in looks.values()
            if look.ended is None and look.taken is not None and look.taken["job_id"] and look.job is None
        }
        if missing:
            accounting, silence = _asked(self._client.accounting, sorted(missing))
            completion, more_silence = _asked(self._client.completion, sorted(missing))
            for job_id, look in missing.items():
                looks[look.name] = Look(
                    name=look.name,
                    attempt=look.attempt,
                    jobs=look.jobs,
                    accounting=accounting.get(job_id),
                    completion=completion.get(job_id),
                    unasked=silence or more_silence,
                )
        return looks

    def _not_queued(self, look: Look, missed_since_s: float | None, *, now_s: float) -> GangStatus:
        """Between folder and job: its submitter is at it, or has died. In time its place is taken, and it is over."""
        assert look.attempt is not None
        assert missed_since_s is not None
        is_stopped = look.attempt["stop"] is not None
        if is_stopped or now_s >= missed_since_s + self._options.vanish_grace_s:
            with _GIVE_UP:
                is_over = self._shelf.give_up(name=look.name, reason="")
            if is_over:
                return _given_up(look, now_s=now_s)
        nodes = tuple(NodeStatus(node=node, phase=GangPhase.PENDING) for node in _nodes(look.attempt))
        return GangStatus(
            phase=GangPhase.PENDING, observed_at_s=now_s, nodes=nodes, reason="its job is being submitted"
        )

    def _since_s(self, memory: dict[str, float], name: str, holds: bool, *, now_s: float) -> float | None:
        if holds:
            return memory.setdefault(name, now_s)
        memory.pop(name, None)
        return None


def _asked(
    source: Callable[[Sequence[str]], Sequence[JobRecord]], job_ids: Sequence[str]
) -> tuple[dict[str, JobRecord], str | None]:
    """Return what a source says by job, and why it says nothing: its silence must not hide gangs that Slurm lists."""
    try:
        return {job.job_id: job for job in source(job_ids)}, None
    except CouldNotLookError as error:
        return {}, str(error)


def is_live(job: JobRecord) -> bool:
    """Whether a job waits or has processes."""
    return not job.state.phase.ended


def _only_waits(jobs: Sequence[JobRecord]) -> bool:
    return bool(jobs) and all(job.state.phase is GangPhase.PENDING and job.num_restarts == 0 for job in jobs)


def _ended(attempt: Attempt | None) -> GangStatus | None:
    if attempt is None or "end" not in attempt:
        return None
    return codec.from_plain(GangStatus, attempt["end"]["status"])


def _nodes(attempt: Attempt) -> tuple[NodeId, ...]:
    life = attempt.get("life")
    names = attempt["submit"]["wanted"] if life is None else [node["node"] for node in life["nodes"]]
    return tuple(map(NodeId, names))


def _without_folder(look: Look, *, now_s: float) -> GangStatus:
    live = [job.job_id for job in look.jobs if is_live(job)]
    if live:
        reason = f"its folder was deleted; job {', '.join(live)} goes on"
        return GangStatus(phase=GangPhase.RUNNING, observed_at_s=now_s, reason=reason)
    reason = f"there is no attempt {look.name} on this engine"
    return GangStatus(phase=GangPhase.LOST, observed_at_s=now_s, fault=FaultKind.GANG_LOST, reason=reason)


def _given_up(look: Look, *, now_s: float) -> GangStatus:
    """An attempt that never had a job and will never have one."""
    assert look.attempt is not None
    refusal = "" if look.taken is None else look.taken["reason"]
    phase, fault, reason = GangPhase.LOST, FaultKind.GANG_LOST, "its job was never queued: its submitter vanished"
    if refusal:
        phase, fault, reason = GangPhase.FAILED, FaultKind.START_FAILED, refusal
    elif look.attempt["stop"] is not None:
        return GangStatus(phase=GangPhase.STOPPED, observed_at_s=now_s, ended_at_s=now_s, reason="stopped")
    return GangStatus(phase=phase, observed_at_s=now_s, ended_at_s=now_s, fault=fault, reason=reason)


def _facts(attempt: Attempt, job: JobRecord | None) -> GangFacts | None:
    """Return what the agents of the job's present life wrote; None while they have not begun."""
    life = attempt["life"]
    if life is None or (job is not None and job.num_restarts > life["restart"]):
        return None
    stop = attempt["stop"]
    has_processes = job is not None and is_live(job) and job.state.phase is not GangPhase.PENDING
    return GangFacts(
        nodes=tuple(_node_facts(node, has_processes=has_processes) for node in life["nodes"]),
        submitted_at_s=life["submitted_at_s"],
        start_limit_s=life["start_limit_s"],
        grace_s=life["grace_s"],
        go=attempt["go"],
        stop_at_s=None if stop is None else stop["at_s"],
        abort=attempt["abort"],
    )


def _node_facts(node: Mapping[str, Any], *, has_processes: bool) -> NodeFacts:
    return NodeFacts(
        node=NodeId(node["node"]),
        claimed=node["claimed"],
        supervisor_alive=has_processes and node["exit"] is None,
        started_at_s=node["started_at_s"],
        alive_at_s=node["alive_at_s"],
        notice_deadline_s=node["notice_deadline_s"],
        exit=node["exit"],
    )
