"""A worker process frozen (SIGSTOP) just before it starts a gang, thawed when everyone else is done with the run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_llmsched.agent import proc
from airflow_llmsched.control.context import Watch
from airflow_llmsched.control.single import stop_all
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.identity import RunKey
from tests.support.frozen_submitter import OWNER
from tests.support.gangs import processes_by_attempt
from tests.support.local_house import LocalHouse
from tests.support.waiting import wait_until

LIMIT_S = 60.0
POINTS = pytest.mark.parametrize("point", ["submit", "directory"])


@pytest.fixture
def house(tmp_path: Path) -> Iterator[LocalHouse]:
    made = LocalHouse(tmp_path)
    yield made
    for run in (made.run, made.evaluation_run):
        for handle in made.engine.find(run):
            made.engine.stop(handle, grace_s=0.0)


@pytest.fixture
def frozen(house: LocalHouse) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """Start workers, each returned once it stands still."""
    started: list[subprocess.Popen[str]] = []

    def start(purpose: str, point: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.support.frozen_submitter", str(house.root), purpose, point]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        started.append(process)
        wait_until(lambda: getattr(proc.read_stat(process.pid), "state", "") == "T", LIMIT_S)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def thaw(process: subprocess.Popen[str]) -> str:
    """Let a worker go on to its end, and return what came of it."""
    process.send_signal(signal.SIGCONT)
    printed, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    return printed


def assert_nothing_started(house: LocalHouse, run: RunKey, attempt: str) -> None:
    assert attempt not in processes_by_attempt(run)
    (handle,) = [each for each in house.engine.find(run) if each.key.name == attempt]
    status = house.engine.poll([handle])[handle]
    assert (status.phase, status.started_at_s) == (GangPhase.STOPPED, None)


@POINTS
@pytest.mark.parametrize("ending", ["cancel", "release"])
def test_a_gang_is_not_started_after_its_run_was_ended(
    house: LocalHouse, frozen: Callable[[str, str], subprocess.Popen[str]], point: str, ending: str
) -> None:
    worker = frozen("train", point)
    if ending == "cancel":
        assert house.driver(owner=OWNER).cancel("marked failed")
    else:
        house.driver(owner="teardown").release()
    assert "cancelled" in thaw(worker)
    assert_nothing_started(house, house.run, f"{house.run}-g1-a1")
    assert processes_by_attempt(house.run) == {}
    assert house.engine.find_all() == []
    assert house.engine.topology().num_usable_slots == 4


def test_a_gang_is_not_started_beside_that_of_a_newer_generation(
    house: LocalHouse, frozen: Callable[[str, str], subprocess.Popen[str]]
) -> None:
    worker = frozen("train", "submit")
    outcome = house.driver("--step-s", "5", generation=1, owner="try-2").start()
    assert isinstance(outcome, Watch)
    assert "superseded" in thaw(worker)
    assert_nothing_started(house, house.run, f"{house.run}-g1-a1")
    assert [found.handle.key.name for found in house.engine.find_all()] == [f"{house.run}-g2-a1"]


@POINTS
def test_an_evaluation_is_not_started_after_its_run_was_ended(
    house: LocalHouse, frozen: Callable[[str, str], subprocess.Popen[str]], point: str
) -> None:
    worker = frozen("evaluate", point)
    assert stop_all(house.engine, house.evaluation_run, house.intents, grace_s=1.0) == ()
    assert "given up before it was submitted" in thaw(worker)
    assert_nothing_started(house, house.evaluation_run, f"{house.evaluation_run}-g0-a1")
    assert processes_by_attempt(house.evaluation_run) == {}


def test_a_worker_that_nobody_missed_starts_its_gang_when_it_goes_on(
    house: LocalHouse, frozen: Callable[[str, str], subprocess.Popen[str]]
) -> None:
    assert "Watch" in thaw(frozen("evaluate", "submit"))
    wait_until(lambda: list(processes_by_attempt(house.evaluation_run)) == [f"{house.evaluation_run}-g0-a1"], LIMIT_S)
