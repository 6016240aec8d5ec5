"""Evaluations, and checks of nodes, that share one engine with runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from airflow_llmsched import codec
from airflow_llmsched.control.arbiter_ground import Ground
from airflow_llmsched.control.arbiter_side import SideArbiter, SideClaim
from airflow_llmsched.control.arbiter_state import Claim, launch_number
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.events import Woke
from airflow_llmsched.control.intents import LaunchIntents, evaluation_intents
from airflow_llmsched.control.journal import JournalRaceError
from airflow_llmsched.control.poller import KeepWatching
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.control.single import SingleRun, SingleSettings, give_back, stop_all
from airflow_llmsched.control.watching import step
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.queue import Limits, QueuedGang, TeamQuota
from airflow_llmsched.domain.queue_rules import QueueRules, QueueWish
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import CapacityError, RelaxError, TurnError
from airflow_llmsched.sim.scripts import RANKS_VARIABLE, SIM_RANKS_COMMAND, SimRankScript
from tests.support.networked_house import NetworkedHouse
from tests.support.shared_house import GROUND, SharedHouse, run_of

OWNER = run_of("o")
KEY = run_of("e")
N0 = NodeId("r0n0")


@dataclass
class Ranks:
    """Fits wherever so many slots are free."""

    num: int = 1
    not_on: str = ""

    def place(self, tree: TopologyTree) -> Placement:
        free = [(node.id, slot) for node in tree.nodes for slot in node.usable_slot_indexes if node.id != self.not_on]
        if not tree.nodes:
            raise RelaxError("there is no node")
        if len(free) < self.num:
            raise CapacityError(f"{len(free)} of {self.num} slots are free")
        used: dict[NodeId, int] = {}
        ranks = []
        for rank, (node, slot) in enumerate(free[: self.num]):
            ranks.append(RankSlot(rank=rank, node=node, slot=slot, local_rank=used.get(node, 0)))
            used[node] = used.get(node, 0) + 1
        return Placement(slots=tuple(ranks))

    def asks(self, _tree: TopologyTree) -> QueuedGang:
        return QueuedGang(
            key=KEY,
            team="default",
            priority_class="normal",
            layout=ParallelLayout(dp=self.num),
            excluded=frozenset({NodeId(self.not_on)} - {""}),
        )


class Bench:
    """An evaluation in a house of runs: each look is a new worker's."""

    def __init__(self, house: SharedHouse, *, wish: QueueWish | None = None, lasts_s: float | None = 20.0) -> None:
        self.house = house
        self.wish = wish
        self.lasts_s = lasts_s
        self.fitting = Ranks()
        self.outcome: Outcome | None = None

    @property
    def intents(self) -> LaunchIntents:
        return evaluation_intents(self.house.store, OWNER)

    def claims(self) -> SideArbiter:
        claim = SideClaim(key=KEY, run=OWNER, queue=self.wish, runs_for_s=60.0, yield_s=30.0)
        return SideArbiter(
            self.house.ground(),
            self.house.decider(),
            claim=claim,
            topology=self.house.engine.topology,
            clock=self.house.clock,
            rules=self.house.rules,
        )

    def worker(self, *, generation: int = 0) -> SingleRun:
        settings = SingleSettings(key=KEY, generation=generation, grace_s=5.0, run_dir="mem/e", capacity_wait_s=900.0)
        claims = self.claims()

        def make_gang(key: AttemptKey) -> GangSpec:
            script = [SimRankScript(lasts_s=self.lasts_s)] * self.fitting.num
            return GangSpec(
                key=key,
                placement=claims.hold(self.fitting, key=key),
                layout=ParallelLayout(dp=self.fitting.num),
                command=SIM_RANKS_COMMAND,
                channel_root=settings.channel_root_of(key),
                environment={RANKS_VARIABLE: codec.to_json(script, list[SimRankScript]).decode()},
                grace_s=5.0,
            )

        return SingleRun(
            settings,
            engine=self.house.engine,
            clock=self.house.clock,
            make_gang=make_gang,
            open_channel=self.house.hub.open,
            intents=self.intents,
            holding=claims,
        )

    def start(self) -> Bench:
        self.outcome = self.worker().start()
        return self

    def turn(self) -> None:
        """Let a second pass for everybody, and look at what is held and used."""
        self.house.turn()
        for handle in self.house.engine.live(KEY):
            held = self.house.claims().claims[KEY].held
            assert all(slot.slot in held[slot.node] for slot in self.house.engine.spec(handle).placement.slots)
        if not isinstance(self.outcome, Watch):
            return
        watch = self.outcome.state
        channel = self.house.hub.open(watch.channel_root) if watch.handle else None
        watch, verdict = step(self.house.engine, channel, watch, self.house.clock)
        self.outcome = replace(self.outcome, state=watch)
        if not isinstance(verdict, KeepWatching):
            self.outcome = self.worker().handle(verdict.event)
        elif self.house.called(watch.claims_as or KEY, watch):
            self.outcome = self.worker().handle(Woke(at_s=self.house.clock.now_s()))

    def until_over(self, limit_s: int = 900) -> Outcome:
        for _ in range(limit_s):
            if not isinstance(self.outcome, Watch):
                return self.outcome
            self.turn()
        raise AssertionError(self.house.story())

    @property
    def is_live(self) -> bool:
        return bool(self.house.engine.live(KEY))


@pytest.fixture
def house() -> SharedHouse:
    """Two racks of two nodes with two accelerators each."""
    return SharedHouse()


def test_an_evaluation_holds_what_it_runs_on_and_gives_it_back(house: SharedHouse) -> None:
    bench = Bench(house).start()
    claim = house.claims().claims[KEY]
    assert (dict(claim.held), claim.beside) == ({N0: (0,)}, OWNER)
    other = house.start("a", 8, fewest=1)
    assert 0 not in house.claims().claims[other.key].held.get(N0, ())
    assert isinstance(bench.until_over(), Succeeded)
    assert KEY not in house.claims().claims


def test_it_tells_what_nodes_others_hold_beside_it(house: SharedHouse) -> None:
    bench = Bench(house)
    bench.claims().hold(Ranks(), key=AttemptKey(run=KEY, generation=0, attempt=0))
    (mine,) = house.ground().state().claims[KEY].held
    assert bench.claims().others() == {}, "what it holds itself is no other's"
    node = NodeId("r0n1" if mine == N0 else "r0n0")
    gang = QueuedGang(key=OWNER, team="default", priority_class="low")
    house.ground().claim(Claim(gang=gang, num_records=1, since_s=0.0, held={node: (0, 1)}))
    waiting = replace(gang, key=run_of("w"))
    house.ground().claim(Claim(gang=waiting, num_records=1, since_s=0.0))
    assert bench.claims().others() == {OWNER: {node}}


def test_without_a_queue_block_it_takes_what_is_left_over_and_waits_for_capacity_else(house: SharedHouse) -> None:
    house.start("a", 8, num_steps=20)
    bench = Bench(house).start()
    assert isinstance(bench.outcome, Watch)
    assert bench.outcome.state.handle is None
    assert KEY not in house.claims().claims
    assert isinstance(bench.until_over(), Succeeded)


def test_an_urgent_runs_evaluation_has_a_lower_run_make_room_and_that_resumes(house: SharedHouse) -> None:
    low = house.start("a", 8, priority="low", num_steps=200)
    house.until(lambda: house.clock.now_s() > house.state(low).launched_at_s + 20.0)
    bench = Bench(house, wish=QueueWish(priority="urgent")).start()
    assert isinstance(bench.outcome, Watch)
    assert bench.outcome.state.ground == "sim"
    assert bench.outcome.state.claims_as == KEY
    for _ in range(60):
        bench.turn()
        if bench.is_live:
            break
    assert bench.is_live
    assert house.state(low).phase is RunPhase.WAITING
    assert isinstance(bench.until_over(), Succeeded)
    house.until(lambda: isinstance(low.outcome, Succeeded))
    assert house.state(low).attempt == 2


def test_an_evaluation_makes_room_for_an_urgent_run_and_is_not_charged_for_it(house: SharedHouse) -> None:
    bench = Bench(house, wish=QueueWish(priority="low"), lasts_s=40.0)
    bench.fitting = Ranks(num=8)
    bench.start()
    for _ in range(5):
        bench.turn()
    for number, letter in enumerate("bcd"):
        urgent = house.start(letter, 8, priority="urgent", num_steps=20)
        while not isinstance(urgent.outcome, Succeeded):
            bench.turn()
        assert house.claims().claims[KEY].num_yields == number + 1
        for _ in range(10):
            bench.turn()
        assert bench.is_live
    outcome = bench.until_over()
    assert isinstance(outcome, Succeeded)
    assert outcome.num_attempts == 4
    assert house.claims().claims == {}


def test_a_fault_after_making_room_is_tried_as_often_as_without(house: SharedHouse) -> None:
    bench = Bench(house, wish=QueueWish(priority="low"))
    bench.fitting = Ranks(num=8)
    bench.start()
    urgent = house.start("b", 8, priority="urgent", num_steps=20)
    while not isinstance(urgent.outcome, Succeeded):
        bench.turn()
    for _ in range(5):
        bench.turn()
    house.engine.lose_node(N0, return_after_s=5.0)
    for _ in range(30):
        bench.turn()
    assert isinstance(bench.until_over(), Succeeded)


def test_checks_wait_in_line_when_told_to_though_their_run_names_no_queue(house: SharedHouse) -> None:
    bench = Bench(house, lasts_s=60.0)
    bench.fitting = Ranks(num=8)
    bench.start()
    urgent = house.start("b", 8, priority="urgent", num_steps=20)
    while not isinstance(urgent.outcome, Succeeded):
        bench.turn()
    assert isinstance(bench.until_over(), Succeeded)


def test_it_gives_up_once_it_has_waited_for_as_long_as_its_run_would(house: SharedHouse) -> None:
    house.start("a", 8, num_steps=2000, priority="high")
    bench = Bench(house, wish=QueueWish(max_wait_s=100.0)).start()
    outcome = bench.until_over()
    assert isinstance(outcome, Failed)
    assert "waits in the queue (capacity): needs 1 accelerator" in outcome.reason
    assert "waited 1" in outcome.reason
    assert KEY not in house.claims().claims


def test_quotas_count_evaluations_and_an_unknown_team_fails_at_once() -> None:
    quota = TeamQuota(team="red", nominal=Limits(num_accelerators=2.0))
    house = SharedHouse(rules=QueueRules(quotas=(quota,)))
    house.start("a", 2, team="red", num_steps=20)
    bench = Bench(house, wish=QueueWish(team="red")).start()
    assert "team_quota" in house.claims().claims[KEY].wait.reason
    assert isinstance(bench.until_over(), Succeeded)
    failed = Bench(house, wish=QueueWish(team="blue")).worker(generation=1).start()
    assert isinstance(failed, Failed)
    assert "there is no team 'blue'" in failed.reason


def test_who_is_late_neither_claims_nor_gives_back(house: SharedHouse) -> None:
    bench = Bench(house)
    first, later = AttemptKey(run=KEY, generation=0, attempt=1), AttemptKey(run=KEY, generation=1, attempt=1)
    bench.claims().hold(Ranks(), key=later)
    with pytest.raises(JournalRaceError):
        bench.claims().hold(Ranks(), key=first)
    bench.claims().give_back(first)
    assert KEY in house.claims().claims
    bench.claims().give_back(later)
    assert KEY not in house.claims().claims
    with pytest.raises(JournalRaceError):
        bench.claims().hold(Ranks(), key=later)
    bench.claims().hold(Ranks(), key=AttemptKey(run=KEY, generation=1, attempt=2))


def test_nothing_is_given_back_under_a_live_gang_nor_by_an_older_generation(house: SharedHouse) -> None:
    bench = Bench(house, lasts_s=None).start()
    give_back(house.engine, bench.intents, bench.claims())
    assert KEY in house.claims().claims
    stop_all(house.engine, KEY, bench.intents, grace_s=1.0)
    newer = bench.worker(generation=1).start()
    assert isinstance(newer, Watch)
    give_back(house.engine, bench.intents, bench.claims(), through_generation=0)
    assert house.claims().claims[KEY].num_records == launch_number(AttemptKey(run=KEY, generation=1, attempt=1))
    stop_all(house.engine, KEY, bench.intents, grace_s=1.0)
    give_back(house.engine, bench.intents, bench.claims())
    assert KEY not in house.claims().claims


def test_what_is_held_and_cannot_be_used_any_more_is_left_for_another_place(house: SharedHouse) -> None:
    bench = Bench(house)
    key = AttemptKey(run=KEY, generation=0, attempt=1)
    bench.claims().hold(Ranks(), key=key)
    assert bench.claims().hold(Ranks(not_on=N0), key=key).nodes != (N0,)
    assert N0 not in house.claims().claims[KEY].held


def test_on_nodes_of_its_own_it_waits_for_nobody(house: SharedHouse) -> None:
    house.start("a", 4)
    tree = house.engine.topology()
    own = replace(tree, nodes=tuple(node for node in tree.nodes if node.id == "r1n1"))
    bench = Bench(house, wish=QueueWish(priority="low"))
    placement = bench.claims().hold(Ranks(), key=AttemptKey(run=KEY, generation=0, attempt=1), own=own)
    assert placement.nodes == ("r1n1",)
    assert house.claims().claims[KEY].held == {"r1n1": (0,)}


def test_what_can_never_be_placed_is_said_so(house: SharedHouse) -> None:
    bench = Bench(house, wish=QueueWish())
    bench.fitting = Ranks(num=9)
    with pytest.raises(TurnError, match="never_fits"):
        bench.claims().hold(bench.fitting, key=AttemptKey(run=KEY, generation=0, attempt=1))


@pytest.mark.parametrize("wish", [QueueWish(), None])
def test_it_is_placed_on_nothing_that_its_claims_do_not_share_out(house: SharedHouse, wish: QueueWish | None) -> None:
    ground = Ground(house.store, GROUND, clock=house.clock, lacks=frozenset({N0}))
    house.ground = lambda: ground  # type: ignore[method-assign]
    Bench(house, wish=wish).start()
    assert dict(house.claims().claims[KEY].held) == {"r0n1": (0,)}


def test_it_is_told_how_busy_runs_keep_the_links_above_its_nodes() -> None:
    house = NetworkedHouse()
    house.start("a", 48)
    seen: list[TopologyTree] = []

    class Looking(Ranks):
        def place(self, tree: TopologyTree) -> Placement:
            seen.append(tree)
            return super().place(tree)

    Bench(house).claims().hold(Looking(), key=AttemptKey(run=KEY, generation=1, attempt=1))
    assert {node.id for node in seen[-1].nodes if node.busy_ratios} == {"n0004", "n0005", "n0006", "n0007"}
