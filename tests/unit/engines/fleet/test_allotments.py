from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.fleet import ClusterLimits
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.engines.fleet.allotments import FORM, Allotments, Freed, Held, Holdings, apply
from airflow_llmsched.engines.fleet.book import Entry
from airflow_llmsched.errors import CapacityError, LlmschedError
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.at_once import at_once
from tests.support.memory_store import MemoryStore


def entry(run: str, *, cluster: str = "a", num_slots: int = 2) -> Entry:
    key = AttemptKey(run=RunKey(run), generation=1, attempt=1)
    return Entry(key=key, cluster=cluster, at_s=1.0, nodes=(NodeId("n0"),), num_slots=num_slots)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def opened(store: MemoryStore) -> Allotments:
    return Allotments(store, clock=VirtualClock())


def test_part_is_held_until_it_is_freed_and_seen_by_every_process(store: MemoryStore) -> None:
    limits = ClusterLimits(max_slots=3)
    opened(store).hold(entry("x"), limits, live=())
    opened(store).hold(entry("x"), limits, live=())
    assert opened(store).held("a") == (entry("x"),)
    with pytest.raises(CapacityError, match="cluster a has a limit: it would make 4, and max_slots is 3"):
        opened(store).hold(entry("y"), limits, live=())
    opened(store).hold(entry("y", cluster="b"), limits, live=())
    for _ in range(2):
        opened(store).free("a", [entry("x").key])
    opened(store).hold(entry("y"), limits, live=())
    assert opened(store).held("a") == (entry("y"),)


def test_live_gang_that_holds_nothing_counts_and_one_that_does_counts_once(store: MemoryStore) -> None:
    limits = ClusterLimits(max_slots=4)
    opened(store).hold(entry("x"), limits, live=())
    opened(store).hold(entry("y"), limits, live=[entry("x")])
    opened(store).free("a", [entry("y").key])
    with pytest.raises(CapacityError):
        opened(store).hold(entry("y"), limits, live=[entry("x"), entry("z")])


def test_of_many_at_once_as_many_pass_as_fit(store: MemoryStore) -> None:
    limits = ClusterLimits(max_runs=3)

    def claim(number: int) -> bool:
        try:
            opened(store).hold(entry(f"run{number}"), limits, live=())
        except CapacityError:
            return False
        return True

    assert sum(at_once([lambda number=number: claim(number) for number in range(8)])) == 3
    assert len(opened(store).held("a")) == 3


def test_holdings_and_changes_are_read_as_they_were_written() -> None:
    held = apply(Holdings(), Held(entry=entry("x")))
    change = FORM.decode_change(FORM.encode_change(Held(entry=entry("x")), number=1), number=1, where="x")
    assert change == Held(entry=entry("x"))
    assert FORM.decode_state(FORM.encode_state(held, number=1), number=1, where="x") == held
    assert apply(held, Freed(names=(entry("x").key.name, "another"))) == Holdings()
    with pytest.raises(LlmschedError):
        FORM.decode_state(b"{}", number=1, where="x")
    assert replace(held, held={}) == Holdings()
