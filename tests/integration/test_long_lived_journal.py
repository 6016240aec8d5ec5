"""A run of weeks in virtual time: its journal stays small, and another machine rebuilds the run from it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.control.journal import BUNDLE_SIZE, Journal, list_runs
from airflow_llmsched.control.machine import fold
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.control.snapshots import rebuild
from tests.bench.journal import MAX_OBJECTS, measure
from tests.support.long_run import LongRun, copy_to_folder, driver_elsewhere, live
from tests.support.sim_house import RUN

DAYS = 36.0
FULL_DAYS = 90.0


@pytest.fixture(scope="module")
def long_run() -> LongRun:
    return live(DAYS, seed=1)


def test_objects_and_rebuild_stay_far_below_their_limits(long_run: LongRun, tmp_path: Path) -> None:
    rows = measure(long_run, tmp_path)
    assert [row.name for row in rows if not row.reached] == []
    # Records beyond the newest two bundles' worth are bundled, so the count grows by one per 256: 90 days stay below.
    assert rows[0].value < 2 * BUNDLE_SIZE + FULL_DAYS
    assert rows[0].value < MAX_OBJECTS / 3
    assert long_run.num_preemptions > 5 * long_run.days
    assert long_run.house.journal.num_records() > 2 * BUNDLE_SIZE


def test_nothing_that_was_decided_is_lost(long_run: LongRun, tmp_path: Path) -> None:
    store = copy_to_folder(long_run.store, tmp_path)
    events = Journal(store, RUN).read()
    kinds = [event.kind for event in events]
    assert kinds.count("launched") == kinds.count("gang_ended") == len(driver_elsewhere(long_run, store).attempts())
    assert kinds.count("decided") == kinds.count("launched") - 1
    assert kinds.count("span_noted") == kinds.count("resumed") == long_run.num_restarts


def test_snapshot_and_records_tell_the_same_story(long_run: LongRun, tmp_path: Path) -> None:
    store = copy_to_folder(long_run.store, tmp_path)
    rebuilt = rebuild(Journal(store, RUN))
    assert rebuilt.snapshot_number > 0
    assert rebuilt.state == fold(RUN, Journal(store, RUN).read())
    assert rebuilt.state.phase is RunPhase.SUCCEEDED
    assert [summary.run_key for summary in list_runs(store)] == [RUN]
