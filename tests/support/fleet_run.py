"""A run on two local engines with everything real but Airflow: each has a storage of its own, or both have one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from airflow_llmsched.checkpoints.dcp import DcpFormat
from airflow_llmsched.control.context import Failed, Succeeded
from airflow_llmsched.control.places import CheckpointPlace
from airflow_llmsched.control.runs import RunDriver, run_blocking
from airflow_llmsched.domain.fleet import cluster_of
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.fleet_engine import FleetHarness
from tests.support.fleet_house import one_cluster_planner
from tests.support.local_house import TRAINER, LocalHouse

LEASE_S = 10.0


class FleetRun(LocalHouse):
    """One run below ``root``. Nodes see a storage by a path of their own, through a link."""

    def __init__(self, root: Path, *, is_shared: bool = False, silent_after_s: float = 3.0) -> None:
        super().__init__(root)
        (root / "fleet").mkdir()
        self.fleet = FleetHarness(root / "fleet", silent_after_s=silent_after_s)
        self.engine = self.fleet.engine  # type: ignore[assignment]  # a fleet stands for the engine
        places = {}
        for name in self.fleet.clusters:
            storage = root / "storages" / ("both" if is_shared else name)
            storage.mkdir(parents=True, exist_ok=True)
            seen = root / f"seen-by-{name}"
            seen.symlink_to(storage)
            places[name] = CheckpointPlace(
                root=f"{storage}/{self.run}",
                node_root=f"{seen}/{self.run}",
                storage=storage.name,
                mount=str(storage),
            )
        self.context = replace(self.context, places=places, lease_s=LEASE_S)

    def driver(self, *options: str, **changes: object) -> RunDriver:
        """Return a new worker's driver, which opens the fleet anew."""
        changes.setdefault("command", (sys.executable, str(TRAINER), "--steps", "20", *options))
        return RunDriver(
            context=replace(self.context, **changes),  # type: ignore[arg-type]
            journal=self.journal,
            engine=self.fleet.opened(self.fleet.gates),
            planner=one_cluster_planner,
            checkpoints=DcpFormat(),
            open_channel=DirectoryChannel,
            clock=self.clock,
        )

    def finish(self, driver: RunDriver) -> Succeeded | Failed:
        """Drive the run to its end."""
        return run_blocking(driver, engine=self.engine, open_channel=DirectoryChannel, clock=self.clock)

    def places(self) -> list[str]:
        """Return the cluster of each attempt, in order."""
        return [cluster_of(each.plan.placement.nodes[0]) for each in self.driver().attempts()]

    def close(self) -> None:
        """End what the test left running."""
        self.fleet.close()
