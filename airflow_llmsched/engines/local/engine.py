"""The local engine: N nodes of G slots emulated by real processes in sessions of their own.

What it starts outlives whoever called it, and is found again by run key from any process on this machine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.domain.gang import (
    FoundGang,
    GangHandle,
    GangPhase,
    GangSpec,
    GangStatus,
    LaunchRequest,
    abandoned_status,
)
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.slots import taken_of
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.engines import agent_states
from airflow_llmsched.engines.agent_request import held_slots, key_of
from airflow_llmsched.engines.divided import divisions, parse_divided, part_words, whole
from airflow_llmsched.engines.local import preemption, render
from airflow_llmsched.engines.local.client import LocalClient
from airflow_llmsched.engines.looks import looking
from airflow_llmsched.errors import AbandonedError, CapacityError, CouldNotLookError, SpecError
from airflow_llmsched.ports import EngineFeature, LateDuplicateGuard

log = logging.getLogger(__name__)


class LocalEngine:
    """An ``Engine``. All state is in files under ``root``, which must be on this machine; options are JSON-safe."""

    name = render.NAME
    features = frozenset({EngineFeature.PREEMPT_NODE, EngineFeature.FREE_CAPACITY, EngineFeature.NODES_ARE_FIXED})
    late_duplicate_guard = LateDuplicateGuard.ATOMIC_DIRECTORY

    def __init__(
        self,
        *,
        root: str,
        num_nodes: int = 2,
        slots_per_node: int = 2,
        node_shape: str = "local-cpu",
        divided: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """``divided`` are accelerators of each node that are given out in slices (``engines.divided``)."""
        if not root.startswith("/"):
            raise SpecError(path="root", value=root, hint="must be an absolute path, the same for every process")
        if num_nodes < 1 or slots_per_node < 1:
            raise SpecError(path="num_nodes", value=(num_nodes, slots_per_node), hint="needs 1 node of 1 slot or more")
        self._client = LocalClient(Path(root))
        self._root = root
        self._nodes = tuple(NodeId(f"n{index}") for index in range(num_nodes))
        self._slots_per_node = slots_per_node
        self._node_shape = node_shape
        self._divided = parse_divided(divided, num_slots=slots_per_node, at="divided")

    @property
    def machines(self) -> str:
        """What its emulated nodes are called together: those of another root are others, though named alike."""
        return hashlib.sha256(os.path.normpath(self._root).encode()).hexdigest()[:12]

    @property
    def inventory(self) -> Mapping[NodeId, str]:
        """Its emulated nodes by name."""
        return {node: f"{self.machines}/{node}" for node in self._nodes}

    @property
    def parts(self) -> Mapping[NodeId, str]:
        """How many slots each node has, and which of them are divided."""
        return dict.fromkeys(self._nodes, part_words(self._slots_per_node, self._divided))

    def render(self, gang: GangSpec) -> LaunchRequest:
        """Return a printable request. Pure. Raises ``SpecError`` for what this engine cannot launch."""
        return render.render(gang, nodes=self._nodes, slots_per_node=self._slots_per_node, divided=self._divided)

    def submit(self, request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        """Start the gang, or return the handle of the one already started under ``key``.

        The attempt's directory appears at once and only once, so a late duplicate finds it. Raises ``CapacityError``
        (a slot is taken or a node is down), ``LaunchError`` (a node did not start), ``CouldNotLookError``,
        ``AbandonedError``.
        """
        if request.engine != self.name or request.key != key:
            raise SpecError(
                path="request", value=request.key.name, hint=f"was not rendered by this engine for {key.name}"
            )
        handle = self._handle(key)
        with looking("local", "submit"), self._client.exclusive():
            if not self._client.exists(handle.native_id):
                if self._client.strays(handle.native_id, self._nodes):
                    return handle
                self._refuse_abandoned(key)
                self._refuse_what_is_not_free(request)
                if not self._client.create(request):
                    self._refuse_abandoned(key)
        with looking("local", "launch"):
            if not self._status(handle, now_s=time.time()).phase.ended:
                self._client.launch(handle.native_id)
        return handle

    def abandon(self, key: AttemptKey) -> bool:
        """Take the attempt's directory, so that a late submit finds it; False when there is a gang in it already."""
        with looking("local", "abandon"):
            return self._client.abandon(key.name)

    def find(self, key: RunKey) -> Sequence[GangHandle]:
        """Return every gang of the run, live, ended and abandoned, oldest first. Raises ``CouldNotLookError``.

        One whose directory was deleted is found as long as a process of it lives.
        """
        with looking("local", "find"):
            names = {*self._client.names(), *self._client.stray_names(proc.Census())}
        mine = [each for each in map(key_of, names) if each.run == key]
        return [self._handle(each) for each in sorted(mine, key=lambda each: (each.generation, each.attempt))]

    def find_all(self) -> Sequence[FoundGang]:
        """Return every gang below ``root`` that has not ended, oldest first. Raises ``CouldNotLookError``.

        One whose directory was deleted says through its processes' environment what it is.
        """
        now_s, census = time.time(), proc.Census()
        with looking("local", "find"):
            live = [
                self._found(key_of(name))
                for name in self._client.names()
                if not self._status(self._handle(key_of(name)), now_s=now_s, census=census).phase.ended
            ]
            live += [self._found_stray(key_of(name), left) for name, left in self._client.stray_names(census).items()]
        return sorted(live, key=lambda gang: (gang.submitted_at_s, gang.handle.native_id))

    def poll(self, handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        """Return the status of each handle; one that never was is lost. Raises ``CouldNotLookError``.

        One whose files alone cannot be read is left out, unless all are.
        """
        now_s = time.time()
        census = proc.Census()
        seen: dict[GangHandle, GangStatus] = {}
        failure: CouldNotLookError | None = None
        for handle in handles:
            try:
                with looking("local", "poll"):
                    seen[handle] = self._status(handle, now_s=now_s, census=census)
            except CouldNotLookError as error:
                log.warning("%s: %s", handle.native_id, error)
                failure = error
        if failure is not None and not seen:
            raise failure
        return seen

    def stop(self, handle: GangHandle, *, grace_s: float) -> None:
        """End every process of the gang within ``grace_s`` + 5 s, launchers first. Idempotent; never by name or pid."""
        with looking("local", "stop"):
            if self._client.exists(handle.native_id):
                self._client.stop(handle.native_id, grace_s=grace_s)
            else:
                self._client.end_strays(handle.native_id, self._nodes, grace_s=grace_s)

    def topology(self) -> TopologyTree:
        """Return the nodes under one level, ``host``, with what is free now. Raises ``CouldNotLookError``."""
        now_s = time.time()
        with looking("local", "topology"):
            used = self._client.used_slots()
            nodes = tuple(self._topology_node(node, used.get(node, frozenset()), now_s=now_s) for node in self._nodes)
        return TopologyTree(levels=("host",), nodes=nodes)

    def log_tail(self, handle: GangHandle, *, rank: int, num_lines: int) -> str:
        """Return the last lines a rank wrote; empty when it wrote nothing."""
        if not self._client.exists(handle.native_id):
            return ""
        return self._client.log_tail(handle.native_id, rank=rank, num_lines=num_lines)

    def log_tails(self, handle: GangHandle, *, ranks: Sequence[int], num_lines: int) -> Mapping[int, str]:
        """Return the last lines of several ranks."""
        return {rank: self.log_tail(handle, rank=rank, num_lines=num_lines) for rank in ranks}

    def preempt(self, node: str, *, grace_s: float, return_after_s: float = 600.0) -> None:
        """Take ``node`` away: notice, grace period, SIGTERM, SIGKILL; it returns ``return_after_s`` later. Blocks."""
        if node not in self._nodes:
            raise SpecError(path="node", value=node, hint=f"must be one of {', '.join(self._nodes)}")
        with looking("local", "preempt"):
            preemption.preempt(self._client, NodeId(node), grace_s=grace_s, return_after_s=return_after_s)

    def _handle(self, key: AttemptKey) -> GangHandle:
        return GangHandle(engine=self.name, key=key, native_id=key.name)

    def _found(self, key: AttemptKey) -> FoundGang:
        request = self._client.request(key.name)
        origin = request["body"].get("origin")
        signs_s = [node.alive_at_s for node in self._client.facts(key.name).nodes if node.alive_at_s is not None]
        return FoundGang(
            handle=self._handle(key),
            channel_root=request["body"]["channel_root"],
            submitted_at_s=request["submitted_at_s"],
            origin=None if origin is None else RunOrigin(**origin),
            agents_seen_at_s=max(signs_s, default=None),
        )

    def _found_stray(self, key: AttemptKey, left: Mapping[proc.Process, Mapping[str, str]]) -> FoundGang:
        said = next(iter(left.values()))
        origin = json.loads(said[wire.ORIGIN])
        return FoundGang(
            handle=self._handle(key),
            channel_root=said[wire.CHANNEL],
            submitted_at_s=min(proc.started_at_s(process) for process in left),
            origin=None if origin is None else RunOrigin(**origin),
        )

    def _status(self, handle: GangHandle, *, now_s: float, census: proc.Census | None = None) -> GangStatus:
        if not self._client.exists(handle.native_id):
            abandoned = self._client.abandoned(handle.native_id)
            if abandoned is not None:
                return abandoned_status(observed_at_s=now_s, at_s=abandoned["at_s"])
            if self._client.strays(handle.native_id, self._nodes, census=census):
                reason = "its directory was deleted; the ranks it left are ending"
                return GangStatus(phase=GangPhase.RUNNING, observed_at_s=now_s, reason=reason)
            reason = f"there is no attempt {handle.native_id} on this engine"
            return GangStatus(phase=GangPhase.LOST, observed_at_s=now_s, fault=FaultKind.GANG_LOST, reason=reason)
        return agent_states.status_of(self._client.facts(handle.native_id, census=census), now_s=now_s)

    def _topology_node(self, node: NodeId, used: frozenset[int], *, now_s: float) -> TopologyNode:
        down = self._client.downtime(node, now_s=now_s)
        reason = None
        if down is not None:
            reason = f"{down['reason']}: back in {down['return_at_s'] - now_s:.0f} s"
        free = whole(self._slots_per_node, self._divided, used)
        return TopologyNode(
            id=node,
            path=(node,),
            shape=self._node_shape,
            num_slots=self._slots_per_node,
            num_free_slots=len(free),
            unusable_reason=reason,
            free_slots=free,
            divisions=divisions(self._divided, used),
        )

    def _refuse_abandoned(self, key: AttemptKey) -> None:
        if self._client.abandoned(key.name):
            raise AbandonedError(
                f"attempt {key.name} was given up before it was submitted: nothing is started; read the run's journal"
            )

    def _refuse_what_is_not_free(self, request: LaunchRequest) -> None:
        now_s = time.time()
        used = self._client.used_slots()
        for part in request.body["nodes"]:
            node = NodeId(part["node"])
            down = self._client.downtime(node, now_s=now_s)
            if down is not None:
                seconds = down["return_at_s"] - now_s
                raise CapacityError(
                    f"node {node} is {down['reason']}; it returns in {seconds:.0f} s, or use another node"
                )
            taken = sorted(taken_of(held_slots(part), used.get(node, ())))
            if taken:
                raise CapacityError(f"slots {taken} of node {node} are in use by another gang; wait, or use others")
