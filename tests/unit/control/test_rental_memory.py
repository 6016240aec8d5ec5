from __future__ import annotations

import pytest

from airflow_llmsched.control.rental_memory import MAX_SIGHTINGS, MemoryFile, RentalMemory, Sighting
from tests.support.memory_store import MemoryStore
from tests.support.sim_house import RUN


def seen(at_s: float) -> Sighting:
    return Sighting(at_s=at_s, up={"a": True, "b": False}, in_stock=True)


def test_what_was_written_is_read_by_whoever_comes_next() -> None:
    store = MemoryStore()
    MemoryFile(store, RUN).write(RentalMemory(deadline_s=9.0).seen(seen(1.0)).seen(seen(2.0)))
    memory = MemoryFile(store, RUN).read()
    assert [each.at_s for each in memory.sightings] == [1.0, 2.0]
    assert (memory.sightings[0].up, memory.deadline_s) == ({"a": True, "b": False}, 9.0)


def test_a_memory_does_not_grow_for_ever_and_forgets_the_oldest() -> None:
    memory = RentalMemory()
    for number in range(MAX_SIGHTINGS + 3):
        memory = memory.seen(seen(float(number)))
    assert len(memory.sightings) == MAX_SIGHTINGS
    assert memory.sightings[0].at_s == 3.0


def test_prices_that_were_seen_are_told_by_pool_in_their_order() -> None:
    memory = RentalMemory()
    for at_s, prices in ((1.0, {"a": 2.0, "b": 5.0}), (2.0, {}), (3.0, {"a": 4.0})):
        memory = memory.seen(Sighting(at_s=at_s, up={}, in_stock=True, usd_per_hour=prices))
    store = MemoryStore()
    MemoryFile(store, RUN).write(memory)
    assert MemoryFile(store, RUN).read().prices == {"a": [(1.0, 2.0), (3.0, 4.0)], "b": [(1.0, 5.0)]}


def test_a_memory_from_before_prices_were_remembered_is_still_one() -> None:
    store = MemoryStore()
    old = b'{"sightings": [{"at_s": 1.0, "up": {"a": true}, "in_stock": true}], "deadline_s": null, "v": 1}'
    store.put(f"runs/{RUN}/rental-memory.json", old)
    memory = MemoryFile(store, RUN).read()
    assert (len(memory.sightings), memory.prices) == (1, {})


@pytest.mark.parametrize("data", [b"{", b"null", b'{"v": 99}'])
def test_a_memory_that_cannot_be_understood_is_none(data: bytes) -> None:
    store = MemoryStore()
    store.put(f"runs/{RUN}/rental-memory.json", data)
    assert MemoryFile(store, RUN).read() == RentalMemory()
    assert MemoryFile(MemoryStore(), RUN).read() == RentalMemory()


def test_what_did_not_answer_tells_nothing_of_its_pools() -> None:
    sighting = Sighting(at_s=1.0, up={"aws/w/w-a/p5/spot/2": True}, in_stock=True, unseen=("gcp", "aws/w", "azure/e-1"))
    assert [
        sighting.tells_of(name)
        for name in ("aws/w/w-a/p5/spot/2", "aws/w/w-b/p5/spot/2", "aws/e/e-a/p5/spot/2", "gcp/c/c-a/a3/spot/2")
    ] == [True, False, True, False]
    assert [sighting.tells_of(f"azure/e/e-{zone}/nd/spot/2") for zone in (1, 2)] == [False, True]
