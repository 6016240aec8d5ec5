"""The run driver with everything real but Airflow: processes, channel, checkpoints on disk, journal in a folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched import effect_points
from airflow_llmsched.control.context import Failed, Succeeded, Watch
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.workload import RetrySpec
from tests.support.local_house import LocalHouse
from tests.support.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0


@pytest.fixture
def house(tmp_path: Path) -> Iterator[LocalHouse]:
    made = LocalHouse(tmp_path)
    yield made
    for handle in made.engine.find(made.run):
        made.engine.stop(handle, grace_s=0.0)


def test_killed_worker_is_followed_by_one_that_finishes_the_same_gang(house: LocalHouse) -> None:
    assert isinstance(house.driver("--step-s", "0.1", owner="try-1").start(), Watch)
    outcome = house.finish(house.driver("--step-s", "0.1", owner="try-2"))
    assert isinstance(outcome, Succeeded), outcome
    assert outcome.checkpoint is not None
    assert (outcome.checkpoint.step, outcome.last_step, outcome.num_attempts) == (20, 20, 1)
    assert len(house.engine.find(house.run)) == 1


def test_code_failure_that_repeats_ends_the_run_with_its_last_lines_and_nothing_left(house: LocalHouse) -> None:
    driver = house.driver("--steps", "100000", "--interval", "100000", "--fail-at", "3", num_steps=100000)
    outcome = house.finish(driver)
    assert isinstance(outcome, Failed)
    assert outcome.reason.count("giving up at step 3") == 1
    first, second = driver.attempts()
    for attempt in (first, second):
        assert attempt.fault is not None
        assert (attempt.fault.kind, attempt.fault.rank, attempt.fault.exit_code) == (FaultKind.RANK_FAILED, 3, 3)
        assert attempt.resumed_from is None
    assert all(house.engine.poll([handle])[handle].phase.ended for handle in house.engine.find(house.run))


def test_preempted_run_goes_on_with_the_ranks_left(house: LocalHouse) -> None:
    driver = house.driver("--step-s", "0.3")
    outcome = driver.start()
    assert isinstance(outcome, Watch)
    wait_until(lambda: 6 in house.steps(outcome.state.channel_root), LIMIT_S)
    house.engine.preempt("n1", grace_s=0.5)
    finished = house.finish(house.driver("--step-s", "0.05"))
    assert isinstance(finished, Succeeded), finished
    first, second = driver.attempts()
    assert first.status is not None
    assert first.status.phase is GangPhase.PREEMPTED
    assert (first.plan.layout.world_size, second.plan.layout.world_size) == (4, 2)
    assert second.resumed_from is not None
    assert house.steps(second.channel_root)[0] == second.resumed_from.step + 1
    assert driver.state().history.num_code_faults == 0
    assert finished.last_step == 20


def test_cancel_leaves_no_rank_behind(house: LocalHouse) -> None:
    driver = house.driver("--step-s", "5")
    assert isinstance(driver.start(), Watch)
    assert driver.cancel("marked failed")
    (handle,) = house.engine.find(house.run)
    assert house.engine.poll([handle])[handle].phase is GangPhase.STOPPED
    assert driver.release() == ()


def program_with_a_hang_limit(house: LocalHouse, program: str, *, hang_limit_s: float) -> RunDriver:
    workload = replace(house.context.workload, retries=RetrySpec(max_infrastructure_failures=0))
    workload = replace(workload, launcher=replace(workload.launcher, hang_limit_s=hang_limit_s))
    return house.driver(command=(sys.executable, "-c", program), workload=workload, num_steps=None)


def test_gang_that_never_uses_the_agent_runs_past_the_hang_limit(house: LocalHouse) -> None:
    driver = program_with_a_hang_limit(house, "import time; time.sleep(3)", hang_limit_s=0.5)
    outcome = house.finish(driver)
    assert isinstance(outcome, Succeeded), outcome
    (only,) = driver.attempts()
    assert only.status is not None
    assert only.status.phase is GangPhase.SUCCEEDED


def test_gang_that_speaks_and_then_hangs_before_its_first_step_is_caught(house: LocalHouse) -> None:
    program = "import time; from airflow_llmsched import agent; agent.heartbeat(); time.sleep(600)"
    driver = program_with_a_hang_limit(house, program, hang_limit_s=1.0)
    outcome = house.finish(driver)
    assert isinstance(outcome, Failed)
    assert outcome.fault is not None
    assert outcome.fault.kind is FaultKind.HUNG
    assert "before its first step" in outcome.fault.summary
    assert all(house.engine.poll([handle])[handle].phase.ended for handle in house.engine.find(house.run))


RELEASES = """
import sys, time
from pathlib import Path
from tests.support.local_house import LocalHouse
house = LocalHouse(Path(sys.argv[1]))
Path(sys.argv[2]).touch()
while not Path(sys.argv[3]).exists():
    time.sleep(0.001)
print(*house.driver(owner="teardown").release())
"""


def test_two_releases_at_the_same_time_are_one_release(house: LocalHouse) -> None:
    """Field case A14: one try is cleaned up twice, and twice at once."""
    assert isinstance(house.driver("--step-s", "5").start(), Watch)
    go, ready = house.root / "go", [house.root / f"ready-{index}" for index in range(2)]
    command = [sys.executable, "-c", RELEASES, str(house.root)]
    cleaners = [
        subprocess.Popen([*command, str(each), str(go)], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
        for each in ready
    ]
    wait_until(lambda: all(each.exists() for each in ready), LIMIT_S)
    go.touch()
    said = [cleaner.communicate(timeout=LIMIT_S)[0] for cleaner in cleaners]
    assert [cleaner.returncode for cleaner in cleaners] == [0, 0]
    assert f"{house.run}-g1-a1" in "".join(said)
    assert house.driver(owner="teardown").release() == ()
    kinds = [event.kind for event in house.journal.read()]
    assert [kinds.count(kind) for kind in ("cancel_requested", "run_cancelled", "released")] == [1, 1, 1]
    assert house.engine.find_all() == []


class Shot(BaseException):
    """SIGKILL, as seen from inside."""


@pytest.mark.parametrize(
    "point", ["run.prepare_channel", "local.submit.gang_dir", "local.submit.supervisor", "local.submit.go"]
)
def test_what_a_shot_worker_left_half_made_is_in_nobodys_way(house: LocalHouse, point: str) -> None:
    """Field case A24: channel, attempt or supervisors of that name are there already when the next try makes them."""

    def shoot(name: str, side: effect_points.Side) -> None:
        if name == point and side is effect_points.Side.AFTER:
            raise Shot(name)

    effect_points.listen(shoot)
    try:
        with pytest.raises(Shot):
            house.driver(owner="try-1").start()
    finally:
        effect_points.listen(None)
    outcome = house.finish(house.driver(owner="try-2"))
    assert isinstance(outcome, Succeeded), outcome
    assert outcome.num_attempts == 1
    assert [handle.key.name for handle in house.engine.find(house.run)] == [f"{house.run}-g1-a1"]
