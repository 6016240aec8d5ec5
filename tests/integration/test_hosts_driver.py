"""The run driver on real hosts: one that is cut off or rebooted mid-run, and the run goes on from its checkpoint."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Succeeded, Watch
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.domain.gang import GangPhase
from tests.support.hosts_engine import HostsHarness
from tests.support.hosts_house import HostsHouse
from tests.support.local_house import TRAINER
from tests.support.ssh_hosts import SshHosts
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]

LEASE_S = 40.0
LIMIT_S = 180.0


@pytest.fixture
def harness(tmp_path: Path, machines: SshHosts) -> Iterator[HostsHarness]:
    harness = HostsHarness(tmp_path / "engine", machines, num_hosts=3, slots=1, silence_limit_s=2.0)
    yield harness
    machines.join_again("h2")
    harness.close()


def wait_for_another(house: HostsHouse) -> None:
    """Wait for the next attempt: the first one's rank 0 would otherwise go on to the last step, and save that."""
    wait_until(lambda: sum(isinstance(event, ev.Launched) for event in house.journal.read()) > 1, LIMIT_S)


@contextmanager
def held(house: HostsHouse, tmp_path: Path) -> Iterator[tuple[RunDriver, list[Succeeded | Failed]]]:
    """A run under watch that saved step 5 and stands still after step 7; after the block it goes on to its end."""
    hold = tmp_path / "hold"
    command = (sys.executable, str(TRAINER), "--steps", "20", "--hold-at", "7", "--hold", str(hold))
    driver = house.driver(command=command)
    outcome = driver.start()
    assert isinstance(outcome, Watch)
    ends: list[Succeeded | Failed] = []
    watcher = threading.Thread(target=lambda: ends.append(house.finish(house.driver(command=command))))
    watcher.start()
    try:
        wait_until(lambda: 7 in house.steps(outcome.state.channel_root), LIMIT_S)
        yield driver, ends
    finally:
        hold.touch()
        watcher.join()


def test_host_that_is_cut_off_is_left_behind_and_nothing_of_the_run_is_left_on_it(
    harness: HostsHarness, machines: SshHosts, tmp_path: Path
) -> None:
    house = HostsHouse(tmp_path, harness, lease_s=LEASE_S)
    with held(house, tmp_path) as (driver, ends):
        (first,) = harness.engine.find(house.run)
        assert harness.processes(first, "h2")
        machines.cut_off("h2")
        wait_for_another(house)
    (finished,) = ends
    assert isinstance(finished, Succeeded), finished
    assert finished.last_step == 20
    attempts = driver.attempts()
    assert [attempt.key.attempt for attempt in attempts] == [1, 2]
    assert attempts[0].status is not None
    assert attempts[0].status.unconfirmed_nodes == ("h2",)
    assert attempts[1].resumed_from is not None
    assert attempts[1].resumed_from.step == 5
    assert "h2" not in {str(node.node) for node in attempts[1].status.nodes}  # type: ignore[union-attr]
    assert harness.processes(first) == [], "its lease is over, and nobody could reach it"


def test_host_that_is_rebooted_costs_the_steps_after_the_last_checkpoint_and_no_waiting(
    harness: HostsHarness, machines: SshHosts, tmp_path: Path
) -> None:
    house = HostsHouse(tmp_path, harness, lease_s=600.0)  # a fence would be noticed
    with held(house, tmp_path) as (driver, ends):
        machines.reboot("h3")
        wait_for_another(house)
    (finished,) = ends
    assert isinstance(finished, Succeeded), finished
    first, second = driver.attempts()
    assert first.status is not None
    assert first.status.phase is GangPhase.LOST
    assert first.status.unconfirmed_nodes == ()
    assert second.resumed_from is not None
    assert second.resumed_from.step == 5


def test_host_that_is_cut_off_and_turned_off_by_the_fence_is_not_waited_for(machines: SshHosts, tmp_path: Path) -> None:
    options = {"num_hosts": 3, "slots": 1, "silence_limit_s": 2.0, "fence": machines.fence}
    harness = HostsHarness(tmp_path / "engine", machines, **options)
    house = HostsHouse(tmp_path, harness, lease_s=600.0)  # a lease that is waited for would be noticed
    try:
        with held(house, tmp_path) as (driver, ends):
            (first,) = harness.engine.find(house.run)
            machines.cut_off("h2")
            wait_for_another(house)
            assert harness.processes(first) == [], "its host is off"
        (finished,) = ends
        assert isinstance(finished, Succeeded), finished
        assert finished.last_step == 20
        assert [attempt.key.attempt for attempt in driver.attempts()] == [1, 2]
        assert not any(isinstance(event, ev.FenceAwaited) for event in house.journal.read())
    finally:
        machines.power_off("h2")
        machines.join_again("h2")
        machines.power_on("h2")
        harness.close()
