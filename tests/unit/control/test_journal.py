"""The journal on a real folder: nothing is overwritten, and nothing unreadable is taken for absent."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from airflow_llmsched import codec
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.journal import Journal, JournalError, JournalRaceError, RunSummary, list_runs
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.errors import StoreError
from airflow_llmsched.objects.local import LocalStore
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
