"""The run driver with everything real but Airflow: processes, channel, checkpoints on disk, journal in a folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_llmsched.checkpoints.dcp import DcpFormat
from airflow_llmsched.control.clock import SystemClock
from airflow_llmsched.control.context import Failed, RunContext, Succeeded, Watch
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.records import read_all
from airflow_llmsched.control.runs import RunDriver, run_blocking
from airflow_llmsched.domain.gang import GangPhase, Launcher
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.sim_house import RUN, greedy_planner, workload_of
from tests.support.waiting import wait_until

TRAINER = Path(__file__).parents[1] / "support" / "plain_trainer.py"
LIMIT_S = 60.0


@dataclass
class House:
    root: Path

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        self.engine = LocalEngine(root=str(self.root / "engine"))
        self.journal = Journal(LocalStore(str(self.root / "state")), RUN)
        workload = workload_of(retries=RetrySpec(max_code_failures=5))
        launcher = replace(workload.launcher, kind=Launcher.PLAIN, grace_s=1.0)
        self.context = RunContext(
            run_key=RUN,
            generation=0,
            workload=replace(workload, launcher=launcher),
            run_dir=str(self.root / "run"),
            checkpoint_root=str(self.root / "checkpoints"),
            command=(),
            num_steps=20,
            poll_interval_s=0.2,
            flush_interval_s=0.1,
            lease_s=30.0,
        )

    def driver(self, *options: str, **changes: object) -> RunDriver:
        changes.setdefault("command", (sys.executable, str(TRAINER), "--steps", "20", *options))
        return RunDriver(
            context=replace(self.context, **changes),  # type: ignore[arg-type]
            journal=self.journal,
            engine=self.engine,
            planner=greedy_planner,
            checkpoints=DcpFormat(),
            open_channel=DirectoryChannel,
            clock=self.clock,
        )

    def finish(self, driver: RunDriver) -> Succeeded | Failed:
        return run_blocking(driver, engine=self.engine, open_channel=DirectoryChannel, clock=self.clock)

    def steps(self, root: str) -> list[int]:
        return [step.step for report in read_all(DirectoryChannel(root)) for step in report.steps]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    for handle in made.engine.find(RUN):
        made.engine.stop(handle, grace_s=0.0)


def test_killed_worker_is_followed_by_one_that_finishes_the_same_gang(house: House) -> None:
    assert isinstance(house.driver("--step-s", "0.1", owner="try-1").start(), Watch)
    outcome = house.finish(house.driver("--step-s", "0.1", owner="try-2"))
    assert isinstance(outcome, Succeeded), outcome
    assert outcome.checkpoint is not None
    assert (outcome.checkpoint.step, outcome.last_step, outcome.num_attempts) == (20, 20, 1)
    assert len(house.engine.find(RUN)) == 1


def test_code_failure_that_repeats_ends_the_run_with_its_last_lines_and_nothing_left(house: House) -> None:
    driver = house.driver("--steps", "100000", "--interval", "100000", "--fail-at", "3", num_steps=100000)
    outcome = house.finish(driver)
    assert isinstance(outcome, Failed)
    assert outcome.reason.count("giving up at step 3") == 1
    first, second = driver.attempts()
    for attempt in (first, second):
        assert attempt.fault is not None
        assert (attempt.fault.kind, attempt.fault.rank, attempt.fault.exit_code) == (FaultKind.RANK_FAILED, 3, 3)
        assert attempt.resumed_from is None
    assert all(house.engine.poll([handle])[handle].phase.ended for handle in house.engine.find(RUN))


def test_preempted_run_goes_on_with_the_ranks_left(house: House) -> None:
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


def test_cancel_leaves_no_rank_behind(house: House) -> None:
    driver = house.driver("--step-s", "5")
    assert isinstance(driver.start(), Watch)
    assert driver.cancel("marked failed")
    (handle,) = house.engine.find(RUN)
    assert house.engine.poll([handle])[handle].phase is GangPhase.STOPPED
    assert driver.release() == ()


def program_with_a_hang_limit(house: House, program: str, *, hang_limit_s: float) -> RunDriver:
    workload = replace(house.context.workload, retries=RetrySpec(max_infrastructure_failures=0))
    workload = replace(workload, launcher=replace(workload.launcher, hang_limit_s=hang_limit_s))
    return house.driver(command=(sys.executable, "-c", program), workload=workload, num_steps=None)


def test_gang_that_never_uses_the_agent_runs_past_the_hang_limit(house: House) -> None:
    driver = program_with_a_hang_limit(house, "import time; time.sleep(3)", hang_limit_s=0.5)
    outcome = house.finish(driver)
    assert isinstance(outcome, Succeeded), outcome
    (only,) = driver.attempts()
    assert only.status is not None
    assert only.status.phase is GangPhase.SUCCEEDED


def test_gang_that_speaks_and_then_hangs_before_its_first_step_is_caught(house: House) -> None:
    program = "import time; from airflow_llmsched import agent; agent.heartbeat(); time.sleep(600)"
    driver = program_with_a_hang_limit(house, program, hang_limit_s=1.0)
    outcome = house.finish(driver)
    assert isinstance(outcome, Failed)
    assert outcome.fault is not None
    assert outcome.fault.kind is FaultKind.HUNG
    assert "before its first step" in outcome.fault.summary
    assert all(house.engine.poll([handle])[handle].phase.ended for handle in house.engine.find(RUN))
