"""Real gangs that share the nodes of one local engine: an urgent one comes, and one of the others makes room."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_llmsched.checkpoints.dcp import DcpFormat
from airflow_llmsched.control.arbiter_ground import Ground
from airflow_llmsched.control.arbiter_side import SideClaim
from airflow_llmsched.control.arbiter_watch import summons
from airflow_llmsched.control.closing import open_closing_driver
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.intents import evaluation_intents
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.open_arbiter import open_arbiter, open_ground, open_side_arbiter
from airflow_llmsched.control.planning import Planner
from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.control.run_state import RunPhase, RunState
from airflow_llmsched.control.runs import RunDriver, run_blocking
from airflow_llmsched.control.single import SingleRun, SingleSettings
from airflow_llmsched.control.snapshots import rebuild
from airflow_llmsched.control.watching import watch
from airflow_llmsched.domain.fleet import Fleet
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.queue import Limits, TeamQuota
from airflow_llmsched.domain.queue_rules import QueueRules, QueueWish
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import BatchPhase, CapacityWish, TrafficDemand, WorkloadSpec
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.crash_sim_houses import OneRank
from tests.support.local_house import TRAINER, LocalHouse
from tests.support.networked_house import NETWORK, plan_in_earnest
from tests.support.shared_house import planner_of
from tests.support.waiting import wait_until

LIMIT_S = 90.0
RULES = QueueRules(
    quotas=tuple(
        TeamQuota(team=team, nominal=Limits(num_accelerators=most)) for team, most in {"red": 4.0, "blue": 2.0}.items()
    )
)


@dataclass
class Guest:
    """One run, whose task is a thread: it holds at step 6 until ``hold`` appears, and saves every 5 steps."""

    site: Site
    name: str
    team: str
    priority: str

    def __post_init__(self) -> None:
        house = self.site.house
        self.key = RunKey(f"{house.run[:-1]}{self.name}")
        self.hold = house.root / f"hold-{self.name}"
        workload = replace(self.site.workload(), queue=QueueWish(team=self.team, priority=self.priority))
        steps = ("--steps", "20", "--hold-at", "6", "--hold", str(self.hold))
        self.context = replace(
            house.context,
            run_key=self.key,
            workload=workload,
            run_dir=str(house.root / self.name),
            checkpoint_root=str(house.root / self.name / "checkpoints"),
            command=(sys.executable, str(TRAINER), *steps),
            poll_interval_s=0.1,
        )
        self.outcome: Succeeded | Failed | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Guest:
        self._thread.start()
        return self

    def end(self) -> Succeeded | Failed:
        self.hold.touch()
        self._thread.join(LIMIT_S)
        assert self.outcome is not None, self.state()
        return self.outcome

    def state(self) -> RunState:
        return rebuild(Journal(self.site.house.store, self.key)).state

    def kinds(self) -> list[str]:
        return [event.kind for event in Journal(self.site.house.store, self.key).read()]

    def reached(self, step: int) -> bool:
        """Whether the newest gang has reported a step."""
        root = self.state().channel_root
        return bool(root) and max(self.site.house.steps(root), default=0) >= step

    def _run(self) -> None:
        house = self.site.house
        self.outcome = run_blocking(
            self._driver(),
            engine=self.site.engine,
            open_channel=DirectoryChannel,
            clock=house.clock,
            summoned=self._summoned,
        )

    def _driver(self) -> RunDriver:
        house, planner = self.site.house, self.site.planner
        return RunDriver(
            context=self.context,
            journal=Journal(house.store, self.key),
            engine=self.site.engine,
            planner=planner,
            checkpoints=DcpFormat(),
            open_channel=DirectoryChannel,
            clock=house.clock,
            arbiter=open_arbiter(
                self.site.ground(),
                context=self.context,
                planner=planner,
                fleet=Fleet(clusters=(), queue=self.site.rules),
                store=house.store,
                open_channel=DirectoryChannel,
                clock=house.clock,
            ),
        )

    def _summoned(self, watch: WatchState) -> str:
        return summons(self.site.ground().state(), self.key, has_gang=watch.handle is not None, now_s=time.time())


class Site:
    """Two nodes of two slots, and what holds them."""

    rules = RULES
    planner: Planner = staticmethod(planner_of(2))

    def __init__(self, root: Path) -> None:
        self.house = LocalHouse(root)
        self.engine = LocalEngine(root=str(root / "engine"), num_nodes=2, slots_per_node=2)
        self.guests: list[Guest] = []

    def workload(self) -> WorkloadSpec:
        """Return what a guest trains."""
        return self.house.context.workload

    def guest(self, name: str, *, team: str, priority: str = "normal") -> Guest:
        self.guests.append(Guest(self, name, team, priority))
        return self.guests[-1].start()

    def ground(self) -> Ground:
        ground = open_ground(self.engine, "local", None, store=self.house.store, clock=self.house.clock)
        assert ground is not None
        return ground

    def nodes_of(self, guest: Guest) -> set[NodeId]:
        claim = self.ground().state().claims.get(guest.key)
        return set() if claim is None else set(claim.held)

    def release(self, guest: Guest) -> None:
        open_closing_driver(
            self.house.store, guest.key, engine=self.engine, clock=self.house.clock, ground=self.ground()
        ).release()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for guest in site.guests:
        site.release(guest)


@pytest.mark.timeout(240)
def test_one_real_gang_saves_and_yields_one_node_to_an_urgent_one_and_resumes_while_quotas_hold(site: Site) -> None:
    one, two = site.guest("a", team="red"), site.guest("b", team="red")
    wait_until(lambda: one.reached(6) and two.reached(6), LIMIT_S)
    assert len(site.nodes_of(one) | site.nodes_of(two)) == 2
    urgent = site.guest("c", team="blue", priority="urgent")
    wait_until(lambda: urgent.reached(6), LIMIT_S)
    victim, other = (one, two) if "yield_ordered" in one.kinds() else (two, one)
    assert "yield_ordered" not in other.kinds()
    assert other.state().phase is RunPhase.WATCHING
    assert len(site.nodes_of(urgent)) == 1
    assert not site.nodes_of(urgent) & site.nodes_of(other)
    wait_until(lambda: victim.state().phase is RunPhase.WAITING, LIMIT_S)
    assert victim.state().newest is not None
    assert victim.state().newest.step == 6
    assert "needs 2 accelerators" in victim.state().reason

    third = site.guest("d", team="blue")
    wait_until(lambda: third.state().phase is RunPhase.WAITING, LIMIT_S)
    assert "team_quota" in third.state().reason

    victim.hold.touch()
    ended = urgent.end()
    assert isinstance(ended, Succeeded), ended
    for guest in (victim, other, third):
        ended = guest.end()
        assert isinstance(ended, Succeeded), ended
        assert ended.last_step == 20
    attempts = victim.state().attempt
    assert attempts == 2
    assert site.house.steps(victim.state().channel_root)[0] == 7
    assert other.state().attempt == 1
    assert site.ground().state().claims == {}


@pytest.mark.timeout(120)
def test_a_teardown_of_a_real_run_frees_its_nodes_for_whoever_waits(site: Site) -> None:
    one, two = site.guest("a", team="red"), site.guest("b", team="red")
    wait_until(lambda: one.reached(6) and two.reached(6), LIMIT_S)
    waiting = site.guest("c", team="blue")
    wait_until(lambda: waiting.state().phase is RunPhase.WAITING, LIMIT_S)
    site.release(one)
    wait_until(lambda: waiting.reached(6), LIMIT_S)
    ended = one.end()
    assert isinstance(ended, Failed)
    assert ended.cancelled
    assert isinstance(waiting.end(), Succeeded)
    assert isinstance(two.end(), Succeeded)


@pytest.mark.timeout(180)
def test_a_real_evaluation_of_an_urgent_run_has_one_gang_yield_and_that_resumes(site: Site) -> None:
    one, two = site.guest("a", team="red"), site.guest("b", team="red")
    wait_until(lambda: one.reached(6) and two.reached(6), LIMIT_S)
    evaluation = Evaluation(site)
    wait_until(lambda: evaluation.outcome is not None, LIMIT_S)
    assert isinstance(evaluation.outcome, Succeeded)
    assert evaluation.key not in site.ground().state().claims
    victim, other = (one, two) if "yield_ordered" in one.kinds() else (two, one)
    assert "yield_ordered" not in other.kinds()
    assert evaluation.ran_on == evaluation.held
    assert not evaluation.held & site.nodes_of(other)
    for guest in (one, two):
        assert isinstance(guest.end(), Succeeded)
    assert victim.state().attempt == 2
    assert site.house.steps(victim.state().channel_root)[0] == 7


class Evaluation:
    """The evaluation of an urgent run, whose task is a thread: one rank, which looks at where it is and ends."""

    def __init__(self, site: Site) -> None:
        house = site.house
        self.site = site
        self.key = RunKey(f"{house.run[:-1]}e")
        self.outcome: Outcome | None = None
        self.held: set[NodeId] = set()
        self.ran_on: set[NodeId] = set()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        house = self.site.house
        outcome = self._worker().start()
        while isinstance(outcome, Watch):
            event = watch(self.site.engine, self._channel(outcome), outcome.state, house.clock, summoned=self._summoned)
            outcome = self._worker().handle(event)
        self.outcome = outcome

    def _channel(self, outcome: Watch) -> DirectoryChannel | None:
        return DirectoryChannel(outcome.state.channel_root) if outcome.state.handle else None

    def _summoned(self, state: WatchState) -> str:
        assert state.claims_as == self.key
        return summons(self.site.ground().state(), self.key, has_gang=state.handle is not None, now_s=time.time())

    def _worker(self) -> SingleRun:
        site, house = self.site, self.site.house
        settings = SingleSettings(key=self.key, generation=0, run_dir=str(house.root / "e"), poll_interval_s=0.1)
        claims = open_side_arbiter(
            site.ground(),
            claim=SideClaim(key=self.key, run=house.run, queue=QueueWish(team="blue", priority="urgent")),
            engine=site.engine,
            fleet=Fleet(clusters=(), queue=RULES),
            store=house.store,
            open_channel=DirectoryChannel,
            clock=house.clock,
        )

        def make_gang(key: AttemptKey) -> GangSpec:
            placement = claims.hold(OneRank(), key=key)
            self.ran_on, self.held = set(placement.nodes), set(site.ground().state().claims[self.key].held)
            return GangSpec(
                key=key,
                placement=placement,
                layout=ParallelLayout(dp=1),
                command=(sys.executable, "-S", "-c", "import time; time.sleep(1)"),
                channel_root=settings.channel_root_of(key),
                launcher=Launcher.PLAIN,
            )

        return SingleRun(
            settings,
            engine=site.engine,
            clock=house.clock,
            make_gang=make_gang,
            open_channel=DirectoryChannel,
            intents=evaluation_intents(house.store, house.run),
            holding=claims,
        )


class RackedEngine(LocalEngine):
    """A local engine whose nodes, of a shape that the planner knows, hang in pairs below thin links."""

    def topology(self) -> TopologyTree:
        found = super().topology()
        nodes = (
            replace(node, path=(f"b{number // 6}", f"r{number // 2}"))
            for number, node in enumerate(sorted(found.nodes, key=lambda node: int(node.id[1:])))
        )
        return TopologyTree(levels=("block", "rack"), nodes=tuple(nodes), network=NETWORK)


class RackedSite(Site):
    """Two blocks of three racks of two nodes: a gang of three leaves its rack, and talks all the time."""

    rules = QueueRules()
    planner: Planner = staticmethod(plan_in_earnest)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.engine = RackedEngine(root=str(root / "engine"), num_nodes=12, slots_per_node=1, node_shape="p5.48xlarge")

    def workload(self) -> WorkloadSpec:
        traffic = TrafficDemand(group="trainer", group_size=3, collective="all_reduce", bytes_per_step=10**10)
        return replace(
            super().workload(),
            batch=(BatchPhase(from_tokens=0, sequence_length_tokens=128, num_sequences=3),),
            capacity=CapacityWish(min_ranks=3, max_ranks=3),
            communication=(traffic,),
        )


@pytest.mark.timeout(240)
def test_a_real_gang_is_started_off_the_links_that_another_keeps_busy(tmp_path: Path) -> None:
    site = RackedSite(tmp_path)
    try:
        first = site.guest("a", team="default")
        wait_until(lambda: first.reached(6), LIMIT_S)
        assert site.nodes_of(first) == {"n0", "n1", "n2"}
        second = site.guest("b", team="default")
        wait_until(lambda: second.reached(6), LIMIT_S)
        assert site.nodes_of(second) == {"n6", "n7", "n8"}, "n3, n4 and n5 are as near, and fit better"
        for guest in (first, second):
            assert isinstance(guest.end(), Succeeded)
        third = site.guest("c", team="default")
        wait_until(lambda: third.reached(6), LIMIT_S)
        assert site.nodes_of(third) == {"n0", "n1", "n2"}
        assert isinstance(third.end(), Succeeded)
    finally:
        for guest in site.guests:
            site.release(guest)
