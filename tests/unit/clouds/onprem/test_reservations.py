from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.clouds.onprem import reservations
from airflow_llmsched.clouds.onprem.fleet import Reservation
from airflow_llmsched.clouds.onprem.reservations import Reservations
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunKey
from airflow_llmsched.effect_points import Side
from airflow_llmsched.errors import (
    AbandonedError,
    CapacityError,
    InternalError,
    LeaseGoneError,
    LlmschedError,
    SpecError,
    StoreError,
)
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.ports import ObjectInfo
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.crashing import CrashPoints, WorkerDied, listening
from tests.support.fleet_worker import POOL, choose
from tests.support.memory_store import MemoryStore
from tests.support.source import ROOT

NODES = [NodeId(f"n{number}") for number in range(4)]


def key(rental: int) -> LeaseKey:
    return LeaseKey(run=RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), generation=1, rental=rental)


class House:
    def __init__(self, store: MemoryStore | None = None, *, snapshot_every: int = 64) -> None:
        self.store = store or MemoryStore()
        self.clock = VirtualClock()
        self.snapshot_every = snapshot_every

    def open(self) -> Reservations:
        return Reservations(self.store, fleet="hall", clock=self.clock, snapshot_every=self.snapshot_every)

    def reserve(self, rental: int, num_nodes: int = 1, *, by: Reservations | None = None) -> Reservation:
        return (by or self.open()).reserve(
            key(rental).name, lambda fleet: choose(fleet, key=key(rental), nodes=NODES, num_nodes=num_nodes)
        )


@pytest.fixture
def house() -> House:
    return House()


def test_nodes_are_reserved_extended_and_freed_as_any_process_sees(house: House) -> None:
    held = house.reserve(1, 3)
    assert house.open().fleet().reserved == {held.name: held}
    assert house.open().extend(held.name, until_s=5e9).until_s == 5e9
    assert house.open().fleet().taken == set(held.nodes)
    house.open().free(held.name)
    assert house.open().fleet().taken == frozenset()


def test_a_name_reserves_once_however_often_it_is_asked(house: House) -> None:
    first = house.reserve(1, 2)
    num_objects = len(house.store.objects)
    assert house.reserve(1, 3) == first
    assert len(house.store.objects) == num_objects


def test_two_names_share_no_node_and_a_full_fleet_refuses(house: House) -> None:
    one, two = house.reserve(1, 2), house.reserve(2, 2)
    assert not set(one.nodes) & set(two.nodes)
    with pytest.raises(CapacityError):
        house.reserve(3)


def test_a_name_that_was_freed_is_used_up_also_before_it_was_used(house: House) -> None:
    house.reserve(1)
    for rental in (1, 2):
        house.open().free(key(rental).name)
        with pytest.raises(AbandonedError, match="released"):
            house.reserve(rental)
    assert house.open().fleet().reserved == {}


def test_an_expiry_that_has_passed_frees_nothing(house: House) -> None:
    house.reserve(1, 4)
    house.clock.sleep(4e9)
    assert len(house.open().fleet().taken) == 4


def test_what_would_have_expired_is_not_reserved(house: House) -> None:
    house.clock.sleep(4e9)
    with pytest.raises(AbandonedError, match="before it began"):
        house.reserve(1)
    assert house.store.objects == {}


def test_an_extension_of_nothing_fails_and_a_shorter_one_writes_nothing(house: House) -> None:
    with pytest.raises(LeaseGoneError):
        house.open().extend(key(1).name, until_s=5e9)
    held = house.reserve(1)
    num_objects = len(house.store.objects)
    assert house.open().extend(held.name, until_s=1.0) == held
    house.open().free(held.name)
    house.open().free(held.name)
    assert len(house.store.objects) == num_objects + 1


def test_a_reservation_under_another_name_than_asked_for_is_a_bug(house: House) -> None:
    with pytest.raises(InternalError):
        house.open().reserve("other", lambda fleet: choose(fleet, key=key(1), nodes=NODES, num_nodes=1))


def test_old_records_are_replaced_by_one_snapshot() -> None:
    house = House(snapshot_every=4)
    for rental in range(1, 30):
        house.reserve(rental)
        house.open().free(key(rental).name)
    house.reserve(30, 2)
    kept = sorted(each.removeprefix("fleets/hall/") for each in house.store.objects)
    assert kept == [
        "records/00000057.json",
        "records/00000058.json",
        "records/00000059.json",
        "snapshots/00000056.json",
    ]
    assert set(house.open().fleet().reserved) == {key(30).name}
    with pytest.raises(AbandonedError):
        house.reserve(1)


def test_names_are_forgotten_a_week_after_they_were_freed_but_not_before_they_expire() -> None:
    house = House(snapshot_every=2)
    house.reserve(1)
    house.open().free(key(1).name)  # its reservation would have lasted for decades
    house.open().free(key(2).name)
    house.clock.sleep(reservations.REMEMBER_S + 1.0)
    house.reserve(3)
    house.reserve(4)
    assert set(house.open().fleet().used_up) == {key(1).name}


def test_a_writer_that_stood_still_while_its_number_was_tidied_away_reserves_anew(house: House) -> None:
    house.snapshot_every = 4
    slow = house.open()
    others: list[NodeId] = []

    def stand_still(_key: str) -> None:
        house.store.before_create = lambda _key: None
        for rental in range(10, 16):  # meanwhile the fleet goes on, is written down, and tidied
            others.extend(house.reserve(rental).nodes)
            if rental < 14:
                house.open().free(key(rental).name)

    house.store.before_create = stand_still
    held = house.reserve(1, by=slow)
    fleet = house.open().fleet()
    assert fleet.reserved[held.name] == held
    assert len(fleet.taken) == 3
    assert "fleets/hall/records/00000001.json" not in house.store.objects


def test_a_record_that_was_written_though_the_answer_was_lost_is_not_written_twice(house: House) -> None:
    def lose(_key: str) -> None:
        house.store.after_create = lambda _key: None
        raise StoreError("lost")

    house.store.after_create = lose
    held = house.reserve(1, 2)
    assert (house.open().fleet().reserved, len(house.store.objects)) == ({held.name: held}, 1)


def test_fleets_are_apart_and_their_names_are_no_paths(house: House) -> None:
    house.reserve(1, 4)
    other = Reservations(house.store, fleet="cellar", clock=house.clock)
    assert other.fleet().reserved == {}
    for name in ("", "../runs", "a/b"):
        with pytest.raises(SpecError):
            Reservations(house.store, fleet=name, clock=house.clock)


class Meddled(MemoryStore):
    """Lets another process act before or after any call, as hypothesis says; and may lose what a call came to."""

    def __init__(self) -> None:
        super().__init__()
        self.meddle: Callable[[], bool] = lambda: False

    def get(self, key: str) -> bytes:
        self.meddle()
        return super().get(key)

    def create(self, key: str, data: bytes) -> None:
        if self.meddle():
            raise StoreError("unheard")
        super().create(key, data)
        if self.meddle():
            raise StoreError("unanswered")

    def delete(self, key: str) -> None:
        self.meddle()
        super().delete(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.meddle()
        yield from list(super().list(prefix))


acts = st.tuples(st.sampled_from(["reserve", "extend", "free", "compact"]), st.integers(1, 6), st.integers(1, 3))


class Crowd:
    """Processes that act inside of each other's calls, three deep at most, and what they were told."""

    def __init__(self, meddling: list[object]) -> None:
        self.store = Meddled()
        self.house = House(self.store, snapshot_every=3)
        self.told: dict[str, Reservation] = {}
        self.freed: set[str] = set()
        self._plan = iter(meddling)
        self._depth = 0
        self.store.meddle = self._meddle

    def act(self, what: str, rental: int, num_nodes: int) -> None:
        name = key(rental).name
        with suppress(LlmschedError):
            match what:
                case "reserve":
                    was_freed = name in self.freed
                    held = self.house.reserve(rental, num_nodes)
                    assert self.told.setdefault(name, held).nodes == held.nodes
                    assert not was_freed or name in self.told
                case "extend":
                    self.house.open().extend(name, until_s=4e9 + num_nodes)
                case "free":
                    self.freed.add(name)
                    self.house.open().free(name)
                case "compact":
                    self.house.open().compact()

    def _meddle(self) -> bool:
        if self._depth >= 3:
            return False
        self._depth += 1
        try:
            chosen = next(self._plan, None)
            if isinstance(chosen, tuple):
                self.act(*chosen)
            return chosen == "lose"
        finally:
            self._depth -= 1


@settings(max_examples=300, deadline=None)
@given(
    first=st.lists(acts, min_size=1, max_size=8),
    meddling=st.lists(st.one_of(st.none(), st.just("lose"), acts), max_size=60),
)
def test_however_processes_interleave_no_node_is_reserved_twice_and_nothing_told_is_lost(first, meddling) -> None:
    crowd = Crowd(meddling)
    for each in first:
        crowd.act(*each)
    crowd.store.meddle = lambda: False
    fleet = crowd.house.open().fleet()  # a node that is reserved twice would be loud
    for name, held in crowd.told.items():
        assert name in crowd.freed or fleet.reserved[name].nodes == held.nodes
    crowd.house.open().compact()
    assert crowd.house.open().fleet().reserved == fleet.reserved


def test_whatever_effect_a_process_dies_at_the_next_one_goes_on() -> None:
    """Records, snapshots, what they replace, and a record that is taken back: all of them are passed."""
    passed: set[str] = set()
    for fatal in itertools.count(1):
        house, points = House(snapshot_every=3), CrashPoints(fatal)
        with listening(points), suppress(WorkerDied):
            _live(house)
        house.store.before_create = lambda _key: None
        passed |= set(points.passed)
        fleet = house.open().fleet()
        for rental in range(1, 9):
            held = [] if key(rental).name in fleet.used_up else [*house.reserve(rental).nodes]
            assert set(held) <= set(NODES)
            house.open().free(key(rental).name)
        house.open().compact()
        assert house.open().fleet().reserved == {}
        if len(points.passed) < fatal:
            break
    names = ("append", "snapshot", "tidy", "take_back")
    assert passed == {f"{side} numbered.{name}" for side in Side for name in names}


def _live(house: House) -> None:
    """One process stands still at its first record while another lives a whole life."""
    slow = house.open()

    def stand_still(_key: str) -> None:
        house.store.before_create = lambda _key: None
        for rental in range(2, 6):
            house.open().extend(house.reserve(rental).name, until_s=5e9)
            house.open().free(key(rental).name)

    house.store.before_create = stand_still
    house.reserve(1, by=slow)
    house.open().free(key(1).name)


@pytest.mark.timeout(240)
def test_processes_that_share_a_folder_never_share_a_node(tmp_path: Path) -> None:
    """Each asserts it of itself, a hundred times, with the fleet written down every fourth record."""
    argv = [sys.executable, "-m", "tests.support.fleet_worker", str(tmp_path)]
    workers = [
        subprocess.Popen([*argv, letter, "40"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for letter in ("a", "b", "c")
    ]
    told = [worker.communicate(timeout=200) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0], told
    assert Reservations(LocalStore(str(tmp_path)), fleet="hall", clock=VirtualClock()).fleet().reserved == {}
    assert POOL.shape == "dgx"
