"""The Slurm engine: a gang is a job, and its ranks' agents write to a folder that all nodes of the cluster share.

An attempt's folder appears before its job is submitted, and only once: that decides between ``submit`` and ``abandon``.
Its job takes ``job.json`` in it before it starts anything: that decides between two jobs of one name. What a look
concludes of an end is written down at once, as Slurm soon forgets its jobs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.domain.gang import FoundGang, GangHandle, GangPhase, GangSpec, GangStatus, LaunchRequest
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines.agent_request import held_slots, is_attempt_name, key_of
from airflow_llmsched.engines.looks import looking
from airflow_llmsched.engines.slurm import render
from airflow_llmsched.engines.slurm.client import SlurmClient
from airflow_llmsched.engines.slurm.comment import whose
from airflow_llmsched.engines.slurm.looking import Look, Looker, is_live
from airflow_llmsched.engines.slurm.options import SlurmOptions
from airflow_llmsched.engines.slurm.records import JobRecord
from airflow_llmsched.engines.slurm.replies import Job
from airflow_llmsched.engines.slurm.shelf import Shelf
from airflow_llmsched.engines.slurm.topology import tree_of
from airflow_llmsched.errors import AbandonedError, CapacityError, CouldNotLookError, LaunchError, SpecError
from airflow_llmsched.ports import EngineFeature, LateDuplicateGuard

_CLAIM = EffectPoint("slurm.submit.claim")
_SBATCH = EffectPoint("slurm.submit.sbatch")
_REFUSED = EffectPoint("slurm.submit.refused")
_DUPLICATE = EffectPoint("slurm.submit.cancel_duplicate")
_ABANDON = EffectPoint("slurm.abandon.claim")
_END = EffectPoint("slurm.poll.end")
_STOP = EffectPoint("slurm.stop.mark")
_CANCEL = EffectPoint("slurm.stop.cancel")

_COMPLETING = "COMPLETING"
_MAX_LOOKS = 5
_LOOK_AGAIN_S = 0.25
_CANCELLED_LIMIT_S = 4.0
"""How long a cancelled job may take to be gone. Together with the grace it stays below the promised grace + 5 s."""


class SlurmEngine:
    """An ``Engine`` on a cluster that ``client`` asks and whose shared files ``shelf`` reaches."""

    name = render.NAME
    features = frozenset({EngineFeature.FREE_CAPACITY, EngineFeature.OWN_QUEUE})
    late_duplicate_guard = LateDuplicateGuard.UNIQUE_NAME_AND_SINGLETON

    def __init__(self, *, options: SlurmOptions, client: SlurmClient, shelf: Shelf) -> None:
        self._options = options
        self._client = client
        self._shelf = shelf
        self._looker = Looker(options=options, client=client, shelf=shelf)

    def render(self, gang: GangSpec) -> LaunchRequest:
        """Return a printable request: the batch script. Pure. Raises ``SpecError`` for what no job can be."""
        return render.render(gang, options=self._options)

    def submit(self, request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        """Queue the gang's job, or return the handle of the one already queued or run under ``key``.

        Where the plan chose the nodes, they must have room now; what is free may be gone a moment later, and the job
        then waits in Slurm's queue. Raises ``CapacityError``, ``LaunchError`` (Slurm refused the job),
        ``CouldNotLookError``, ``AbandonedError``.
        """
        if request.engine != self.name or request.key != key:
            raise SpecError(
                path="request", value=request.key.name, hint=f"was not rendered by this engine for {key.name}"
            )
        handle = self._handle(key)
        with looking("Slurm", "submit"):
            look = self._looker.look_at(key.name)
            if look.attempt is None:
                if any(map(is_live, look.jobs)):
                    return handle  # somebody deleted its folder
                look = self._claim(request, key)
            self._refuse_abandoned(look, key)
            if not look.has_job:
                self._queue(request, key)
        return handle

    def abandon(self, key: AttemptKey) -> bool:
        """Take the attempt's folder, so that a late submit finds it; False when there is a gang in it already."""
        with looking("Slurm", "abandon"), _ABANDON:
            return self._shelf.abandon(name=key.name)

    def find(self, key: RunKey) -> Sequence[GangHandle]:
        """Return every gang of the run, live, ended and abandoned, oldest first. Raises ``CouldNotLookError``.

        One whose folder was deleted is found as long as Slurm remembers its job.
        """
        with looking("Slurm", "find"):
            names = {*self._shelf.names(), *(job.name for job in self._client.jobs())}
        mine = [each for each in map(key_of, filter(is_attempt_name, names)) if each.run == key]
        return [self._handle(each) for each in sorted(mine, key=lambda each: (each.generation, each.attempt))]

    def find_all(self) -> Sequence[FoundGang]:
        """Return every gang that has not ended, oldest first. Raises ``CouldNotLookError``.

        One whose folder was deleted says by its job's comment what it is.
        """
        with looking("Slurm", "find"):
            jobs = self._client.jobs()
            strays = {job.name for job in jobs if is_live(job) and whose(job.comment) is not None}
            names = sorted(filter(is_attempt_name, {*self._shelf.names(), *strays}))
            looks = self._looker.look(names, jobs=jobs)
            now_s = time.time()
            live = [name for name in names if not self._status(looks[name], now_s=now_s).phase.ended]
            found = [self._found(looks[name]) for name in live]
        return sorted(found, key=lambda gang: (gang.submitted_at_s, gang.handle.native_id))

    def poll(self, handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        """Return the status of each handle by one call of Slurm's; one that never was is lost.

        Raises ``CouldNotLookError``. One whose files alone cannot be read is left out, unless all are.
        """
        if not handles:
            return {}
        with looking("Slurm", "poll"):
            looks = self._looker.look([handle.native_id for handle in handles])
        now_s = time.time()
        seen: dict[GangHandle, GangStatus] = {}
        failure: CouldNotLookError | None = None
        for handle in handles:
            try:
                with looking("Slurm", "poll"):
                    seen[handle] = self._status(looks[handle.native_id], now_s=now_s)
            except CouldNotLookError as error:
                failure = error
        if failure is not None and not seen:
            raise failure
        return seen

    def stop(self, handle: GangHandle, *, grace_s: float) -> None:
        """End every process of the gang within ``grace_s`` + 5 s: its agents do it, and Slurm whatever they leave."""
        name = handle.native_id
        with looking("Slurm", "stop"):
            look = self._looker.look_at(name)
            if look.attempt is not None:
                if self._status(look, now_s=time.time()).phase.ended and not any(map(is_live, look.jobs)):
                    return
                with _STOP:
                    self._shelf.stop(name=name, grace_s=grace_s)
            self._end_jobs(name, grace_s=grace_s if look.attempt is not None else 0.0)

    def topology(self) -> TopologyTree:
        """Return the partition's nodes under their switches, with what is free now. Raises ``CouldNotLookError``.

        What our jobs in the queue will take counts as taken.
        """
        with looking("Slurm", "topology"):
            waiting = self._looker.waiting()
            for _ in range(_MAX_LOOKS):  # one that starts in between would count twice, or not at all
                nodes, switches = self._client.nodes(), self._client.switches()
                before, waiting = waiting, self._looker.waiting()
                if before == waiting:
                    break
            tree = tree_of(nodes, switches=switches, options=self._options)
            tree = replace(tree, wirings=self._options.wirings.read())
        taken: dict[NodeId, int] = {}
        for wanted in waiting.values():
            for node, num_slots in wanted.items():
                taken[NodeId(node)] = taken.get(NodeId(node), 0) + num_slots
        return replace(tree, nodes=tuple(_less(node, taken.get(node.id, 0)) for node in tree.nodes))

    def log_tail(self, handle: GangHandle, *, rank: int, num_lines: int) -> str:
        """Return the last lines a rank wrote; empty when it wrote nothing."""
        return self.log_tails(handle, ranks=[rank], num_lines=num_lines)[rank]

    def log_tails(self, handle: GangHandle, *, ranks: Sequence[int], num_lines: int) -> Mapping[int, str]:
        """Return the last lines of several ranks, by one call to where the files are. Raises ``CouldNotLookError``."""
        with looking("Slurm", "log"):
            texts = self._shelf.log_tails(name=handle.native_id, ranks=list(ranks), num_lines=num_lines)
        return dict(zip(ranks, texts, strict=True))

    def _claim(self, request: LaunchRequest, key: AttemptKey) -> Look:
        """Make the attempt's folder if there is room for it, or has been until its own job took it."""
        try:
            self._refuse_what_is_not_free(request)
        except CapacityError:
            look = self._looker.look_at(key.name)
            if look.attempt is None:
                raise
            return look
        with _CLAIM:
            environment = request.body["environment"]
            self._shelf.claim(name=key.name, submit=_submit_record(request), environment=environment)
        return self._looker.look_at(key.name)

    def _queue(self, request: LaunchRequest, key: AttemptKey) -> None:
        """Submit the job. Of several at once only the first can run; who finds its own to be another ends it."""
        told = request.body["slurm"]
        asked = frozenset(self._options.exclude)
        if render.excluded_of(told) - asked:
            told = render.without_unknown(told, asked.union(node.name for node in self._client.nodes()))
        try:
            with _SBATCH:
                job = self._client.submit(told["script"], parts=told["parts"])
        except LaunchError as error:
            with _REFUSED:
                self._shelf.give_up(name=key.name, reason=str(error))
            raise
        older = [each for each in self._client.jobs() if each.name == key.name and int(each.job_id) < int(job.id)]
        if older:
            with _DUPLICATE:
                self._client.cancel(job)

    def _status(self, look: Look, *, now_s: float) -> GangStatus:
        if look.ended is not None:
            return replace(look.ended, observed_at_s=now_s)
        status = self._looker.status_of(look, now_s=now_s)
        if status.phase.ended and look.attempt is not None and not look.is_abandoned:
            # What has ended now must have so tomorrow as well, when Slurm no longer knows the job.
            with _END:
                standing = self._shelf.end(name=look.name, status=codec.to_plain(status))
            status = replace(codec.from_plain(GangStatus, standing["status"]), observed_at_s=now_s)
            self._looker.remember(look.name, status)
        return status

    def _end_jobs(self, name: str, *, grace_s: float) -> None:
        """See the name's jobs off: those that wait at once, those that run once their agents have had the grace."""
        began_s = time.monotonic()
        cancelled: set[str] = set()
        while True:
            live = [job for job in self._client.jobs() if job.name == name and is_live(job)]
            if not live:
                return
            waited_s = time.monotonic() - began_s
            if waited_s > grace_s + 1.0 + _CANCELLED_LIMIT_S:
                if all(job.state.word == _COMPLETING for job in live) and self._looker.look_at(name).has_no_ranks:
                    return  # what the site does after a job may take its time
                raise CouldNotLookError(f"attempt {name}: job {live[0].job_id} is still there; retry")
            for job in live:
                if job.job_id not in cancelled and (_waits(job) or waited_s > grace_s + 1.0):
                    with _CANCEL:
                        self._client.cancel(Job(id=job.job_id, cluster=self._options.cluster))
                    cancelled.add(job.job_id)
            time.sleep(_LOOK_AGAIN_S)

    def _handle(self, key: AttemptKey) -> GangHandle:
        return GangHandle(engine=self.name, key=key, native_id=key.name)

    def _found(self, look: Look) -> FoundGang:
        handle = self._handle(key_of(look.name))
        if look.attempt is not None:
            submit = look.attempt["submit"]
            return FoundGang(
                handle=handle,
                channel_root=submit["channel_root"],
                submitted_at_s=submit["at_s"],
                origin=None if submit["origin"] is None else RunOrigin(**submit["origin"]),
                agents_seen_at_s=look.agents_seen_at_s,
            )
        job = min((job for job in look.jobs if is_live(job)), key=lambda job: int(job.job_id))
        said = whose(job.comment)
        return FoundGang(
            handle=handle,
            channel_root="" if said is None else said.channel_root,
            submitted_at_s=job.submitted_at_s or 0.0,
            origin=None if said is None else said.origin,
        )

    def _refuse_abandoned(self, look: Look, key: AttemptKey) -> None:
        if look.is_abandoned:
            raise AbandonedError(
                f"attempt {key.name} was given up before it was submitted: nothing is started; read the run's journal"
            )

    def _refuse_what_is_not_free(self, request: LaunchRequest) -> None:
        if self._options.chooses_nodes:
            return
        nodes = {node.id: node for node in self.topology().nodes}
        for part in request.body["nodes"]:
            node = nodes.get(NodeId(part["node"]))
            if node is None:
                raise CapacityError(f"Slurm has no node {part['node']} in this partition; use another")
            if node.unusable_reason is not None:
                raise CapacityError(f"node {node.id} is {node.unusable_reason}; wait, or use another node")
            num_held = len(held_slots(part))
            if node.num_free_slots < num_held:
                raise CapacityError(
                    f"node {node.id} has {node.num_free_slots} free slots of the {num_held} that are needed; "
                    "wait, or use others"
                )


def _submit_record(request: LaunchRequest) -> dict[str, Any]:
    body = request.body
    wanted = {part["node"]: len(held_slots(part)) for part in body["nodes"]}
    return {"channel_root": body["channel_root"], "origin": body["origin"], "wanted": wanted}


def _less(node: TopologyNode, num_taken: int) -> TopologyNode:
    if num_taken == 0:
        return node
    num_free = max(0, node.num_free_slots - num_taken)
    free = None if node.free_slots is None else node.free_slots[len(node.free_slots) - num_free :]
    return replace(node, num_free_slots=num_free, free_slots=free)


def _waits(job: JobRecord) -> bool:
    return job.state.phase is GangPhase.PENDING
