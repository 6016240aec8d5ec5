from __future__ import annotations

import pytest

from airflow_llmsched.domain.gang import GangPhase, GangStatus
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.engines.fleet.book import MAX_GAP_S, Book, Entry
from airflow_llmsched.errors import StoreError
from tests.support.memory_store import MemoryStore

RUN = RunKey("ls-x")


def entry(attempt: int, cluster: str = "a") -> Entry:
    key = AttemptKey(run=RUN, generation=1, attempt=attempt)
    return Entry(key=key, cluster=cluster, at_s=float(attempt), nodes=(NodeId("n0"),), num_slots=2, channel_root="/c")


def test_an_attempt_is_claimed_once_whoever_asks_again_and_for_what() -> None:
    store = MemoryStore()
    first = entry(1, "a")
    assert Book(store).claim(first) == first
    assert Book(store).claim(entry(1, "b")) == first
    assert Book(store).claim(entry(1, "")) == first
    assert Book(store).find(first.key) == first
    assert Book(store).find(entry(2).key) is None


def test_entries_of_a_run_come_oldest_first_and_tenth_after_second() -> None:
    store = MemoryStore()
    book = Book(store)
    for attempt in (10, 2, 1):
        book.claim(entry(attempt))
        book.note_submitted(entry(attempt).key, f"job-{attempt}")
    other = AttemptKey(run=RunKey("ls-xy"), generation=1, attempt=1)
    book.claim(Entry(key=other, cluster="a", at_s=0.0))
    assert [each.key.attempt for each in Book(store).entries(RUN)] == [1, 2, 10]


def test_an_entry_that_nobody_can_read_is_no_absent_one() -> None:
    store = MemoryStore()
    Book(store).claim(entry(1))
    (name,) = store.objects
    store.objects[name] = b'{"torn'
    with pytest.raises(StoreError, match="which cluster has its gang is unknown"):
        Book(store).find(entry(1).key)


def test_what_a_cluster_calls_a_gang_and_how_it_ended_are_remembered() -> None:
    store = MemoryStore()
    key = entry(1).key
    assert Book(store).native_id(key) is None
    assert Book(store).end(key) is None
    end = GangStatus(phase=GangPhase.SUCCEEDED, observed_at_s=9.0, ended_at_s=8.0)
    Book(store).note_submitted(key, "job-17")
    Book(store).note_end(key, end)
    assert Book(store).native_id(key) == "job-17"
    assert Book(store).end(key) == end


def test_an_end_is_written_once_unless_it_turns_out_to_be_another() -> None:
    store = MemoryStore()
    book, key = Book(store), entry(1).key
    book.note_end(key, GangStatus(phase=GangPhase.LOST, observed_at_s=1.0))
    book.note_end(key, GangStatus(phase=GangPhase.LOST, observed_at_s=2.0))
    found = book.end(key)
    assert found is not None
    assert found.observed_at_s == 1.0
    book.note_end(key, GangStatus(phase=GangPhase.SUCCEEDED, observed_at_s=3.0))
    found = book.end(key)
    assert found is not None
    assert found.phase is GangPhase.SUCCEEDED


def test_a_silence_goes_on_from_process_to_process_until_the_cluster_is_heard() -> None:
    store = MemoryStore()
    assert Book(store).note_silent("a", now_s=100.0) == 100.0
    assert Book(store).note_silent("a", now_s=150.0) == 100.0
    assert Book(store).note_silent("b", now_s=160.0) == 160.0
    Book(store).note_heard("a")
    assert Book(store).note_silent("a", now_s=170.0) == 170.0


def test_failed_looks_far_apart_are_no_one_silence() -> None:
    store = MemoryStore()
    Book(store).note_silent("a", now_s=100.0)
    later_s = 100.0 + MAX_GAP_S + 1.0
    assert Book(store).note_silent("a", now_s=later_s) == later_s


def test_a_clusters_nodes_are_remembered_and_damage_forgets_them() -> None:
    store = MemoryStore()
    tree = TopologyTree(levels=("rack",), nodes=())
    assert Book(store).remembered("a") is None
    Book(store).remember("a", tree)
    assert Book(store).remembered("a") == tree
    store.put("fleet/clusters/a/topology.json", b"{")
    assert Book(store).remembered("a") is None
