"""One spec, two kinds of cluster: a run whose machines lose their power goes on as a job of Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.control import events as ev
from tests.support.failover import HOSTS, SLURM, Failover
from tests.support.pipeline import plain_spec
from tests.support.slurm_cluster import SlurmCluster
from tests.support.ssh_hosts import SshHosts

pytestmark = [pytest.mark.server, pytest.mark.timeout(400)]

NUM_STEPS = 24


@pytest.fixture
def pipeline(
    tmp_path: Path, machines: SshHosts, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Failover]:
    monkeypatch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(tmp_path / "state"))
    monkeypatch.setenv("AIRFLOW__LLMSCHED__MIN_DEFERRAL", "0")
    spec = plain_spec(arguments=("--steps", str(NUM_STEPS), "--step-s=0.3"))
    spec["budget"] = {"steps": NUM_STEPS}
    made = Failover(tmp_path, machines=machines, slurm=slurm, spec=spec)
    monkeypatch.setenv("AIRFLOW__LLMSCHED__FLEET_FILE", str(made.fleet_file))
    yield made
    made.close()


def test_run_whose_machines_lose_their_power_goes_on_on_slurm_from_its_last_complete_checkpoint(
    pipeline: Failover,
) -> None:
    assert {node.path[0] for node in pipeline.opened().topology().nodes if node.usable_slots} == {HOSTS, SLURM}
    pipeline.prepare()
    deferred = pipeline.defer("run_gang")
    pipeline.await_step(12, limit_s=120.0)
    pipeline.lose_hosts()
    result = deferred.finish()
    assert result["step"] == NUM_STEPS
    assert pipeline.places() == [HOSTS, SLURM]
    events = pipeline.journal()
    (fence,) = [event for event in events if isinstance(event, ev.FenceAwaited)]
    launches = [event.at_s for event in events if isinstance(event, ev.Launched)]
    assert launches[1] >= fence.until_s
    brought = [event for event in events if isinstance(event, ev.CheckpointChosen)][-1]
    assert brought.checkpoint is not None
    assert f"brought from {HOSTS} to {SLURM}: " in brought.note
    told = max(pipeline.steps(pipeline.channels()[0]))
    # Each fifth step is saved, and of the last ones the machines may have lost their power before they told.
    assert brought.checkpoint.step in (told // 5 * 5, told // 5 * 5 + 5)
    assert pipeline.steps(pipeline.channels()[1])[0] == brought.checkpoint.step + 1
