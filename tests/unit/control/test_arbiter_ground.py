from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.control.arbiter_ground import LEASE_S, MANY_PAST, Decider, Ground
from airflow_llmsched.control.arbiter_state import Claim, Claimed, Led, QueueLease
from airflow_llmsched.control.journal import JournalRaceError
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.domain.queue_rules import QueueRules
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.queue.usage import that_goes_with
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.memory_store import MemoryStore
from tests.support.shared_house import racks, run_of

ONE, TWO = run_of("a"), run_of("b")
TREE = racks(2, 2)


def claim_of(run: RunKey, *, num_slots: int = 4, num_records: int = 1, priority: str = "normal") -> Claim:
    gang = QueuedGang(key=run, team="red", priority_class=priority, layout=ParallelLayout(dp=num_slots))
    return Claim(gang=gang, num_records=num_records, since_s=0.0)


class House:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = VirtualClock()

    def ground(self) -> Ground:
        return Ground(self.store, "hall", clock=self.clock)

    def decider(self) -> Decider:
        return Decider(self.ground(), rules=QueueRules(), clock=self.clock)


@pytest.fixture
def house() -> House:
    return House()


def test_what_is_claimed_any_process_sees_and_twice_the_same_is_written_once(house: House) -> None:
    house.ground().claim(claim_of(ONE))
    house.ground().claim(claim_of(ONE))
    assert house.ground().state().claims == {ONE: claim_of(ONE)}
    assert len(house.store.objects) == 1


def test_whoever_has_read_less_of_the_journal_neither_claims_nor_frees(house: House) -> None:
    house.ground().claim(claim_of(ONE, num_records=5))
    house.ground().free(ONE, num_records=4)
    assert ONE in house.ground().state().claims
    with pytest.raises(JournalRaceError):
        house.ground().claim(claim_of(ONE, num_records=4))
    house.ground().free(ONE, num_records=5)
    house.ground().free(ONE, num_records=5)
    assert house.ground().state().claims == {}
    with pytest.raises(JournalRaceError):
        house.ground().claim(claim_of(ONE, num_records=4))
    house.ground().claim(claim_of(ONE, num_records=5))


def test_a_run_that_never_claimed_is_given_up_for_good_but_not_for_now(house: House) -> None:
    house.ground().free(ONE, num_records=3, for_good=False)
    assert house.store.objects == {}
    house.ground().free(ONE, num_records=3)
    with pytest.raises(JournalRaceError):
        house.ground().claim(claim_of(ONE, num_records=2))


def test_grounds_are_apart_and_their_names_are_no_paths(house: House) -> None:
    house.ground().claim(claim_of(ONE))
    assert Ground(house.store, "cellar", clock=house.clock).state().claims == {}
    for name in ("", "../runs", "a/b"):
        with pytest.raises(SpecError):
            Ground(house.store, name, clock=house.clock)


def test_deciding_takes_the_lease_gives_it_back_and_writes_nothing_where_nobody_waits(house: House) -> None:
    house.decider().decide(TREE)
    assert house.store.objects == {}
    house.ground().claim(claim_of(ONE))
    state = house.decider().decide(TREE)
    assert state.claims[ONE].num_held == 4
    assert state.lease is None
    assert len(house.store.objects) == 3


def of_team(run: RunKey, team: str, *, since_s: float = 0.0) -> Claim:
    claim = claim_of(run)
    return replace(claim, gang=replace(claim.gang, team=team), since_s=since_s)


def test_a_team_that_had_all_while_nobody_waited_goes_behind_one_that_had_nothing(house: House) -> None:
    whole = racks(1, 1, num_slots=4)
    house.clock.sleep(100.0)
    begun_s = house.clock.now_s()
    house.ground().claim(replace(of_team(ONE, "red"), held={whole.nodes[0].id: (0, 1, 2, 3)}, started_s=begun_s))
    house.clock.sleep(86_400.0)
    house.ground().free(ONE, num_records=1)
    first, second = run_of("c"), run_of("d")
    house.ground().claim(of_team(first, "red", since_s=house.clock.now_s()))
    house.ground().claim(of_team(second, "blue", since_s=house.clock.now_s() + 1.0))
    claims = house.decider().decide(whole).claims
    assert (claims[first].num_held, claims[second].num_held) == (0, 4)
    usage = {each.team: each.accelerator_s for each in house.ground().state().usage}
    assert usage["blue"] == 0.0
    assert usage["red"] == pytest.approx(4 * 86_400.0, rel=0.1)


@pytest.mark.parametrize(("shape", "first"), [("dgx-h100", "blue"), ("dgx-a100", "red")])
def test_whose_nodes_have_more_network_has_more_of_the_fleet(house: House, shape: str, first: str) -> None:
    """Both teams hold eight accelerators; red's are on a node of ``shape``, blue's on one with half as fast cards."""
    kinds = (shape, "dgx-a100", "dgx-a100")
    nodes = tuple(replace(node, shape=kind) for node, kind in zip(racks(1, 3, num_slots=8).nodes, kinds, strict=True))

    def claim(name: str, team: str, *, node: int | None, since_s: float) -> Claim:
        part = that_goes_with(node_shape(nodes[2 if node is None else node].shape), 8)
        gang = replace(claim_of(run_of(name), num_slots=8).gang, team=team, host_bytes=part.host_bytes)
        gang = replace(gang, network_bytes_per_s=part.network_bytes_per_s)
        held = {} if node is None else {nodes[node].id: tuple(range(8))}
        return Claim(gang=gang, num_records=1, since_s=since_s, held=held, started_s=house.clock.now_s())

    for each in (claim("a", "red", node=0, since_s=0.0), claim("b", "blue", node=1, since_s=0.0)):
        house.ground().claim(each)
    for number, team in enumerate(("red", "blue")):
        house.ground().claim(claim(f"{number}", team, node=None, since_s=house.clock.now_s() + number))
    claims = house.decider().decide(replace(TREE, nodes=nodes)).claims
    assert [each.gang.team for each in claims.values() if nodes[2].id in each.held] == [first]


def test_a_team_is_not_charged_for_the_time_before_its_run_began(house: House) -> None:
    house.ground().claim(claim_of(ONE))
    house.decider().decide(TREE)
    house.ground().free(ONE, num_records=1)
    house.clock.sleep(86_400.0)
    held = {TREE.nodes[0].id: (0, 1, 2, 3)}
    house.ground().claim(replace(of_team(TWO, "blue"), held=held, started_s=house.clock.now_s()))
    house.clock.sleep(10.0)
    house.ground().claim(of_team(run_of("c"), "green"))
    house.decider().decide(TREE)
    usage = {each.team: each.accelerator_s for each in house.ground().state().usage}
    assert usage["blue"] == pytest.approx(40.0, rel=0.01)


def test_what_ended_runs_have_used_is_counted_in_the_end_though_nobody_ever_waits(house: House) -> None:
    for number in range(MANY_PAST):
        run = run_of(f"x{number}")
        held = {TREE.nodes[0].id: (0, 1)}
        house.clock.sleep(1.0)
        house.ground().claim(replace(of_team(run, "red"), held=held, started_s=house.clock.now_s()))
        house.clock.sleep(1.0)
        house.ground().free(run, num_records=1)
        assert len(house.ground().state().past) == number + 1
    state = house.decider().decide(TREE)
    assert state.past == ()
    assert state.usage[0].accelerator_s == pytest.approx(2.0 * MANY_PAST, rel=0.01)


def test_whoever_holds_the_lease_is_left_alone_until_it_has_run_out(house: House) -> None:
    house.ground().claim(claim_of(ONE))
    lease = QueueLease(holder="other", until_s=house.clock.now_s() + LEASE_S)
    house.ground().change(lambda _state: Led(lease=lease))
    assert house.decider().decide(TREE).lease == lease
    house.clock.sleep(LEASE_S)
    assert house.decider().decide(TREE).claims[ONE].num_held == 4


def test_a_claim_that_comes_while_it_is_decided_is_decided_about_as_well(house: House) -> None:
    house.ground().claim(claim_of(ONE))
    came: list[str] = []

    def come(key: str) -> None:
        if not came and len(house.store.objects) == 2:
            came.append(key)
            house.ground().claim(claim_of(TWO))

    house.store.before_create = come
    state = house.decider().decide(TREE)
    assert came
    assert [state.claims[run].num_held for run in (ONE, TWO)] == [4, 4]


def test_of_two_that_could_leave_the_one_that_saved_last_is_asked(house: House) -> None:
    saved = {ONE: 90.0, TWO: 10.0}
    for run in (ONE, TWO):
        house.ground().claim(claim_of(run))
        house.decider().decide(TREE)
    house.clock.sleep(100.0)
    began_s = house.clock.now_s() - 100.0
    house.ground().claim(claim_of(run_of("c"), priority="urgent"))
    decider = Decider(house.ground(), rules=QueueRules(), clock=house.clock, saved_at=lambda run: began_s + saved[run])
    state = decider.decide(TREE)
    assert {run: claim.yields_to for run, claim in state.claims.items() if claim.yields_to} == {ONE: run_of("c")}


def test_a_run_that_waits_as_room_is_scattered_is_told_who_could_move_at_its_next_checkpoint(house: House) -> None:
    for run, node in ((ONE, "r0n0"), (TWO, "r1n0")):
        small = claim_of(run, num_slots=2)
        house.ground().claim(
            replace(small, held={NodeId(node): (0, 1)}, started_s=house.clock.now_s(), saves_every_s=300.0)
        )
    house.clock.sleep(60.0)
    big = claim_of(run_of("c"))
    house.ground().claim(replace(big, gang=replace(big.gang, required_level="rack"), since_s=house.clock.now_s()))
    wait = house.decider().decide(TREE).claims[run_of("c")].wait
    assert wait is not None
    assert wait.detail.endswith(f"; it could start if {ONE} moved to r1n1 (it saves in about 4 min)"), wait.detail


acts = st.tuples(
    st.sampled_from(["ask", "decide", "free", "stale"]),
    st.sampled_from("abcdef"),
    st.integers(1, 8),
    st.sampled_from(["low", "normal", "urgent"]),
)


class Crowd:
    """Processes that act inside of each other's writes, two deep at most."""

    def __init__(self, meddling: list[object]) -> None:
        self.house = House()
        self._read: dict[str, int] = {}
        self._plan = iter(meddling)
        self._depth = 0
        self.house.store.before_create = self._meddle

    def act(self, what: str, letter: str, num_slots: int, priority: str) -> None:
        run, ground = run_of(letter), self.house.ground()
        match what:
            case "ask":
                self._read[letter] = self._read.get(letter, 0) + 1
                claim = claim_of(run, num_slots=num_slots, num_records=self._read[letter], priority=priority)
                ground.change(lambda state: Claimed(claim=claim) if state.may_claim(claim) else None)
            case "decide":
                self.house.clock.sleep(LEASE_S)
                self.house.decider().decide(TREE)
            case "free":
                ground.free(run, num_records=self._read.get(letter, 0))
            case "stale":
                ground.free(run, num_records=self._read.get(letter, 0) - 1, for_good=False)

    def _meddle(self, _key: str) -> None:
        if self._depth >= 2:
            return
        self._depth += 1
        try:
            chosen = next(self._plan, None)
            if isinstance(chosen, tuple):
                self.act(*chosen)
        finally:
            self._depth -= 1


@settings(max_examples=60, deadline=None)
@given(first=st.lists(acts, min_size=1, max_size=10), meddling=st.lists(st.one_of(st.none(), acts), max_size=30))
def test_however_processes_interleave_no_slot_is_held_twice_and_gangs_get_all_or_nothing(first, meddling) -> None:
    """A slot that is held twice would be loud: the state refuses it."""
    crowd = Crowd(meddling)
    for each in first:
        crowd.act(*each)
    for claim in crowd.house.ground().state().claims.values():
        assert claim.num_held in (0, claim.gang.num_slots)


def test_a_lease_from_a_clock_that_is_far_ahead_is_nobodys(house: House) -> None:
    lease = QueueLease(holder="ahead", until_s=house.clock.now_s() + 3600.0)
    house.ground().claim(claim_of(ONE))
    house.ground().change(lambda _state: Led(lease=lease))
    assert house.decider().decide(TREE).claims[ONE].held


def test_what_runs_have_saved_is_asked_for_no_longer_than_the_lease_lasts(house: House) -> None:
    asked: list[RunKey] = []

    def saved_at(run: RunKey) -> float:
        asked.append(run)
        house.clock.sleep(LEASE_S / 4)
        return 0.0

    for number in range(8):
        run = run_of("cdefghij"[number])
        house.ground().claim(claim_of(run, num_slots=1))
        house.decider().decide(TREE)
    house.ground().claim(claim_of(ONE, num_slots=8, priority="urgent"))
    decider = Decider(house.ground(), rules=QueueRules(), clock=house.clock, saved_at=saved_at)
    state = decider.decide(TREE)
    assert len(asked) == 2
    assert sum(each.yields_to == ONE for each in state.claims.values()) == 8
