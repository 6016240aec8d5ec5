"""A whole simulated house for control tests: engine, channels, checkpoints, planner and drivers under one clock."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from airflow_llmsched import codec
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Outcome, RunContext, Succeeded, Watch
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.poller import KeepWatching
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.control.spending import Spend
from airflow_llmsched.control.watching import step
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.ledger import Span
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.plan import Plan, PlanSearch, Prediction
from airflow_llmsched.domain.progress import ChannelCursor
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import (
    BatchPhase,
    BudgetSpec,
    DatasetKind,
    DatasetSpec,
    LauncherSpec,
    RetrySpec,
    TrainingStage,
    WorkloadSpec,
)
from airflow_llmsched.ports import ObjectStore
from airflow_llmsched.sim.channel import SimChannelHub
from airflow_llmsched.sim.checkpoints import SimCheckpoints
from airflow_llmsched.sim.clock import VirtualClock
from airflow_llmsched.sim.engine import SimEngine
from airflow_llmsched.sim.scripts import SIM_TRAIN_COMMAND, TRAINING_VARIABLE, SimTraining
from airflow_llmsched.sim.world import SimWorld
from tests.support.memory_store import MemoryStore

HandedEvent = ev.GangEnded | ev.FaultDetected | ev.LookFailed | ev.DeadlineReached | ev.Woke

RUN = RunKey("ls-aaaaaaaaaaaaaaaaaaaa")
ROOT = "mem/checkpoints"


def tree_of(num_nodes: int = 2, num_slots: int = 2) -> TopologyTree:
    """Return ``n0``, ``n1``, ... with all slots free."""
    nodes = tuple(
        TopologyNode(id=NodeId(f"n{index}"), path=("rack",), shape="sim", num_slots=num_slots, num_free_slots=num_slots)
        for index in range(num_nodes)
    )
    return TopologyTree(levels=("rack",), nodes=nodes)


def workload_of(
    *,
    retries: RetrySpec | None = None,
    hang_limit_s: float = 60.0,
    require_resume: bool = False,
    separate_paths: bool = True,
) -> WorkloadSpec:
    """Return a workload whose details do not matter to control."""
    spec = WorkloadSpec(
        name="sim",
        stage=TrainingStage.PRETRAIN,
        model=None,
        data=DatasetSpec(kind=DatasetKind.PYTHON_STDLIB),
        batch=(BatchPhase(from_tokens=0, sequence_length_tokens=128, num_sequences=8),),
        budget=BudgetSpec(num_steps=40),
        launcher=LauncherSpec(start_limit_s=30.0, grace_s=10.0, hang_limit_s=hang_limit_s),
        retries=retries or RetrySpec(),
    )
    checkpoint = replace(spec.checkpoint, root=ROOT, require_resume=require_resume, separate_paths=separate_paths)
    return replace(spec, checkpoint=checkpoint)


def plan_of(*places: tuple[str, int]) -> Plan:
    """Return a data-parallel plan with the given number of ranks on each node."""
    slots: list[RankSlot] = []
    for node, count in places:
        slots += [
            RankSlot(rank=len(slots) + index, node=NodeId(node), slot=index, local_rank=index) for index in range(count)
        ]
    return Plan(
        layout=ParallelLayout(dp=len(slots)),
        placement=Placement(slots=tuple(slots)),
        prediction=Prediction(
            step_s=1.0,
            step_breakdown_s={},
            memory_bytes_per_rank=1,
            memory_breakdown_bytes={},
            mfu_ratio=0.5,
            tokens_per_s=1.0,
            usd_per_hour=1.0,
            error_ratio=0.1,
        ),
        node_shape="sim",
        num_domains=1,
    )


def greedy_planner(_workload: WorkloadSpec, tree: TopologyTree, excluded: frozenset[NodeId]) -> PlanSearch:
    """Plan onto every usable slot; at least two ranks."""
    places = [(node.id, node.usable_slots) for node in tree.nodes if node.usable_slots and node.id not in excluded]
    if sum(count for _, count in places) < 2:
        return PlanSearch(plans=(), rejections={"fewer than 2 ranks": 1}, num_candidates=1)
    return PlanSearch(plans=(plan_of(*places),), num_candidates=1)


class SimHouse:
    """One deployment with one run. Drivers are made anew for each worker, as Airflow would."""

    def __init__(
        self,
        *,
        training: SimTraining | None = None,
        workload: WorkloadSpec | None = None,
        tree: TopologyTree | None = None,
        store: ObjectStore | None = None,
        seed: int = 0,
        resharding: bool = True,
        start_delay_s: float = 1.0,
    ) -> None:
        self.training = training or SimTraining(num_steps=40)
        self.clock = VirtualClock()
        self.world = SimWorld(self.clock)
        self.hub = SimChannelHub(self.world)
        self.checkpoints = SimCheckpoints(self.world, resharding=resharding)
        self.engine = SimEngine(
            self.world,
            tree or tree_of(),
            hub=self.hub,
            checkpoints=self.checkpoints,
            start_delay_s=start_delay_s,
            seed=seed,
        )
        self.store = store if store is not None else MemoryStore()
        self.journal = Journal(self.store, RUN)
        self.context = RunContext(
            run_key=RUN,
            generation=0,
            workload=workload or workload_of(),
            run_dir="mem/run",
            checkpoint_root=ROOT,
            command=SIM_TRAIN_COMMAND,
            environment={TRAINING_VARIABLE: codec.to_json(self.training).decode()},
            num_steps=self.training.num_steps,
            poll_interval_s=1.0,
            dag_id="pretrain",
            run_id="manual",
        )
        self.rented: Callable[[], Spend] = Spend
        self.max_live = 0
        self.trained: list[tuple[str, int]] = []

    def driver(self, **changes: object) -> RunDriver:
        """Return the driver of a new worker, with ``changes`` to the context."""
        return RunDriver(
            context=replace(self.context, **changes),  # type: ignore[arg-type]
            journal=self.journal,
            engine=self.engine,
            planner=greedy_planner,
            checkpoints=self.checkpoints,
            open_channel=self.hub.open,
            clock=self.clock,
            rented=self.rented,
        )

    def note_span(self, span: Span) -> None:
        """Record a stretch that a task measured, as ``provider.run_spans`` does."""
        noted = ev.SpanNoted(at_s=self.clock.now_s(), span=span)
        self.journal.append([noted], number=self.journal.num_records() + 1)

    def live(self) -> tuple[GangHandle, ...]:
        """Return the run's live gangs, whatever anyone knows about them."""
        live = self.engine.live(RUN)
        self.max_live = max(self.max_live, len(live))
        return live

    def finish(
        self,
        outcome: Outcome,
        *,
        before_look: Callable[[], None] = lambda: None,
        handoff_s: float = 0.5,
        **changes: object,
    ) -> Succeeded | Failed:
        """Watch and hand over until the run is over, as triggers and workers do in turn."""
        while isinstance(outcome, Watch):
            event = self.watched(outcome, before_look=before_look)
            yielded_at_s = self.clock.now_s()
            self.clock.sleep(handoff_s)
            outcome = self.driver(**changes).handle(event, yielded_at_s=yielded_at_s)
        self.live()
        return outcome

    def watched(self, outcome: Watch, *, before_look: Callable[[], None] = lambda: None) -> HandedEvent:
        """Watch as a trigger would, and return what it hands over."""
        watch = codec.from_json(type(outcome.state), codec.to_json(outcome.state))
        channel = self.hub.open(watch.channel_root) if watch.handle else None
        while True:
            before_look()
            self.live()
            watch, verdict = step(self.engine, channel, watch, self.clock)
            if not isinstance(verdict, KeepWatching):
                return verdict.event
            self.clock.sleep(verdict.after_s)

    def run(self, *, before_look: Callable[[], None] = lambda: None, **changes: object) -> Succeeded | Failed:
        """Start and finish."""
        return self.finish(self.driver(**changes).start(), before_look=before_look, **changes)

    def run_through(
        self,
        *,
        before_look: Callable[[], None],
        handoff_s: float,
        crashes: Collection[int],
        clears: Collection[int],
        max_events: int = 60,
    ) -> None:
        """Run until it is over or ``max_events`` were handed over, each ``handoff_s`` after it was yielded.

        At the events that ``crashes`` and ``clears`` number, whoever was to act died, and the next try finds the
        journal; or the run is cleared: the next generation.
        """
        outcome: Outcome = self.driver().start()
        generation = 0
        for number in range(1, max_events):
            if number in clears or number in crashes:
                generation += number in clears
                outcome = self.driver(generation=generation).start()
            if not isinstance(outcome, Watch):
                return
            event = self.watched(outcome, before_look=before_look)
            self.clock.sleep(handoff_s)
            if number not in crashes:
                outcome = self.driver(generation=generation).handle(event)

    def kinds(self) -> list[str]:
        """Return the kinds of all journalled events."""
        return [event.kind for event in self.journal.read()]

    def saved(self, step_number: int) -> str:
        """Return the path of the checkpoint of a step, the latest attempt's if several saved it."""
        return next(ref.path for ref in self.checkpoints.scan(ROOT) if ref.step == step_number)

    def steps_of(self, attempt_root: str) -> list[int]:
        """Return the steps that one attempt reported, in order."""
        reports, _ = self.hub.open(attempt_root).read(ChannelCursor(positions={}))
        return [each.step for report in reports for each in report.steps]

    def steps(self) -> list[list[int]]:
        """Return the steps that each attempt of the run reported, in order."""
        return [self.steps_of(attempt.channel_root) for attempt in self.driver().attempts()]

    def when_step(self, step_number: int, action: Callable[[], None]) -> Callable[[], None]:
        """Return a ``before_look`` that does ``action`` once, when the newest attempt has reported ``step_number``."""
        done: list[bool] = []

        def look() -> None:
            attempts = self.driver().attempts()
            if not done and attempts and step_number <= max(self.steps_of(attempts[-1].channel_root), default=0):
                done.append(True)
                action()

        return look
