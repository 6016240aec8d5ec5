"""Releases: whatever lives is ended, once."""

from __future__ import annotations

from airflow_llmsched.control.journal import Journal
from tests.support.memory_store import MemoryStore
from tests.support.sim_house import RUN, SimHouse


def test_release_ends_whatever_lives_and_the_second_time_does_nothing() -> None:
    """Field case A14."""
    house = SimHouse()
    house.driver().start()
    house.clock.sleep(10.0)
    assert house.driver(owner="teardown").release() == (f"{RUN}-g1-a1",)
    assert house.live() == ()
    before = house.kinds()
    assert before[-1] == "released"
    assert house.driver(owner="teardown").release() == ()
    assert house.kinds() == before


def test_two_releases_at_once_record_one_release() -> None:
    """Field case A14."""
    store = MemoryStore()
    house = SimHouse(store=store)
    house.run()
    raced: list[str] = []

    def other_first(key: str) -> None:
        if not raced:
            raced.append(key)
            house.driver().release()

    store.before_create = other_first
    house.driver().release()
    assert raced
    assert house.kinds().count("released") == 1


def test_release_of_a_run_that_never_opened_does_nothing() -> None:
    house = SimHouse()
    assert house.driver().release() == ()
    assert house.journal.read() == ()


def test_release_stops_a_gang_that_the_journal_does_not_know() -> None:
    house = SimHouse()
    house.driver().start()
    for key in [key for key in house.store.objects if "/journal/" in key]:
        house.store.delete(key)
    house.journal = Journal(house.store, RUN)
    assert house.driver().release() == (f"{RUN}-g1-a1",)
    assert house.live() == ()
