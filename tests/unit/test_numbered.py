from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from pydantic import Field

from airflow_llmsched import numbered
from airflow_llmsched.errors import DataError, StoreError, TransientError
from airflow_llmsched.numbered import Form, Numbered
from airflow_llmsched.ports import ObjectInfo
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.memory_store import MemoryStore


@dataclass(frozen=True)
class Added:
    amount: int
    kind: Literal["added"] = "added"


@dataclass(frozen=True)
class Sum:
    total: int = 0


def add(state: Sum, change: Added) -> Sum:
    if change.amount < 0:
        raise DataError("less than nothing was added")
    return Sum(state.total + change.amount)


FORM: Form[Sum, Added] = Form(
    noun="sum",
    version=1,
    empty=Sum(),
    state_type=Sum,
    change_type=Annotated[Added, Field()],
    apply=add,
    forget=lambda state, _now_s: state,
)


class House:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = VirtualClock()

    def open(self, *, snapshot_every: int = 64) -> Numbered[Sum, Added]:
        return Numbered(self.store, "sums/one", FORM, clock=self.clock, snapshot_every=snapshot_every)


@pytest.fixture
def house() -> House:
    return House()


def test_what_one_process_changes_another_reads(house: House) -> None:
    one, other = house.open(), house.open()
    assert one.change(lambda _state: Added(2)) == Sum(2)
    assert other.change(lambda state: Added(state.total)) == Sum(4)
    assert one.read() == Sum(4)


def test_a_decision_for_nothing_writes_nothing(house: House) -> None:
    assert house.open().change(lambda _state: None) == Sum()
    assert house.store.objects == {}


def test_whoever_comes_second_decides_again(house: House) -> None:
    one = house.open()

    def overtake(_key: str) -> None:
        house.store.before_create = lambda _key: None
        house.open().change(lambda _state: Added(10))

    house.store.before_create = overtake
    asked: list[int] = []

    def decide(state: Sum) -> Added:
        asked.append(state.total)
        return Added(1)

    assert one.change(decide) == Sum(11)
    assert asked == [0, 10]


def test_whoever_is_always_second_gives_up_in_the_end(house: House) -> None:
    def overtake(key: str) -> None:
        house.store.objects[key] = FORM.encode_change(Added(1), number=int(key[-13:-5]))

    house.store.before_create = overtake
    with pytest.raises(TransientError, match="others changed"):
        house.open(snapshot_every=10_000).change(lambda _state: Added(1))


def test_a_change_that_contradicts_the_state_is_never_written(house: House) -> None:
    with pytest.raises(DataError, match="less than nothing"):
        house.open().change(lambda _state: Added(-1))
    assert house.store.objects == {}


def test_old_records_are_replaced_by_one_snapshot(house: House) -> None:
    for _ in range(10):
        house.open(snapshot_every=4).change(lambda _state: Added(1))
    kept = sorted(house.store.objects)
    assert kept == [
        "sums/one/records/00000009.json",
        "sums/one/records/00000010.json",
        "sums/one/snapshots/00000008.json",
    ]
    assert house.open().read() == Sum(10)


def test_a_store_that_refuses_to_write_is_tried_a_few_times(house: House) -> None:
    tried: list[float] = []

    def refuse(_key: str) -> None:
        tried.append(house.clock.now_s())
        raise StoreError("read-only")

    house.store.before_create = refuse
    with pytest.raises(StoreError):
        house.open().change(lambda _state: Added(1))
    assert len(tried) == numbered.NUM_STORE_TRIES
    assert tried[-1] > tried[0]


def test_a_list_that_saw_a_later_record_before_an_earlier_one_is_read_again(house: House) -> None:
    for _ in range(2):
        house.open().change(lambda _state: Added(1))
    whole = house.store.list

    def torn(prefix: str) -> Iterator[ObjectInfo]:
        house.store.list = whole
        return (info for info in whole(prefix) if not info.key.endswith("records/00000001.json"))

    house.store.list = torn
    assert house.open().read() == Sum(2)


def test_a_record_that_is_really_missing_is_loud(house: House) -> None:
    for _ in range(2):
        house.open().change(lambda _state: Added(1))
    del house.store.objects["sums/one/records/00000001.json"]
    with pytest.raises(DataError, match=r"00000001\.json"):
        house.open().read()


def test_a_file_that_is_no_record_is_loud(house: House) -> None:
    house.store.objects["sums/one/records/notes.txt"] = b""
    with pytest.raises(DataError, match=r"notes\.txt is no record of a sum"):
        house.open().read()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "damaged"),
        (b"[]", "damaged"),
        (b'{"v":1,"number":7,"change":{"kind":"lent"}}', "damaged"),
        (b'{"v":2,"number":7,"change":{}}', "format version 2"),
        (b'{"v":1,"number":8,"change":{}}', "number 8"),
    ],
)
def test_a_record_that_is_not_understood_is_loud_and_named(data: bytes, complaint: str) -> None:
    with pytest.raises(DataError, match=f"here .*{complaint}"):
        FORM.decode_change(data, number=7, where="here")
