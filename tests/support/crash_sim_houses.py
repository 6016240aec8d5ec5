"""The houses of the crash harness on the simulated engine: runs whose processes Airflow moves about."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from airflow_llmsched import codec, effect_points
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.arbiter import Arbitration, RunArbiter
from airflow_llmsched.control.arbiter_ground import Decider, Ground
from airflow_llmsched.control.arbiter_saved import SavedWork
from airflow_llmsched.control.arbiter_side import SideArbiter, SideClaim
from airflow_llmsched.control.arbiter_state import Claim
from airflow_llmsched.control.arbiter_watch import summons
from airflow_llmsched.control.claim_reaping import ClaimReaper
from airflow_llmsched.control.closing import open_closing_driver
from airflow_llmsched.control.context import Outcome, Watch
from airflow_llmsched.control.events import AnyEvent
from airflow_llmsched.control.intents import evaluation_intents
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.poller import KeepWatching, WatchState
from airflow_llmsched.control.reaper import AirflowWord
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.control.single import SingleRun, SingleSettings, give_back, stop_all
from airflow_llmsched.control.watching import step
from airflow_llmsched.domain.gang import GangHandle, GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.domain.queue_rules import QueueRules, QueueWish
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import CapacityError
from airflow_llmsched.sim.scripts import RANKS_VARIABLE, SIM_RANKS_COMMAND, SimRankScript, SimTraining
from tests.support.reaping import ReapedHouse
from tests.support.sim_house import RUN, plan_of, tree_of

NUM_STEPS = 40
WORKER, TRIGGERER = "worker", "triggerer"
LEASE_S, LONG_LEASE_S = 120.0, 36_000.0
LONG_S = 2 * 86_400.0
_LOOK_S = 5.0

URGENT = RunKey("ls-uuuuuuuuuuuuuuuuuuuu")
"""Another run, which is nothing but its claims."""


class StoodStillError(BaseException):
    """This worker or triggerer stood still so long that another took over: Airflow runs no more of it."""


class CrashHouse(ReapedHouse):
    """A house with capacity to spare, so that a second gang would find room, and processes that Airflow moves about."""

    submits_at = "run.submit"
    looks_every_s = float("inf")

    def __init__(self, *, lease_s: float) -> None:
        super().__init__(
            lease_s=lease_s,
            tree=tree_of(num_nodes=6),
            training=SimTraining(num_steps=NUM_STEPS, checkpoint_interval_steps=5),
        )
        self.trouble: Callable[[], None] = lambda: None
        self.deferred: WatchState | None = None
        self.where = WORKER
        self.taken_over = False
        self.planned: Callable[[NodeId], None] = lambda _node: None

    def driver(self, **changes: object) -> RunDriver:
        """Return a new worker's driver. A later try plans for other nodes, where the gang of a thawed one has room."""
        return RunDriver(
            context=replace(self.context, **changes),  # type: ignore[arg-type]
            journal=Journal(self.store, RUN),
            engine=self.engine,
            planner=partial(self._plan, from_behind=changes.get("owner", "try-1") != "try-1"),
            checkpoints=self.checkpoints,
            open_channel=self.hub.open,
            clock=self.clock,
            arbiter=self.arbiter(**changes),
        )

    def arbiter(self, **_changes: object) -> Arbitration | None:
        """Return whoever shares the engine's nodes among runs; None: nobody."""
        return None

    def work(self, **changes: object) -> Outcome:
        """Be a task's try, from start to end: worker and triggerer in turn."""
        return self.go_on(self.begin(**changes), **changes)

    def called(self, _watch: WatchState) -> bool:
        """Whether somebody calls for the run before its time."""
        return False

    def begin(self, **changes: object) -> Outcome:
        """Be a worker that begins a try of the task."""
        return self.driver(**changes).start()

    def take(self, event: AnyEvent, *, yielded_at_s: float, **changes: object) -> Outcome:
        """Be a worker that takes what a triggerer yielded."""
        return self.driver(**changes).handle(event, yielded_at_s=yielded_at_s)  # type: ignore[arg-type]

    def go_on(self, outcome: Outcome, **changes: object) -> Outcome:
        """Watch and act until the run is over."""
        while isinstance(outcome, Watch):
            self._stay()
            self.deferred = codec.from_json(WatchState, codec.to_json(outcome.state))
            event = self.trigger(self.deferred)
            yielded_at_s = self.clock.now_s()
            self.clock.sleep(0.5)
            self.deferred = None
            outcome = self.take(event, yielded_at_s=yielded_at_s, **changes)
        self.live()
        return outcome

    def trigger(self, watch: WatchState) -> AnyEvent:
        """Be a triggerer that watches until there is something to hand over."""
        self.where = TRIGGERER
        channel = self.hub.open(watch.channel_root) if watch.handle else None
        while True:
            self.trouble()
            self.live()
            watch, verdict = step(self.engine, channel, watch, self.clock)
            self._stay()
            if not isinstance(verdict, KeepWatching):
                self.where = WORKER
                return verdict.event
            if self.called(watch):
                self.where = WORKER
                return ev.Woke(at_s=self.clock.now_s())
            self.clock.sleep(min(verdict.after_s, self.looks_every_s))

    def wait(self, duration_s: float) -> None:
        """Let time pass, looking at what lives all the while."""
        for _ in range(int(min(duration_s, 1200.0) / _LOOK_S)):
            self.clock.sleep(_LOOK_S)
            self.live()
        self.clock.sleep(max(0.0, duration_s - 1200.0))
        self.live()

    def num_alive(self) -> int:
        """Return how many ranks of the run exist, whatever anyone knows about them."""
        return sum(self.engine.num_live_ranks(handle) for handle in self.engine.find(RUN))

    def release(self) -> tuple[str, ...]:
        """Be the teardown task."""
        return open_closing_driver(self.store, RUN, engine=self.engine, clock=self.clock).release()

    def _plan(
        self, _workload: WorkloadSpec, tree: TopologyTree, excluded: frozenset[NodeId], *, from_behind: bool
    ) -> PlanSearch:
        free = [node.id for node in tree.nodes if node.usable_slots == node.num_slots and node.id not in excluded]
        free = free[::-1] if from_behind else free
        if len(free) < 2:
            return PlanSearch(plans=(), rejections={"fewer than 2 free nodes": 1}, num_candidates=1)
        planned, self.planned = self.planned, lambda _node: None
        planned(free[0])
        return PlanSearch(plans=(plan_of((free[0], 2), (free[1], 2)),), num_candidates=1)

    def _stay(self) -> None:
        if self.taken_over and threading.current_thread() is not threading.main_thread():
            raise StoodStillError


class EvaluationHouse(CrashHouse):
    """A house whose gang is an evaluation: one rank, no journal, and no recovery but to launch again."""

    submits_at = "single.submit"
    lasts_s: float | None = 20.0

    def begin(self, **changes: object) -> Outcome:
        return self._single(**changes).start()

    def take(self, event: AnyEvent, *, yielded_at_s: float, **changes: object) -> Outcome:
        return self._single(**changes).handle(event)

    def release(self) -> tuple[str, ...]:
        return stop_all(self.engine, RUN, evaluation_intents(self.store, RUN), grace_s=5.0)

    def holding(self) -> SideArbiter | None:
        """Return whoever claims for the evaluation; None: nobody."""
        return None

    def _single(self, *, owner: str, generation: int = 0) -> SingleRun:
        settings = SingleSettings(key=RUN, generation=generation, lease_s=self.context.lease_s, run_dir="mem/run")
        fitting, holding = OneRank(from_behind=owner != "try-1"), self.holding()

        def make_gang(key: AttemptKey) -> GangSpec:
            placement = fitting.place(self.engine.topology()) if holding is None else holding.hold(fitting, key=key)
            script = [SimRankScript(lasts_s=self.lasts_s)]
            return GangSpec(
                key=key,
                placement=placement,
                layout=ParallelLayout(dp=1),
                command=SIM_RANKS_COMMAND,
                channel_root=settings.channel_root_of(key),
                environment={RANKS_VARIABLE: codec.to_json(script, list[SimRankScript]).decode()},
                lease_s=settings.lease_s,
                origin=self.context.origin,
            )

        return SingleRun(
            settings,
            engine=self.engine,
            clock=self.clock,
            make_gang=make_gang,
            open_channel=self.hub.open,
            intents=evaluation_intents(self.store, RUN),
            holding=holding,
        )


@dataclass(frozen=True, kw_only=True)
class OneRank:
    """Where an evaluation fits: on the first node that has a free slot, or on the last."""

    from_behind: bool = False

    def place(self, tree: TopologyTree) -> Placement:
        """Return the place of its rank."""
        free = [(node.id, node.usable_slot_indexes[0]) for node in tree.nodes if node.usable_slots]
        if not free:
            raise CapacityError("nothing is free")
        node, slot = free[-1 if self.from_behind else 0]
        return Placement(slots=(RankSlot(rank=0, node=node, slot=slot, local_rank=0),))

    def asks(self, _tree: TopologyTree) -> QueuedGang:
        """Return one slot of any node."""
        return QueuedGang(key=RUN, team="default", priority_class="normal")


class QueueHouse(CrashHouse):
    """A house whose run shares the engine with an urgent one, which wants all of it for a while.

    The urgent run's worker never dies: it claims when it comes, and gives back ``URGENT_S`` after it was given slots.
    """

    looks_every_s = 2.0
    URGENT_S = 30.0

    def __init__(self, *, lease_s: float) -> None:
        super().__init__(lease_s=lease_s)
        workload = self.context.workload
        self.context = replace(self.context, workload=replace(workload, queue=QueueWish()))
        self._gives_back_at_s: float | None = None
        self._is_tending = False

    def ground(self) -> Ground:
        """Return the claims as a new process reads them."""
        return Ground(self.store, "sim", clock=self.clock)

    def decider(self) -> Decider:
        """Return one of a new process."""
        saved = SavedWork(store=self.store, open_channel=self.hub.open)
        return Decider(self.ground(), rules=QueueRules(), clock=self.clock, saved_at=saved.at_s)

    def arbiter(self, **changes: object) -> Arbitration:
        """Return that of a new worker."""
        return RunArbiter(
            self.ground(),
            self.decider(),
            context=replace(self.context, **changes),  # type: ignore[arg-type]
            planner=partial(self._plan, from_behind=False),
            clock=self.clock,
            rules=QueueRules(),
        )

    def called(self, watch: WatchState) -> bool:
        """Whether the queue calls for the run."""
        return bool(summons(self.ground().state(), RUN, has_gang=watch.handle is not None, now_s=self.clock.now_s()))

    def release(self) -> tuple[str, ...]:
        """Be the teardown task."""
        return open_closing_driver(
            self.store, RUN, engine=self.engine, clock=self.clock, ground=self.ground()
        ).release()

    def urgent_comes(self) -> None:
        """Have the urgent run ask for everything, and be decided about."""
        gang = QueuedGang(key=URGENT, team="default", priority_class="urgent", layout=ParallelLayout(dp=12))
        with _nobody_listening():
            self.ground().claim(Claim(gang=gang, num_records=1, since_s=self.clock.now_s()))
            self.decider().decide(self.engine.topology())

    def live(self) -> tuple[GangHandle, ...]:
        """Look at what lives: it holds what it uses, and the urgent run does not. That one is looked after, too."""
        handles = super().live()
        if not self._is_tending:
            self._is_tending = True
            try:
                with _nobody_listening():
                    self._tend(handles)
            finally:
                self._is_tending = False
        return handles

    def reap_claims(self) -> None:
        """Be the reaper of claims."""
        reaper = ClaimReaper(
            self.ground(),
            store=self.store,
            engine=self.engine,
            ask=lambda _dag_id, _run_id: AirflowWord.UNKNOWN,
            clock=self.clock,
        )
        for found in reaper.look():
            if found.run == RUN:
                reaped = reaper.reap(found)
                # One that stood still while the run was begun again finds the new claim, and leaves it alone.
                anew = self.taken_over and reaped.trouble == "it claims something anew: look again"
                assert reaped.is_gone or anew, reaped.trouble
                assert reaped.is_gone == (RUN not in self.ground().state().claims)

    def check(self) -> None:
        """Assert that a run that is over claims nothing, once the reaper has been there."""
        self.clock.sleep(7200.0)
        self.reap_claims()
        assert RUN not in self.ground().state().claims

    def _tend(self, handles: tuple[GangHandle, ...]) -> None:
        claims = self.ground().state().claims
        urgent = claims.get(URGENT)
        for handle in handles:
            for slot in self.engine.spec(handle).placement.slots:
                assert slot.slot in claims[RUN].held.get(slot.node, ()), f"{slot} is used, and not held"
                assert urgent is None or slot.slot not in urgent.held.get(slot.node, ()), f"{slot} is held twice"
        if urgent is None or urgent.waits:
            return
        if self._gives_back_at_s is None:
            self._gives_back_at_s = self.clock.now_s() + self.URGENT_S
        if self.clock.now_s() >= self._gives_back_at_s:
            self.ground().free(URGENT, num_records=2)


class SideHouse(EvaluationHouse, QueueHouse):
    """A house whose evaluation shares the engine with an urgent run, which wants all of it for a while."""

    def holding(self) -> SideArbiter:
        """Return that of a new worker."""
        return SideArbiter(
            self.ground(),
            self.decider(),
            claim=SideClaim(
                key=RUN, run=RUN, queue=QueueWish(), dag_id="pretrain", run_id="one", runs_for_s=self.lasts_s
            ),
            topology=self.engine.topology,
            clock=self.clock,
            rules=QueueRules(),
        )

    def release(self) -> tuple[str, ...]:
        """Be the teardown task."""
        intents = evaluation_intents(self.store, RUN)
        stopped = stop_all(self.engine, RUN, intents, grace_s=5.0)
        give_back(self.engine, intents, self.holding())
        return stopped


@contextlib.contextmanager
def _nobody_listening() -> Iterator[None]:
    """Have no effect inside of the block be shot: it is another run's."""
    listener = effect_points._listener
    effect_points.listen(None)
    try:
        yield
    finally:
        effect_points.listen(listener)
