"""A run on real hosts with everything real but Airflow: supervisors, channel, checkpoints on a shared disk, journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_llmsched.engines.hosts.engine import HostsEngine
from tests.support.hosts_engine import HostsHarness
from tests.support.local_house import LocalHouse

_START_LIMIT_S = 90.0


class HostsHouse(LocalHouse):
    """One deployment with one run."""

    engine: HostsEngine  # type: ignore[assignment]

    def __init__(self, root: Path, harness: HostsHarness, *, lease_s: float) -> None:
        super().__init__(root)
        self.engine = harness.engine
        launcher = replace(self.context.workload.launcher, start_limit_s=_START_LIMIT_S)
        workload = replace(self.context.workload, launcher=launcher)
        self.context = replace(self.context, workload=workload, lease_s=lease_s)
