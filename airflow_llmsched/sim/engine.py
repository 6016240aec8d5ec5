"""An engine under a virtual clock: the contract of the real ones, with the platform's whims at the caller's hand."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from airflow_llmsched import codec
from airflow_llmsched.domain.gang import (
    FoundGang,
    GangHandle,
    GangPhase,
    GangSpec,
    GangStatus,
    LaunchRequest,
    NodeStatus,
    RankEnd,
    abandoned_status,
)
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import AbandonedError, CapacityError, CouldNotLookError, SpecError
from airflow_llmsched.ports import EngineFeature, LateDuplicateGuard
from airflow_llmsched.sim.channel import SimChannelHub
from airflow_llmsched.sim.checkpoints import SimCheckpoints
from airflow_llmsched.sim.gang import Ending, SimGang
from airflow_llmsched.sim.scripts import (
    RANKS_VARIABLE,
    SIM_RANKS_COMMAND,
    SIM_TRAIN_COMMAND,
    TRAINING_VARIABLE,
    SimRankScript,
    SimTraining,
    TrainingFault,
)
from airflow_llmsched.sim.training import SimTrainer, fence
from airflow_llmsched.sim.world import SimWorld

_SUBMIT = EffectPoint("sim.submit")
_STOP = EffectPoint("sim.stop")
_ABANDON = EffectPoint("sim.abandon")


@dataclass(slots=True)
class _Node:
    id: NodeId
    path: tuple[str, ...]
    shape: str
    num_slots: int
    down_reason: str | None = None


class SimEngine:
    """``ports.Engine`` whose nodes are those of ``tree``, all free at first. Ranks take ``start_delay_s`` to start."""

    name = "sim"
    features = frozenset({EngineFeature.PREEMPT_NODE, EngineFeature.FREE_CAPACITY})
    late_duplicate_guard = LateDuplicateGuard.TABLE

    def __init__(
        self,
        world: SimWorld,
        tree: TopologyTree,
        *,
        hub: SimChannelHub,
        checkpoints: SimCheckpoints,
        start_delay_s: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.faults: list[TrainingFault] = []
        self._world = world
        self._tree = tree
        self._nodes = {
            node.id: _Node(id=node.id, path=node.path, shape=node.shape, num_slots=node.num_slots)
            for node in tree.nodes
        }
        self._hub = hub
        self._checkpoints = checkpoints
        self._start_delay_s = start_delay_s
        self._seed = seed
        self._gangs: dict[str, SimGang] = {}
        self._abandoned: dict[AttemptKey, float] = {}
        self._blind_until_s = float("-inf")
        self._lose_answers = 0
        self.overlaps: list[tuple[str, str]] = []
        """Pairs of gangs of one run whose ranks were alive at once, whatever anyone knew. There must be none."""

    def render(self, gang: GangSpec) -> LaunchRequest:
        """Return the gang itself as the request's body."""
        return LaunchRequest(engine=self.name, key=gang.key, body={"gang": codec.to_plain(gang)})

    def submit(self, request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        """Start the gang, or return the one already started under ``key``.

        Raises ``CapacityError``, ``SpecError`` for a request of another engine, ``CouldNotLookError``,
        ``AbandonedError``.
        """
        self._look()
        if request.engine != self.name:
            raise SpecError(path="request.engine", value=request.engine, hint=f"must be {self.name!r}")
        with _SUBMIT:
            handle = self._start(codec.from_plain(GangSpec, request.body["gang"]), key)
        if self._lose_answers:
            self._lose_answers -= 1
            raise CouldNotLookError(f"the answer to the submission of {key.name} was lost")
        return handle

    def abandon(self, key: AttemptKey) -> bool:
        """Have ``submit`` start nothing under ``key``; False when it has already."""
        self._look()
        with _ABANDON:  # looking and giving up are one, as in a real engine
            if key.name in self._gangs:
                return False
            self._abandoned.setdefault(key, self._world.time_s)
            return True

    def find(self, key: RunKey) -> Sequence[GangHandle]:
        """Return every gang of the run, abandoned ones too, oldest first."""
        self._look()
        keys = [*(gang.handle.key for gang in self._gangs.values()), *self._abandoned]
        mine = sorted((each.generation, each.attempt) for each in keys if each.run == key)
        return [
            self._handle(AttemptKey(run=key, generation=generation, attempt=attempt)) for generation, attempt in mine
        ]

    def find_all(self) -> Sequence[FoundGang]:
        """Return every gang that has not ended, oldest first. Its agents give no sign but through the channel."""
        self._look()
        return [
            FoundGang(
                handle=gang.handle,
                channel_root=gang.spec.channel_root,
                submitted_at_s=gang.submitted_at_s,
                origin=gang.spec.origin,
            )
            for gang in self._gangs.values()
            if not gang.phase.ended
        ]

    def poll(self, handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        """Return the status of each handle; an unknown one is lost."""
        self._look()
        return {handle: self._status(handle) for handle in handles}

    def stop(self, handle: GangHandle, *, grace_s: float) -> None:
        """End the gang, blocking (in simulated time) while ranks ignore SIGTERM."""
        self._look()
        gang = self._gangs.get(handle.key.name)
        if gang is None or gang.phase.ended:
            return
        nodes = dict.fromkeys(gang.spec.placement.nodes, GangPhase.STOPPED)
        with _STOP:
            gang.fall(Ending(phase=GangPhase.STOPPED, reason="stopped", nodes=nodes), grace_s=grace_s)
        if not gang.phase.ended:
            self._world.clock.sleep(grace_s)
            self._world.advance()

    def topology(self) -> TopologyTree:
        """Return the nodes with what live gangs leave free."""
        self._look()
        nodes = tuple(
            TopologyNode(
                id=node.id,
                path=node.path,
                shape=node.shape,
                num_slots=node.num_slots,
                num_free_slots=node.num_slots - self._used(node.id),
                unusable_reason=node.down_reason,
            )
            for node in self._nodes.values()
        )
        return replace(self._tree, nodes=nodes)

    def log_tail(self, handle: GangHandle, *, rank: int, num_lines: int) -> str:
        """Return the last lines a rank wrote."""
        self._look()
        gang = self._gangs.get(handle.key.name)
        return "\n".join(gang.said.get(rank, "").splitlines()[-num_lines:]) if gang else ""

    def log_tails(self, handle: GangHandle, *, ranks: Sequence[int], num_lines: int) -> Mapping[int, str]:
        """Return the last lines of several ranks."""
        return {rank: self.log_tail(handle, rank=rank, num_lines=num_lines) for rank in ranks}

    def preempt(self, node: NodeId, *, grace_s: float, return_after_s: float | None = None) -> None:
        """Have the platform take ``node``: notice now, kill after ``grace_s``, back ``return_after_s`` later."""
        self._world.advance()
        deadline_s = self._world.time_s + grace_s
        self._nodes[node].down_reason = f"preempted: taken at {deadline_s:.3f}"
        for gang in self._on(node):
            gang.notices[node] = deadline_s
        self._world.at(deadline_s, lambda: self._take(node))
        self._return_later(node, None if return_after_s is None else grace_s + return_after_s)

    def lose_node(self, node: NodeId, *, return_after_s: float | None = None) -> None:
        """Have ``node`` vanish with all that runs on it."""
        self._world.advance()
        self._nodes[node].down_reason = "lost"
        for gang in self._on(node):
            self._lose(gang, node)
        self._return_later(node, return_after_s)

    def partition(self, node: NodeId, *, heals_after_s: float | None = None, clock_offset_s: float = 0.0) -> None:
        """Cut ``node`` off: engine and control take it for lost, while its ranks live on until they are fenced.

        Its agent honours the lease that it had read before, by a clock ``clock_offset_s`` ahead; once the node is back
        it reads what came meanwhile. Ranks without a lease live for ever.
        """
        self._world.advance()
        self._nodes[node].down_reason = "unreachable"
        back_at_s = None if heals_after_s is None else self._world.time_s + heals_after_s
        for gang in self._on(node):
            self._cut_off(gang, node, back_at_s=back_at_s, clock_offset_s=clock_offset_s)
        self._return_later(node, heals_after_s)

    def lose_part(self, handle: GangHandle, node: NodeId) -> None:
        """Have only the gang's processes on ``node`` vanish."""
        self._world.advance()
        self._lose(self._gangs[handle.key.name], node)

    def blind(self, *, for_s: float) -> None:
        """Make every call fail with ``CouldNotLookError`` for a while."""
        self._blind_until_s = self._world.clock.now_s() + for_s

    def freeze_agents(self, handle: GangHandle) -> None:
        """Have the gang's agents stand still from now on: they neither report nor mind their lease. Ranks run on."""
        self._world.advance()
        self._hub.line(self._gangs[handle.key.name].spec.channel_root).freeze()

    def lose_answers(self, count: int) -> None:
        """Let the next ``count`` submissions succeed but seem to fail."""
        self._lose_answers = count

    def num_live_ranks(self, handle: GangHandle) -> int:
        """Return how many ranks of the gang exist, whatever is known about it."""
        self._world.advance()
        gang = self._gangs.get(handle.key.name)
        return len(gang.alive | gang.zombies) if gang else 0

    def spec(self, handle: GangHandle) -> GangSpec:
        """Return what a gang was launched as."""
        return self._gangs[handle.key.name].spec

    def live(self, key: RunKey) -> tuple[GangHandle, ...]:
        """Return the run's gangs that have not ended, even while blind."""
        self._world.advance()
        return tuple(
            gang.handle for gang in self._gangs.values() if gang.handle.key.run == key and not gang.phase.ended
        )

    def _handle(self, key: AttemptKey) -> GangHandle:
        return GangHandle(engine=self.name, key=key, native_id=key.name)

    def _start(self, spec: GangSpec, key: AttemptKey) -> GangHandle:
        if key.name in self._gangs:
            return self._gangs[key.name].handle
        if key in self._abandoned:
            raise AbandonedError(f"attempt {key.name} was given up before it was submitted: nothing is started")
        self._require_free(spec)
        gang = SimGang(self._world, spec, self._handle(key))
        self._gangs[key.name] = gang
        self._begin(gang)
        return gang.handle

    def _begin(self, gang: SimGang) -> None:
        spec = gang.spec
        if spec.command not in (SIM_RANKS_COMMAND, SIM_TRAIN_COMMAND):
            self._world.after(self._start_delay_s, lambda: self._fail_to_start(gang))
        elif self._start_delay_s > spec.start_limit_s:
            self._world.after(spec.start_limit_s, lambda: self._time_out(gang))
        else:
            self._world.after(self._start_delay_s, lambda: self._run(gang))

    def _run(self, gang: SimGang) -> None:
        gang.run()
        self._note_overlaps(gang)
        if not gang.steady:
            return
        self._watch_lease(gang)
        if gang.spec.command == SIM_RANKS_COMMAND:
            self._run_scripts(gang)
            return
        training = codec.from_json(SimTraining, gang.spec.environment[TRAINING_VARIABLE])
        SimTrainer(
            gang, training, hub=self._hub, checkpoints=self._checkpoints, faults=self.faults, seed=self._seed
        ).begin()

    def _note_overlaps(self, gang: SimGang) -> None:
        for other in self._gangs.values():
            same_run = other is not gang and other.handle.key.run == gang.handle.key.run
            if same_run and gang.alive and other.alive | other.zombies:
                self.overlaps.append((other.handle.key.name, gang.handle.key.name))

    def _run_scripts(self, gang: SimGang) -> None:
        scripts = codec.from_json(list[SimRankScript], gang.spec.environment[RANKS_VARIABLE])
        self._hub.line(gang.spec.channel_root).open(gang)  # nodes report, though the ranks' programs say nothing
        for rank, script in enumerate(scripts):
            gang.said[rank] = script.says
            if script.ignores_sigterm:
                gang.ignores_sigterm.add(rank)
            if script.lasts_s is not None:
                self._world.after(script.lasts_s, partial(_end, gang, rank, script))

    def _watch_lease(self, gang: SimGang) -> None:
        lease_s = gang.spec.lease_s
        if lease_s is None:
            return
        line = self._hub.line(gang.spec.channel_root)
        if line.lease_until_s is None:
            line.lease_until_s = self._world.time_s + lease_s

        def check() -> None:
            until_s = line.lease_until_s or 0.0
            if line.is_frozen:
                return  # agents that stand still fence nothing
            if gang.steady and self._world.time_s >= until_s:
                fence(gang)
            elif gang.steady:
                self._world.at(until_s, check)

        self._world.at(line.lease_until_s, check)

    def _fail_to_start(self, gang: SimGang) -> None:
        slot = gang.spec.placement.slots[0]
        text = f"{gang.spec.command[0]}: no such command"
        gang.said[0] = text
        end = RankEnd(rank=0, node=slot.node, exit_code=127, signal=None, at_s=self._world.time_s, log_tail=text)
        gang.fall(
            Ending(
                phase=GangPhase.FAILED,
                reason=f"rank 0 on {slot.node} did not start: {text}",
                fault=FaultKind.START_FAILED,
                first_end=end,
                nodes={slot.node: GangPhase.FAILED},
            ),
            grace_s=0.0,
        )

    def _time_out(self, gang: SimGang) -> None:
        limit_s = gang.spec.start_limit_s
        reason = f"ranks did not start within {limit_s:.0f} s"
        gang.fall(Ending(phase=GangPhase.FAILED, reason=reason, fault=FaultKind.START_TIMEOUT), grace_s=0.0)

    def _take(self, node: NodeId) -> None:
        for gang in self._on(node):
            _fall_with(gang, node, GangPhase.PREEMPTED, fault=FaultKind.PREEMPTED, reason=f"node {node} was preempted")

    def _lose(self, gang: SimGang, node: NodeId) -> None:
        _fall_with(gang, node, GangPhase.LOST, fault=FaultKind.NODE_LOST, reason=f"node {node} vanished")

    def _cut_off(self, gang: SimGang, node: NodeId, *, back_at_s: float | None, clock_offset_s: float) -> None:
        ranks = [slot.rank for slot in gang.spec.placement.on(node)]
        ending = Ending(
            phase=GangPhase.LOST,
            reason=f"node {node} cannot be reached",
            fault=FaultKind.NODE_LOST,
            nodes={node: GangPhase.LOST},
        )
        gang.unreachable.add(node)
        gang.fall(ending, grace_s=gang.spec.grace_s, gone=ranks, unseen=ranks)
        line = self._hub.line(gang.spec.channel_root)
        if gang.spec.lease_s is None or not gang.zombies:
            return
        held_until_s = line.lease_until_s or self._world.time_s

        def check() -> None:
            nonlocal held_until_s
            if back_at_s is not None and self._world.time_s >= back_at_s:
                held_until_s = max(held_until_s, line.lease_until_s or 0.0)
            ends_at_s = held_until_s - clock_offset_s
            if self._world.time_s >= ends_at_s:
                self._world.after(gang.spec.grace_s, lambda: gang.lay(ranks))
            else:
                self._world.at(ends_at_s, check)

        check()

    def _return_later(self, node: NodeId, after_s: float | None) -> None:
        if after_s is not None:
            self._world.after(after_s, lambda: setattr(self._nodes[node], "down_reason", None))

    def _require_free(self, spec: GangSpec) -> None:
        for node_id in spec.placement.nodes:
            node, wanted = self._nodes.get(node_id), len(spec.placement.held_on(node_id))
            if node is None or node.down_reason is not None:
                why = node.down_reason if node else "there is no such node"
                raise CapacityError(f"node {node_id} cannot be used: {why}")
            free = node.num_slots - self._used(node_id)
            if free < wanted:
                raise CapacityError(f"node {node_id} has {free} of {wanted} slots free")

    def _used(self, node: NodeId) -> int:
        zombies = sum(
            slot.rank in gang.zombies for gang in self._gangs.values() for slot in gang.spec.placement.on(node)
        )
        return zombies + sum(len(gang.spec.placement.held_on(node)) for gang in self._on(node))

    def _on(self, node: NodeId) -> list[SimGang]:
        return [gang for gang in self._gangs.values() if not gang.phase.ended and node in gang.spec.placement.nodes]

    def _status(self, handle: GangHandle) -> GangStatus:
        gang = self._gangs.get(handle.key.name)
        if gang is not None:
            return gang.status()
        if handle.key in self._abandoned:
            return abandoned_status(observed_at_s=self._world.time_s, at_s=self._abandoned[handle.key])
        reason = f"no gang {handle.key.name} was ever started here"
        nodes: tuple[NodeStatus, ...] = ()
        return GangStatus(phase=GangPhase.LOST, observed_at_s=self._world.time_s, nodes=nodes, reason=reason)

    def _look(self) -> None:
        if self._world.advance() < self._blind_until_s:
            raise CouldNotLookError("the simulated engine does not answer")


def _end(gang: SimGang, rank: int, script: SimRankScript) -> None:
    if script.signal is None:
        gang.exit(rank, exit_code=script.exit_code)
    else:
        gang.exit(rank, exit_code=None, signal=script.signal, signal_name=signals.Signals(script.signal).name)


def _fall_with(gang: SimGang, node: NodeId, phase: GangPhase, *, fault: FaultKind, reason: str) -> None:
    """End the gang because of ``node``, whose ranks are gone at once."""
    gone = [slot.rank for slot in gang.spec.placement.on(node)]
    ending = Ending(phase=phase, reason=reason, fault=fault, nodes={node: phase})
    gang.fall(ending, grace_s=gang.spec.grace_s, gone=gone)
