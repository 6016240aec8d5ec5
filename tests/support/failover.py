"""A pipeline over real hosts and a real Slurm: hosts are preferred, each cluster saves on a disk of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.records import read_all
from airflow_llmsched.domain.fleet import cluster_of
from airflow_llmsched.provider.engine import open_engine
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.hosts_engine import HostsHarness
from tests.support.pipeline import Pipeline
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_engine import SlurmHarness
from tests.support.ssh_hosts import SshHosts
from tests.support.waiting import wait_until

HOSTS, SLURM = "machines", "batch"
SHAPE = "local-cpu"
LEASE_S = 8.0
_NAMES = ("h1", "h2")
_SILENT_S = 60.0
_FLEET = {"engine": "fleet", "engine_options": {}}
_GANGS = ("run_gang", "evaluate_checkpoint")


class Failover(Pipeline):
    """One DAG run whose every task runs on ``fleet``. ``folder`` must be seen by the machines and by Slurm's nodes."""

    def __init__(
        self, folder: Path, *, machines: SshHosts, slurm: SlurmCluster, spec: dict[str, Any] | None = None
    ) -> None:
        super().__init__(folder, spec=spec)
        self.machines = machines
        self.hosts = HostsHarness(folder / "hosts", machines, num_hosts=len(_NAMES))
        self.slurm = SlurmHarness(slurm, node_shape=SHAPE)
        for name in (HOSTS, SLURM):
            (folder / f"disk-{name}").mkdir()
            (folder / f"seen-by-{name}").symlink_to(folder / f"disk-{name}")
        hosts = {**self.hosts.options, "hosts": [{**each, "shape": SHAPE} for each in self.hosts.options["hosts"]]}
        self.fleet_file = folder / "fleet.yaml"
        self.fleet_file.write_text(
            json.dumps({
                "version": 1,
                "storages": [{"name": name, "mounted_at": str(folder / f"disk-{name}")} for name in (HOSTS, SLURM)],
                "clusters": [
                    self._cluster(HOSTS, "hosts", hosts, preference=1),
                    self._cluster(SLURM, "slurm", {**self.slurm.options, "slurm_conf": str(slurm.conf)}),
                ],
            })
        )  # fmt: skip

    def _cluster(self, name: str, engine: str, options: dict[str, Any], **terms: Any) -> dict[str, Any]:
        seen = str(self.folder / f"seen-by-{name}")
        where = {"shared_storage": name, "checkpoint_root": seen, "silent_after": "5s"}
        return {"name": name, "engine": engine, "options": options, **where, **terms}

    def task(self, name: str, **arguments: Any) -> Any:
        where = {} if name in ("open_run", "stage_dataset", "report") else _FLEET
        patience = {"lease_s": LEASE_S, "poll_interval_s": 1.0} if name in _GANGS else {}
        return super().task(name, **{**where, **patience, **arguments})

    def steps(self, channel_root: str) -> list[int]:
        """Return the steps that one attempt reported."""
        return [step.step for report in read_all(DirectoryChannel(channel_root)) for step in report.steps]

    def channels(self) -> list[str]:
        """Return the channel of each attempt, in order."""
        return [event.channel_root for event in self.journal() if isinstance(event, ev.LaunchIntended)]

    def await_step(self, step: int, *, limit_s: float) -> None:
        """Wait until the first attempt has reported ``step``. Its lease is kept meanwhile, as a trigger would."""

        def has_come_so_far() -> bool:
            (channel_root, *_) = self.channels()
            channel = DirectoryChannel(channel_root)
            channel.renew(until_s=time.time() + LEASE_S)
            heard_s = channel.last_sign_s()
            assert heard_s is None or time.time() - heard_s < _SILENT_S, "the gang ended before it was to be lost"
            return step in self.steps(channel_root)

        wait_until(has_come_so_far, limit_s, poll_s=0.2)

    def places(self) -> list[str]:
        """Return the cluster of each attempt, in order."""
        plans: list[str] = []
        chosen = ""
        for event in self.journal():
            if isinstance(event, ev.PlanChosen):
                chosen = cluster_of(event.plan.placement.nodes[0])
            elif isinstance(event, ev.LaunchIntended):
                plans.append(chosen)
        return plans

    def lose_hosts(self) -> None:
        """Cut the machines' power and cables, all at once."""
        for name in _NAMES:
            self.machines.cut_off(name)
        for name in _NAMES:
            self.machines.power_off(name)

    def restore_hosts(self) -> None:
        """Have the machines as they were; what ran on them does not."""
        for name in _NAMES:
            self.machines.join_again(name)
            if not self.machines.is_on(name):
                self.machines.power_on(name)

    def close(self) -> None:
        """End what the test left running."""
        self.restore_hosts()
        self.hosts.close()
        self.slurm.close()

    def opened(self) -> Any:
        """Return the fleet as a task opens it."""
        return open_engine("fleet", {})
