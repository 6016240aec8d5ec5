"""The run driver on a real Slurm cluster: whoever dies around the submit leaves one job, which the next adopts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Succeeded, Watch
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.effect_points import Side
from tests.support.crashing import Gun, Shot, WorkerDied, listening
from tests.support.local_house import TRAINER
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_engine import SlurmHarness
from tests.support.slurm_house import SlurmHouse
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def harness(slurm: SlurmCluster) -> Iterator[SlurmHarness]:
    harness = SlurmHarness(slurm)
    yield harness
    harness.close()


@pytest.fixture
def house(harness: SlurmHarness, tmp_path: Path) -> SlurmHouse:
    return SlurmHouse(tmp_path, harness)


def _die() -> None:
    raise WorkerDied


@pytest.mark.parametrize(
    ("point", "side", "is_known"),
    [
        ("slurm.submit.claim", Side.BEFORE, False),
        ("slurm.submit.sbatch", Side.BEFORE, True),
        ("slurm.submit.sbatch", Side.AFTER, True),
    ],
)
def test_worker_that_dies_between_submit_and_journal_leaves_one_job_for_the_next(
    house: SlurmHouse, slurm: SlurmCluster, point: str, side: Side, is_known: bool
) -> None:
    with listening(Gun(Shot(point, side, 1), _die)), pytest.raises(WorkerDied):
        house.driver(owner="try-1").start()
    assert [type(event) for event in _launches(house)] == []
    outcome = house.finish(house.driver(owner="try-2"))
    assert isinstance(outcome, Succeeded), outcome
    assert (outcome.last_step, outcome.num_attempts) == (20, 1)
    assert [type(event) for event in _launches(house)] == [ev.Adopted if is_known else ev.Launched]
    (handle,) = house.engine.find(house.run)
    named = slurm.call("squeue", "--noheader", "--states=all", f"--name={handle.native_id}", "--format=%i").split()
    assert len(named) == 1


def _launches(house: SlurmHouse) -> list[object]:
    return [event for event in house.journal.read() if isinstance(event, (ev.Launched, ev.Adopted))]


def test_run_on_slurm_loses_a_node_and_goes_on_with_the_others(
    house: SlurmHouse, harness: SlurmHarness, slurm: SlurmCluster, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    command = (sys.executable, str(TRAINER), "--steps", "20", "--hold-at", "7", "--hold", str(hold))
    outcome = house.driver(command=command).start()
    assert isinstance(outcome, Watch)
    wait_until(lambda: 7 in house.steps(outcome.state.channel_root), 120)
    (first_handle,) = house.engine.find(house.run)
    slurm.call("scontrol", "update", "nodename=s4", "state=down", "reason=burnt")
    wait_until(lambda: not harness.processes(first_handle), 120)  # it would else go on, and save more
    hold.touch()
    driver = house.driver(command=command)
    try:
        finished = house.finish(driver)
    finally:
        slurm.bring_back("s4")
    assert isinstance(finished, Succeeded), finished
    first, second = driver.attempts()
    assert first.status is not None
    assert first.status.phase is GangPhase.LOST
    assert second.resumed_from is not None
    assert second.resumed_from.step == 5
    assert driver.state().history.num_code_faults == 0
