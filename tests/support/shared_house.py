"""Several runs that share the nodes of one simulated engine, each with workers and triggerers of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from airflow_llmsched import codec
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.arbiter import RunArbiter
from airflow_llmsched.control.arbiter_ground import Decider, Ground
from airflow_llmsched.control.arbiter_saved import SavedWork
from airflow_llmsched.control.arbiter_state import Claim, GroundState
from airflow_llmsched.control.arbiter_watch import summons
from airflow_llmsched.control.closing import open_closing_driver
from airflow_llmsched.control.context import Outcome, RunContext, Watch
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.planning import Planner
from airflow_llmsched.control.poller import KeepWatching, WatchState
from airflow_llmsched.control.records import read_all
from airflow_llmsched.control.run_state import RunState
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.control.snapshots import rebuild
from airflow_llmsched.control.watching import step
from airflow_llmsched.domain.identity import NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.domain.queue_rules import QueueRules, QueueWish
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.links import AsMeasured, as_claimed
from airflow_llmsched.sim.channel import SimChannelHub
from airflow_llmsched.sim.checkpoints import SimCheckpoints
from airflow_llmsched.sim.clock import VirtualClock
from airflow_llmsched.sim.engine import SimEngine
from airflow_llmsched.sim.scripts import SIM_TRAIN_COMMAND, TRAINING_VARIABLE, SimTraining
from airflow_llmsched.sim.world import SimWorld
from tests.support.memory_store import MemoryStore
from tests.support.sim_house import plan_of, workload_of

GROUND = "sim"


def run_of(letter: str) -> RunKey:
    """Return the key of the run that a letter stands for."""
    return RunKey(f"ls-{letter * 20}")


def racks(num_racks: int, nodes_per_rack: int, num_slots: int = 2) -> TopologyTree:
    """Return ``r0n0``, ``r0n1``, ..., ``r1n0``, ... in racks, all of it free."""
    nodes = [
        TopologyNode(
            id=NodeId(f"r{rack}n{node}"),
            path=(f"r{rack}",),
            shape="sim",
            num_slots=num_slots,
            num_free_slots=num_slots,
        )
        for rack in range(num_racks)
        for node in range(nodes_per_rack)
    ]
    return TopologyTree(levels=("rack",), nodes=tuple(nodes))


def planner_of(num_slots: int, *, fewest: int | None = None) -> Planner:
    """Return a planner that wants so many slots, or makes do with ``fewest``: of few racks, in the order of names."""

    def plan(_workload: WorkloadSpec, tree: TopologyTree, excluded: frozenset[NodeId]) -> PlanSearch:
        usable = [node for node in tree.nodes if node.usable_slots and node.id not in excluded]
        by_rack: dict[tuple[str, ...], int] = {}
        for node in usable:
            by_rack[node.path] = by_rack.get(node.path, 0) + node.usable_slots
        usable.sort(key=lambda node: (by_rack[node.path] < num_slots, node.path, node.id))
        slots = [(node.id, slot) for node in usable for slot in node.usable_slot_indexes][:num_slots]
        if len(slots) < (num_slots if fewest is None else fewest):
            return PlanSearch(plans=(), rejections={"too few free slots": 1}, num_candidates=1)
        return PlanSearch(plans=(_plan(slots, shape=usable[0].shape),), num_candidates=1)

    return plan


def _plan(slots: list[tuple[NodeId, int]], *, shape: str) -> Plan:
    used: dict[NodeId, int] = {}
    ranks = []
    for rank, (node, slot) in enumerate(slots):
        ranks.append(RankSlot(rank=rank, node=node, slot=slot, local_rank=used.get(node, 0)))
        used[node] = used.get(node, 0) + 1
    placed = Placement(slots=tuple(ranks))
    plan = plan_of((slots[0][0], 1))
    return replace(plan, layout=ParallelLayout(dp=len(slots)), placement=placed, node_shape=shape)


@dataclass
class Tenant:
    """One run of the house: what it wants, and where its task is. ``outcome`` None: it has not begun."""

    key: RunKey
    num_slots: int
    wish: QueueWish | None
    training: SimTraining
    fewest: int | None = None
    outcome: Outcome | None = None
    due_s: float = 0.0
    generation: int = 0
    owner: str = "try-1"
    checked_as: RunKey | None = None
    reasons: list[str] = field(default_factory=list)


class SharedHouse:
    """One deployment, one engine, many runs. Nothing happens but through :meth:`turn`."""

    def __init__(self, tree: TopologyTree | None = None, *, rules: QueueRules | None = None) -> None:
        self.rules = rules or QueueRules()
        self.clock = VirtualClock()
        self.world = SimWorld(self.clock)
        self.hub = SimChannelHub(self.world)
        self.checkpoints = SimCheckpoints(self.world)
        self.engine = SimEngine(self.world, tree or racks(2, 2), hub=self.hub, checkpoints=self.checkpoints)
        self.store = MemoryStore()
        self.tenants: dict[RunKey, Tenant] = {}
        self.lease_s: float | None = 120.0
        self.as_measured: AsMeasured = as_claimed
        self._reader = self.ground()

    def add(
        self,
        letter: str,
        num_slots: int,
        *,
        priority: str | None = "normal",
        team: str = "default",
        num_steps: int = 100,
        fewest: int | None = None,
        save_every: int | None = 10,
    ) -> Tenant:
        """Have a run come; without a ``priority`` it has no queue block."""
        tenant = Tenant(
            key=run_of(letter),
            num_slots=num_slots,
            wish=None if priority is None else QueueWish(team=team, priority=priority),
            training=SimTraining(num_steps=num_steps, checkpoint_interval_steps=save_every),
            fewest=fewest,
        )
        self.tenants[tenant.key] = tenant
        return tenant

    def start(self, letter: str, num_slots: int, **wishes: object) -> Tenant:
        """Have a run come, and its first worker begin."""
        tenant = self.add(letter, num_slots, **wishes)  # type: ignore[arg-type]
        self.begin(tenant)
        return tenant

    def begin(self, tenant: Tenant) -> None:
        """Be a worker that begins a try of the run's task."""
        self._take(tenant, self.driver(tenant).start())

    def driver(self, tenant: Tenant) -> RunDriver:
        """Return the driver of a new worker."""
        workload = self.workload_for(tenant)
        workload = replace(
            workload,
            queue=tenant.wish,
            launcher=replace(workload.launcher, grace_s=20.0),
            checkpoint=replace(
                workload.checkpoint,
                root=f"mem/{tenant.key}",
                interval_steps=tenant.training.checkpoint_interval_steps,
            ),
        )
        context = RunContext(
            run_key=tenant.key,
            generation=tenant.generation,
            workload=workload,
            run_dir=f"mem/{tenant.key}",
            checkpoint_root=f"mem/{tenant.key}/checkpoints",
            command=SIM_TRAIN_COMMAND,
            environment={TRAINING_VARIABLE: codec.to_json(tenant.training).decode()},
            num_steps=tenant.training.num_steps,
            poll_interval_s=1.0,
            owner=tenant.owner,
            checked_as=tenant.checked_as,
            origin=RunOrigin(deployment_id="d", run=tenant.key, dag_id="pretrain", run_id=tenant.key),
            dag_id="pretrain",
            run_id=tenant.key,
            lease_s=self.lease_s,
        )
        planner = self.planner_for(tenant)
        return RunDriver(
            context=context,
            journal=Journal(self.store, tenant.key),
            engine=self.engine,
            planner=planner,
            checkpoints=self.checkpoints,
            open_channel=self.hub.open,
            clock=self.clock,
            arbiter=RunArbiter(
                self.ground(),
                self.decider(),
                context=context,
                planner=planner,
                clock=self.clock,
                rules=self.rules,
                as_measured=lambda: self.as_measured,
            ),
        )

    def workload_for(self, tenant: Tenant) -> WorkloadSpec:
        """Return what a run trains."""
        return workload_of()

    def planner_for(self, tenant: Tenant) -> Planner:
        """Return whoever plans for a run."""
        return planner_of(tenant.num_slots, fewest=tenant.fewest)

    def decider(self) -> Decider:
        """Return one of a new worker."""
        saved = SavedWork(store=self.store, open_channel=self.hub.open)
        return Decider(self.ground(), rules=self.rules, clock=self.clock, saved_at=saved.at_s)

    def ground(self) -> Ground:
        """Return the claims as a new process reads them."""
        return Ground(self.store, GROUND, clock=self.clock)

    def claims(self) -> GroundState:
        """Return who holds and who awaits what."""
        return self._reader.state()

    def held(self) -> Mapping[RunKey, frozenset[str]]:
        """Return the nodes of which each run holds slots."""
        return {key: frozenset(claim.held) for key, claim in self.claims().claims.items() if claim.held}

    def state(self, tenant: Tenant) -> RunState:
        """Return the run as its journal has it."""
        return rebuild(Journal(self.store, tenant.key)).state

    def release(self, tenant: Tenant) -> tuple[str, ...]:
        """Be the teardown of a run."""
        return open_closing_driver(
            self.store, tenant.key, engine=self.engine, clock=self.clock, ground=self.ground()
        ).release()

    def turn(self, duration_s: float = 1.0) -> None:
        """Let time pass, and look after every run that is watched. Nothing may ever be held, or used, twice."""
        self.clock.sleep(duration_s)
        self.check()
        for tenant in list(self.tenants.values()):
            if isinstance(tenant.outcome, Watch):
                self.look(tenant)

    def until(self, condition: Callable[[], bool], *, limit_s: float = 3000.0) -> None:
        """Take turns until ``condition`` holds."""
        give_up_at_s = self.clock.now_s() + limit_s
        while not condition():
            assert self.clock.now_s() < give_up_at_s, self.story()
            self.turn()

    def look(self, tenant: Tenant) -> None:
        """Be the triggerer of one run for one look, and the worker it wakes."""
        assert isinstance(tenant.outcome, Watch)
        watch = tenant.outcome.state
        channel = self.hub.open(watch.channel_root) if watch.handle else None
        watch, verdict = step(self.engine, channel, watch, self.clock)
        event: ev.AnyHandover | None = None
        if not isinstance(verdict, KeepWatching):
            event = verdict.event
        elif self.called(tenant.key, watch):
            event = ev.Woke(at_s=self.clock.now_s())
        if event is None:
            tenant.outcome = replace(tenant.outcome, state=watch)
        else:
            self._take(tenant, self.driver(tenant).handle(event, yielded_at_s=self.clock.now_s()))

    def called(self, key: RunKey, watch: WatchState) -> str:
        """Return why the queue calls for whoever claims as ``key``; empty: it does not."""
        if not watch.ground:
            return ""
        return summons(self.claims(), key, has_gang=watch.handle is not None, now_s=self.clock.now_s())

    def check(self) -> None:
        """Assert that no slot is held by two runs, nor used by two gangs, nor by one that does not hold it."""
        used: dict[tuple[NodeId, int], RunKey] = {}
        claims = self.claims().claims
        for key in self.tenants:
            for handle in self.engine.live(key):
                for slot in self.engine.spec(handle).placement.slots:
                    other = used.setdefault((slot.node, slot.slot), key)
                    assert other == key, f"{slot} is used by {other} and {key}"
                    assert slot.slot in claims[key].held.get(slot.node, ()), f"{key} uses {slot}, and does not hold it"

    def steps(self, tenant: Tenant) -> list[list[int]]:
        """Return the steps that each attempt of a run reported, in order."""
        roots = [attempt.channel_root for attempt in self.driver(tenant).attempts()]
        return [[step.step for report in read_all(self.hub.open(root)) for step in report.steps] for root in roots]

    def driver_claim(self, tenant: Tenant) -> Claim:
        """Return a claim of a run that has just come, and waits."""
        gang = QueuedGang(
            key=tenant.key, team="default", priority_class="normal", layout=ParallelLayout(dp=tenant.num_slots)
        )
        return Claim(gang=gang, num_records=0, since_s=self.clock.now_s())

    def story(self) -> str:
        """Return how all runs stand, for failures."""
        return "\n".join(
            f"{key}: {self.state(tenant).phase} {self.state(tenant).reason}; {self.claims().claims.get(key)}"
            for key, tenant in self.tenants.items()
        )

    def _take(self, tenant: Tenant, outcome: Outcome) -> None:
        tenant.outcome = outcome
        if isinstance(outcome, Watch) and outcome.state.handle is None:
            tenant.reasons.append(self.state(tenant).reason)
