"""The journal on a real folder: nothing is overwritten, and nothing unreadable is taken for absent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched import codec
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.journal import (
    BUNDLE_SIZE,
    Journal,
    JournalError,
    JournalRaceError,
    RunSummary,
    list_runs,
    run_keys,
)
from airflow_llmsched.control.journal_format import encode_record
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.errors import StoreError
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.ports import ObjectInfo
from tests.support.crashing import WorkerDied
from tests.support.memory_store import MemoryStore
from tests.support.sim_house import RUN, plan_of

OPENED = ev.Opened(at_s=1.0, generation=1, asked_generation=0, owner="try-1")
STOPPED = ev.OthersStopped(at_s=2.0, stopped=("x-g1-a1",))
PLANNED = ev.PlanChosen(at_s=3.0, plan=plan_of(("n0", 2)))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def record_path(tmp_path: Path, number: int) -> Path:
    return tmp_path / "runs" / RUN / "journal" / f"{number:08d}.json"


def test_events_come_back_in_order_in_another_process(store: LocalStore) -> None:
    journal = Journal(store, RUN)
    journal.append([OPENED, STOPPED], number=1)
    journal.append([PLANNED], number=2)
    assert Journal(store, RUN).read() == (OPENED, STOPPED, PLANNED)
    assert Journal(store, RUN).records() == ((OPENED, STOPPED), (PLANNED,))


def test_reader_sees_what_others_append_after_its_first_look(store: LocalStore) -> None:
    reader = Journal(store, RUN)
    assert reader.read() == ()
    Journal(store, RUN).append([OPENED], number=1)
    assert reader.read() == (OPENED,)


def test_record_says_its_version_number_and_kinds(store: LocalStore, tmp_path: Path) -> None:
    Journal(store, RUN).append([OPENED], number=1)
    record = json.loads(record_path(tmp_path, 1).read_text())
    assert (record["v"], record["number"], record["events"][0]["kind"]) == (1, 1, "opened")


def test_lost_race_is_an_error_and_the_winner_stays(store: LocalStore) -> None:
    Journal(store, RUN).append([OPENED], number=1)
    with pytest.raises(JournalRaceError, match="another worker"):
        Journal(store, RUN).append([STOPPED], number=1)
    assert Journal(store, RUN).read() == (OPENED,)


def test_of_many_appends_at_once_one_wins(store: LocalStore) -> None:
    won: list[int] = []
    barrier = threading.Barrier(8)

    def append(number: int) -> None:
        barrier.wait()
        try:
            Journal(store, RUN).append([ev.Woke(at_s=float(number))], number=1)
        except JournalRaceError:
            return
        won.append(number)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Journal(store, RUN).read() == (ev.Woke(at_s=float(won[0])),)
    assert len(won) == 1


def test_gap_names_the_missing_record(store: LocalStore) -> None:
    journal = Journal(store, RUN)
    for number in (1, 2, 3):
        journal.append([ev.Woke(at_s=float(number))], number=number)
    store.delete(f"runs/{RUN}/journal/00000002.json")
    with pytest.raises(JournalError, match=r"00000002\.json is missing"):
        Journal(store, RUN).read()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b"[]", "format version None"),
        (b'{"v": 2, "number": 1, "events": []}', "format version 2"),
        (b'{"v": 1, "number": 1, "events": [{"kind": "exploded", "at_s": 1}]}', "unknown kind 'exploded'"),
        (b'{"v": 1, "number": 1, "events": [{"at_s": 1}]}', "unknown kind None"),
        (b'{"v": 1, "number": 1, "events": [{"kind": "woke"}]}', "is damaged"),
        (b'{"v": 1, "number": 1}', "is damaged"),
        (b'{"v": 1, "number": 7, "events": []}', "says it is record 7"),
    ],
)
def test_record_that_cannot_be_understood_is_loud(store: LocalStore, data: bytes, words: str) -> None:
    store.create(f"runs/{RUN}/journal/00000001.json", data)
    with pytest.raises(JournalError, match=words):
        Journal(store, RUN).read()


def test_stray_object_in_the_journal_is_loud(store: LocalStore) -> None:
    store.put(f"runs/{RUN}/journal/1.json", b"{}")
    with pytest.raises(JournalError, match="no journal record"):
        Journal(store, RUN).read()


def test_unreadable_store_is_not_an_empty_journal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        Journal(LocalStore(str(tmp_path / "file")), RUN).read()


def test_two_runs_do_not_meet(store: LocalStore) -> None:
    Journal(store, RUN).append([OPENED], number=1)
    assert Journal(store, RunKey("ls-bbbbbbbbbbbbbbbbbbbb")).read() == ()


def summary(**changes: object) -> RunSummary:
    plain = {"run_key": RUN, "phase": "watching", "generation": 1, "attempt": 1, "updated_at_s": 5.0, **changes}
    return codec.from_plain(RunSummary, plain)


def test_summary_is_overwritten_and_listed(store: LocalStore) -> None:
    journal = Journal(store, RUN)
    assert journal.read_summary() is None
    journal.append([OPENED], number=1)
    journal.write_summary(summary())
    journal.write_summary(summary(phase="succeeded", last_step=9))
    found = journal.read_summary()
    assert found is not None
    assert (found.phase, found.last_step) == ("succeeded", 9)
    assert list(list_runs(store)) == [found]


@pytest.mark.parametrize("data", [b"x", b'{"run_key": "ls-a"}', codec.to_json(summary(v=9))])
def test_summary_that_cannot_be_understood_is_loud(store: LocalStore, data: bytes) -> None:
    store.put(f"runs/{RUN}/summary.json", data)
    with pytest.raises(JournalError, match=r"summary\.json"):
        Journal(store, RUN).read_summary()


class Watchful(MemoryStore):
    """Calls ``before`` with each operation and key; it may raise, as a crash there would."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str, str], None] = lambda _operation, _key: None

    def get(self, key: str) -> bytes:
        self.before("get", key)
        return super().get(key)

    def create(self, key: str, data: bytes) -> None:
        self.before("create", key)
        super().create(key, data)

    def delete(self, key: str) -> None:
        self.before("delete", key)
        super().delete(key)


def woke(number: int) -> ev.Woke:
    return ev.Woke(at_s=float(number))


def filled(store: MemoryStore, count: int) -> Journal:
    """A journal whose record n says n, with nothing bundled yet."""
    for number in range(1, count + 1):
        store.objects[f"runs/{RUN}/journal/{number:08d}.json"] = encode_record([woke(number)], number=number)
    return Journal(store, RUN)


def singles(store: MemoryStore) -> list[int]:
    return [int(key[-13:-5]) for key in store.objects if "/journal/" in key]


@pytest.mark.parametrize("count", [1, BUNDLE_SIZE, 2 * BUNDLE_SIZE - 1, 2 * BUNDLE_SIZE, 3 * BUNDLE_SIZE, 1_000])
def test_compacting_bundles_old_records_and_loses_none(count: int) -> None:
    store = MemoryStore()
    filled(store, count).compact()
    assert Journal(store, RUN).read() == tuple(woke(number) for number in range(1, count + 1))
    assert len(singles(store)) == min(count, count % BUNDLE_SIZE + BUNDLE_SIZE)
    assert Journal(store, RUN).num_records() == count
    before = dict(store.objects)
    Journal(store, RUN).compact()
    assert store.objects == before


def test_appending_compacts_by_itself() -> None:
    store = MemoryStore()
    journal = filled(store, 3 * BUNDLE_SIZE - 1)
    journal.append([woke(3 * BUNDLE_SIZE)], number=3 * BUNDLE_SIZE)
    assert singles(store) == list(range(2 * BUNDLE_SIZE + 1, 3 * BUNDLE_SIZE + 1))
    assert len(journal.read()) == 3 * BUNDLE_SIZE


def test_records_after_a_number_leave_the_bundles_alone() -> None:
    store = Watchful()
    filled(store, 600).compact()
    looked: list[str] = []
    store.before = lambda operation, key: looked.append(key) if operation == "get" else None
    assert Journal(store, RUN).records(after=598) == ((woke(599),), (woke(600),))
    assert [key for key in looked if "/bundles/" in key] == []


@pytest.mark.parametrize("stale", [1, 100, BUNDLE_SIZE])
def test_writer_that_slept_through_a_compaction_loses_its_race(stale: int) -> None:
    store = MemoryStore()
    late = Journal(store, RUN)
    filled(store, 600).compact()
    with pytest.raises(JournalRaceError, match="another worker"):
        late.append([OPENED], number=stale)
    assert stale not in singles(store)
    assert Journal(store, RUN).read() == tuple(woke(number) for number in range(1, 601))


def test_record_of_a_stale_writer_that_died_before_taking_it_back_is_not_read() -> None:
    store = MemoryStore()
    filled(store, 600).compact()
    store.objects[f"runs/{RUN}/journal/00000005.json"] = encode_record([OPENED], number=5)
    journal = Journal(store, RUN)
    assert journal.read() == tuple(woke(number) for number in range(1, 601))
    journal.compact()
    assert 5 not in singles(store)


def test_reader_survives_a_compaction_under_its_feet() -> None:
    store = Watchful()
    filled(store, 600)
    compacting: list[bool] = []

    def compact_once(operation: str, key: str) -> None:
        if operation == "get" and key.endswith("/journal/00000100.json") and not compacting:
            compacting.append(True)
            Journal(store, RUN).compact()

    store.before = compact_once
    assert Journal(store, RUN).read() == tuple(woke(number) for number in range(1, 601))
    assert compacting


@pytest.mark.parametrize("fatal", [1, 2, 3, 100, BUNDLE_SIZE + 1, 300, 2 * BUNDLE_SIZE, 2 * BUNDLE_SIZE + 2])
def test_compaction_may_die_anywhere_and_be_done_again(fatal: int) -> None:
    store = Watchful()
    filled(store, 800)
    writes: list[str] = []

    def die(operation: str, key: str) -> None:
        if operation != "get":
            writes.append(key)
            if len(writes) == fatal:
                raise WorkerDied(key)

    store.before = die
    with pytest.raises(WorkerDied):
        Journal(store, RUN).compact()
    store.before = lambda _operation, _key: None
    assert Journal(store, RUN).read() == tuple(woke(number) for number in range(1, 801))
    Journal(store, RUN).append([woke(801)], number=801)
    Journal(store, RUN).compact()
    assert singles(store) == list(range(2 * BUNDLE_SIZE + 1, 802))


def test_two_compactions_at_once_are_one() -> None:
    store = MemoryStore()
    filled(store, 600)
    other = Journal(store, RUN)
    other.read()
    store.before_create = lambda _key: None
    second: list[bool] = []

    def compact_in_between(key: str) -> None:
        if "/bundles/" in key and not second:
            second.append(True)
            other.compact()

    store.before_create = compact_in_between
    Journal(store, RUN).compact()
    assert second
    assert Journal(store, RUN).read() == tuple(woke(number) for number in range(1, 601))


def test_append_succeeds_although_tidying_fails() -> None:
    store = MemoryStore()
    journal = filled(store, 2 * BUNDLE_SIZE - 1)
    store.objects[f"runs/{RUN}/journal/00000007.json"] = b"x"
    journal.append([woke(1)], number=2 * BUNDLE_SIZE)
    assert len(singles(store)) == 2 * BUNDLE_SIZE
    with pytest.raises(JournalError, match=r"00000007\.json is not JSON"):
        Journal(store, RUN).read()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b'{"v": 2}', "format version 2"),
        (b'{"v": 1, "first": 1, "last": 256, "records": []}', "does not hold the records 1 to 256"),
    ],
)
def test_bundle_that_cannot_be_understood_is_loud(data: bytes, words: str) -> None:
    store = MemoryStore()
    filled(store, 600).compact()
    store.objects[f"runs/{RUN}/bundles/00000001-00000256.json"] = data
    with pytest.raises(JournalError, match=words):
        Journal(store, RUN).read()


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("bundles/00000001-00000256.json", "with record 1 is missing"),
        ("bundles/00000257-00000512.json", r"00000257\.json is missing"),
        ("journal/00000700.json", r"00000700\.json is missing"),
        ("journal/00000513.json", r"00000513\.json is missing"),
    ],
)
def test_loss_beside_bundles_is_loud(lost: str, words: str) -> None:
    store = MemoryStore()
    filled(store, 800).compact()
    del store.objects[f"runs/{RUN}/{lost}"]
    with pytest.raises(JournalError, match=words):
        Journal(store, RUN).read()


def test_stray_object_among_the_bundles_is_loud() -> None:
    store = MemoryStore()
    filled(store, 600).compact()
    store.objects[f"runs/{RUN}/bundles/x.json"] = b"{}"
    with pytest.raises(JournalError, match="no bundle of records"):
        Journal(store, RUN).read()


def test_listing_runs_reads_summaries_and_lists_no_object_below_a_run(tmp_path: Path) -> None:
    class Counting(LocalStore):
        listed: list[str] = []  # noqa: RUF012 - one test, one store

        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            self.listed.append(prefix)
            return super().list(prefix)

    store = Counting(str(tmp_path))
    keys = [RunKey(f"ls-{letter * 20}") for letter in "abc"]
    for key in keys:
        Journal(store, key).append([OPENED], number=1)
        Journal(store, key).write_summary(replace(summary(), run_key=key))
        for number in range(50):
            store.put(f"runs/{key}/channel/a/up/{number}", b"")
    store.put("runs/ls-without-a-summary/channel/x", b"")
    store.listed.clear()
    assert [each.run_key for each in list_runs(store)] == keys
    assert store.listed == []
    assert list(run_keys(store)) == [*keys, RunKey("ls-without-a-summary")]
