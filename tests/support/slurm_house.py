"""A run on a real Slurm cluster with everything real but Airflow: job, channel, checkpoints on disk, journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_llmsched.engines.slurm.engine import SlurmEngine
from tests.support.local_house import LocalHouse
from tests.support.slurm_engine import SlurmHarness

_START_LIMIT_S = 90.0


class SlurmHouse(LocalHouse):
    """One deployment with one run, on the cluster's four nodes of 2 slots."""

    engine: SlurmEngine  # type: ignore[assignment]

    def __init__(self, root: Path, harness: SlurmHarness) -> None:
        super().__init__(root)
        self.engine = harness.engine
        launcher = replace(self.context.workload.launcher, start_limit_s=_START_LIMIT_S)
        self.context = replace(self.context, workload=replace(self.context.workload, launcher=launcher))
