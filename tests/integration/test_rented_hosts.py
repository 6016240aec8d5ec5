"""A run that rents machines it has never seen, trains on them over SSH, loses one, and goes on on others."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.rented_engine import RentedEngine
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.provider import rental_policy
from tests.support.pipeline import Deferred, Pipeline, plain_spec
from tests.support.pools import model_of
from tests.support.ssh_hosts import SshHosts
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

LIMIT_S = 240.0
LENT, OWNED = ("h1", "h2"), ("h3", "h4")
BUDGET = {"steps": 20, "deadline": "2h"}


class Fleet:
    """Four machines with sshd: two are lent as spot capacity, two are on demand. What is taken is switched off."""

    def __init__(self, pipeline: Pipeline, machines: SshHosts) -> None:
        self.pipeline = pipeline
        self.machines = machines
        self.file = pipeline.folder / "inventory.yaml"
        self.gate = pipeline.folder / "gate"
        self.down: set[str] = set()
        self.write()
        trusted = pipeline.folder / "known_hosts"
        public = machines.authority.with_suffix(".pub").read_text().split()[:2]
        trusted.write_text(f"@cert-authority * {' '.join(public)}\n")
        self.folder = machines.disk / pipeline.folder.name
        self.options: dict[str, Any] = {
            "hosts": {"slots": {"local-cpu": 1}},
            "user": "root",
            "key": str(machines.key),
            "known_hosts": str(trusted),
            "folder": str(self.folder),
            "python": sys.executable,
        }

    def write(self) -> None:
        def node(name: str) -> dict[str, str]:
            told = {"name": name, "address": self.machines.host(name).address}
            return {**told, "unusable": "taken back", "off": "true"} if name in self.down else told

        pools = [
            {
                "zone": capacity,
                "shape": "local-cpu",
                "capacity": capacity,
                "num_slots": 1,
                "usd_per_hour": usd_per_hour,
                "nodes": [node(name) for name in nodes],
            }
            for nodes, capacity, usd_per_hour in ((LENT, "spot", 0.3), (OWNED, "on_demand", 1.0))
        ]
        written = self.file.with_suffix(".new")
        written.write_text(yaml.safe_dump({"region": "home", "pools": pools}))
        written.replace(self.file)

    def take(self, name: str) -> None:
        self.machines.power_off(name)
        self.down.add(name)
        self.write()

    def begin(self, **changes: Any) -> Deferred:
        return self.pipeline.defer(
            "run_gang",
            engine="hosts",
            engine_options=self.options,
            lease_s=20.0,
            poll_interval_s=0.5,
            review_interval="10min",
            **changes,
            capacity={
                "clouds": {"onprem": {"inventory": str(self.file)}},
                "shapes": {"local-cpu": {"num_nodes": 2, "work": "60s"}},
                "changeover": "1s",
            },
        )

    def nodes(self) -> list[tuple[str, ...]]:
        """Return where each launch of the run went."""
        plans = [event.plan for event in self.pipeline.journal() if isinstance(event, ev.PlanChosen)]
        return [tuple(sorted(plan.placement.nodes)) for plan in plans]

    def num_steps(self) -> int:
        """Return the last step that any agent has reported."""
        lines = [
            json.loads(line)
            for path in self.pipeline.scope.directory.glob("channel/*/up/*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return max((step["step"] for each in lines for step in each.get("steps", ())), default=0)

    def processes(self) -> list[proc.Process]:
        """Return all ranks and supervisors of the run, on all machines."""
        environments = proc.Census().environments(wire.SPOOL)
        return [each for each, told in environments.items() if told[wire.SPOOL].startswith(f"{self.folder}/")]


@pytest.fixture
def fleet(tmp_path: Path, machines: SshHosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(tmp_path / "state"))
    monkeypatch.setenv("AIRFLOW__LLMSCHED__HANDOFF_LIMIT", "300")  # for so long a lost machine may run on
    monkeypatch.setattr(rental_policy, "default_hazards", lambda: model_of(loss_per_hour=0.5, return_per_hour=1e-3))
    monkeypatch.setattr("airflow_llmsched.control.runs.ALARM_PAUSE_S", 0.0)
    gate = tmp_path / "gate"
    command = [*plain_spec()["launcher"]["command"][:2], "--steps=20", "--hold-at=12", f"--hold={gate}"]
    launcher = {"kind": "plain", "command": command, "start_limit": "120s", "grace": "5s"}
    spec = plain_spec(budget=BUDGET, launcher=launcher)
    pipeline = Pipeline(tmp_path, spec=spec)
    made = Fleet(pipeline, machines)
    pipeline.run("open_run", rents_capacity=True)
    pipeline.run("stage_dataset")
    yield made
    proc.end_all(made.processes, grace_s=0.0)
    for name in made.down:
        machines.power_on(name)


def test_a_run_trains_on_rented_machines_over_ssh_loses_one_and_goes_on_on_others(fleet: Fleet) -> None:
    deferred = fleet.begin()
    assert fleet.nodes() == [LENT]
    assert deferred.trigger.settings["engine_options"]["hosts"]["run"] == fleet.pipeline.scope.run_key
    wait_until(lambda: fleet.num_steps() >= 12, LIMIT_S, poll_s=0.2)
    fleet.take("h1")
    while fleet.nodes() == [LENT]:
        payload = deferred.fire()
        deferred.again(deferred.resume, payload)
    fleet.gate.touch()
    assert deferred.finish()["step"] == 20
    assert fleet.nodes() == [LENT, OWNED]
    waits = [event for event in fleet.pipeline.journal() if isinstance(event, ev.FenceAwaited)]
    assert not waits, "whoever rents it out said that it is off"
    resumed = [event.checkpoint for event in fleet.pipeline.journal() if isinstance(event, ev.CheckpointChosen)][-1]
    assert resumed is not None
    assert resumed.step >= 10
    open_zones = {rental.intent.offer.pool.zone for rental in fleet.pipeline.book().open()}
    assert open_zones == {"on_demand"}
    fleet.pipeline.run("release", engine="hosts", engine_options=fleet.options)
    assert not fleet.pipeline.book().open()
    assert not fleet.processes()


def test_a_machine_whose_host_key_nobody_vouches_for_is_not_spoken_to(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key is taken on trust because it was the first: the task says whose it is, and Airflow tries again.

    Only machines that are still coming up are waited for: these have had their time.
    """
    monkeypatch.setattr(RentedEngine, "_joins_until_s", lambda *_: 0.0)
    Path(fleet.options["known_hosts"]).write_text("")
    with pytest.raises(CouldNotLookError, match="host key"):
        fleet.begin(max_look_errors=2)
    assert fleet.nodes() == []
    assert not fleet.processes()
    with contextlib.suppress(CouldNotLookError):  # no machine lets us look: what it costs is ended all the same
        fleet.pipeline.run("release", engine="hosts", engine_options=fleet.options)
    assert not fleet.pipeline.book().open()
