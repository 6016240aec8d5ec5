"""A snapshot may be lost, damaged, foreign or behind the times: the state that comes back is that of the records."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_llmsched.control import snapshots
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.journal_format import encode_record
from airflow_llmsched.control.machine import fold
from airflow_llmsched.control.run_state import RunState
from airflow_llmsched.errors import StoreError
from tests.support.memory_store import MemoryStore
from tests.support.sim_house import RUN, SimHouse

SNAPSHOT = f"runs/{RUN}/snapshot.json"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """The store of a run that was preempted once, with a snapshot every other record."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVERY", 2)
    house = SimHouse()
    preempt = house.when_step(15, lambda: house.engine.preempt("n1", grace_s=5.0, return_after_s=5.0))
    house.run(before_look=preempt)
    assert isinstance(house.store, MemoryStore)
    assert house.journal.num_records() >= 6
    return house.store


def truth(store: MemoryStore) -> RunState:
    return fold(RUN, Journal(store, RUN).read())


def rebuilt(store: MemoryStore) -> snapshots.Rebuilt:
    return snapshots.rebuild(Journal(store, RUN))


def test_run_that_never_was_is_new() -> None:
    found = rebuilt(MemoryStore())
    assert found == snapshots.Rebuilt(state=RunState(run=RUN), number=0, snapshot_number=0)


def test_snapshot_spares_the_records_before_it(store: MemoryStore) -> None:
    found = rebuilt(store)
    assert found.snapshot_number >= 4
    assert found.state == truth(store)
    assert found.number == Journal(store, RUN).num_records()
    expected = found.state
    store.objects[f"runs/{RUN}/journal/00000001.json"] = b"damaged, and never looked at"
    assert rebuilt(store).state == expected


def test_every_snapshot_along_the_way_gives_the_state_of_the_records(store: MemoryStore) -> None:
    records = Journal(store, RUN).records()
    for number in range(1, len(records) + 1):
        state = fold(RUN, [event for record in records[:number] for event in record])
        snapshots.keep(Journal(store, RUN), state, number=number, last=records[number - 1])
        assert rebuilt(store) == snapshots.Rebuilt(state=truth(store), number=len(records), snapshot_number=number)


def _edited(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        envelope = json.loads(data)
        change(envelope)
        return json.dumps(envelope).encode()

    return edit


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: b"",
        lambda data: data[:-20],
        lambda _: b"[]",
        lambda _: b"\xff\xfe",
        lambda _: b"{}",
        _edited(lambda envelope: envelope.update(v=envelope["v"] + 1)),
        _edited(lambda envelope: envelope.update(package="99.0")),
        _edited(lambda envelope: envelope.update(body=envelope["body"].replace("succeeded", "cancelled"))),
        _edited(lambda envelope: envelope.update(body=None)),
    ],
    ids=["empty", "torn", "a list", "no text", "nothing in it", "newer", "another package", "altered", "no body"],
)
def test_damaged_or_foreign_snapshot_is_passed_over(store: MemoryStore, spoil: Callable[[bytes], bytes]) -> None:
    store.objects[SNAPSHOT] = spoil(store.objects[SNAPSHOT])
    assert rebuilt(store) == snapshots.Rebuilt(
        state=truth(store), number=Journal(store, RUN).num_records(), snapshot_number=0
    )


def test_snapshot_ahead_of_the_records_is_passed_over(store: MemoryStore) -> None:
    """Records restored from an older backup: what the snapshot knows beyond them never happened."""
    last = rebuilt(store).snapshot_number
    for number in range(last, Journal(store, RUN).num_records() + 1):
        store.delete(f"runs/{RUN}/journal/{number:08d}.json")
    assert rebuilt(store).snapshot_number == 0
    assert rebuilt(store).state == truth(store)


def test_snapshot_of_another_history_is_passed_over(store: MemoryStore) -> None:
    last = rebuilt(store).snapshot_number
    for number in range(last, Journal(store, RUN).num_records() + 1):
        store.delete(f"runs/{RUN}/journal/{number:08d}.json")
    records = Journal(store, RUN).records()
    other = records[-1][:1]  # the same number, other events
    store.objects[f"runs/{RUN}/journal/{last:08d}.json"] = encode_record(other[:0], number=last)
    assert rebuilt(store).snapshot_number == 0
    assert rebuilt(store).state == truth(store)


def test_snapshot_of_another_run_is_passed_over(store: MemoryStore) -> None:
    state = RunState(run=type(RUN)("ls-bbbbbbbbbbbbbbbbbbbb"))
    snapshots.keep(Journal(store, RUN), state, number=1, last=Journal(store, RUN).records()[0])
    assert rebuilt(store).snapshot_number == 0


def test_store_that_takes_no_snapshot_ends_nothing(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_key: str, _data: bytes) -> None:
        raise StoreError("disk full")

    monkeypatch.setattr(store, "put", refuse)
    snapshots.keep(Journal(store, RUN), truth(store), number=1, last=())
    assert rebuilt(store).state == truth(store)
