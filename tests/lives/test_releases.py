"""Releases: whatever lives is ended, once."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from airflow_llmsched.control.context import Failed, Outcome, RunContext, Watch
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.run_state import RunPhase
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


def test_release_of_a_run_that_never_opened_only_says_that_it_was_there() -> None:
    house = SimHouse()
    for _ in range(2):
        assert house.driver().release() == ()
    assert house.kinds() == ["released"]
    assert house.driver().state().phase is RunPhase.NEW


def late_start(house: SimHouse, context: RunContext) -> Outcome:
    """Let a worker with this context begin now."""
    return house.driver(**{each.name: getattr(context, each.name) for each in fields(context)}).start()


@pytest.mark.parametrize("begun", [False, True])
def test_worker_that_stood_still_before_its_first_record_begins_nothing_after_the_teardown(begun: bool) -> None:
    """Nothing would end its gang but its lease: the teardown has been and gone."""
    house = SimHouse()
    if begun:
        house.driver(owner="try-1").start()
        assert house.driver(owner="try-1").cancel("marked failed")
    house.clock.sleep(60.0)
    late = replace(house.context, owner="try-2", owner_since_s=house.clock.now_s())
    house.clock.sleep(60.0)
    house.driver(owner="teardown").release()
    house.clock.sleep(60.0)
    outcome = late_start(house, late)
    assert isinstance(outcome, Failed)
    assert house.live() == ()
    cleared = replace(late, owner="try-3", owner_since_s=house.clock.now_s(), generation=late.generation + 1)
    assert isinstance(late_start(house, cleared), Watch)


def test_each_teardown_shuts_out_who_set_out_before_it() -> None:
    house = SimHouse()
    house.run()
    house.driver(owner="teardown").release()
    house.clock.sleep(3600.0)
    late = replace(house.context, owner="try-9", owner_since_s=house.clock.now_s(), generation=9)
    house.clock.sleep(60.0)
    house.driver(owner="teardown").release()
    assert isinstance(late_start(house, late), Failed)
    assert house.live() == ()


def test_release_stops_a_gang_that_the_journal_does_not_know() -> None:
    house = SimHouse()
    house.driver().start()
    for key in [key for key in house.store.objects if "/journal/" in key]:
        house.store.delete(key)
    house.journal = Journal(house.store, RUN)
    assert house.driver().release() == (f"{RUN}-g1-a1",)
    assert house.live() == ()
