"""A run with everything real but Airflow: processes, channel, checkpoints on disk, journal in a folder."""

from __future__ import annotations

import base64
import hashlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_llmsched.checkpoints.dcp import DcpFormat
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.context import Failed, RunContext, Succeeded
from airflow_llmsched.control.intents import evaluation_intents
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.records import read_all
from airflow_llmsched.control.runs import RunDriver, run_blocking
from airflow_llmsched.control.single import SingleRun, SingleSettings
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.sim_house import greedy_planner, plan_of, workload_of

TRAINER = Path(__file__).with_name("plain_trainer.py")


@dataclass
class LocalHouse:
    """One deployment with one run below ``root``; drivers are made anew for each worker.

    ``run`` and ``evaluation_run`` follow from ``root``: processes are looked for on the whole machine, where other
    tests have runs of their own at the same time.
    """

    root: Path

    def __post_init__(self) -> None:
        name = base64.b32encode(hashlib.sha256(str(self.root).encode()).digest()).decode().lower()[:19]
        self.run, self.evaluation_run = RunKey(f"ls-{name}t"), RunKey(f"ls-{name}e")
        self.clock = SystemClock()
        self.engine = LocalEngine(root=str(self.root / "engine"))
        self.store = LocalStore(str(self.root / "state"))
        self.journal = Journal(self.store, self.run)
        self.intents = evaluation_intents(self.store, self.run)
        workload = workload_of(retries=RetrySpec(max_code_failures=5))
        launcher = replace(workload.launcher, kind=Launcher.PLAIN, grace_s=1.0)
        self.context = RunContext(
            run_key=self.run,
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
        """Return a new worker's driver, with ``options`` for the trainer and ``changes`` to the context."""
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
        """Drive the run to its end."""
        return run_blocking(driver, engine=self.engine, open_channel=DirectoryChannel, clock=self.clock)

    def steps(self, root: str) -> list[int]:
        """Return the steps that one attempt reported."""
        return [step.step for report in read_all(DirectoryChannel(root)) for step in report.steps]

    def evaluation(self, *, generation: int = 0) -> SingleRun:
        """Return a new worker's driver of an evaluation that never ends."""
        settings = SingleSettings(
            key=self.evaluation_run, generation=generation, grace_s=1.0, run_dir=str(self.root / "run")
        )

        def make_gang(key: AttemptKey) -> GangSpec:
            plan = plan_of(("n0", 1))
            return GangSpec(
                key=key,
                placement=plan.placement,
                layout=plan.layout,
                command=(sys.executable, "-S", "-c", "import time; time.sleep(1e6)"),
                channel_root=settings.channel_root_of(key),
                launcher=Launcher.PLAIN,
                grace_s=1.0,
            )

        return SingleRun(
            settings,
            engine=self.engine,
            clock=self.clock,
            make_gang=make_gang,
            open_channel=DirectoryChannel,
            intents=self.intents,
        )
