"""A pipeline whose only difference is its engine's name, from the spec to the report, over two clusters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.domain.fleet import cluster_of
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.pipeline import NUM_STEPS, Pipeline, plain_spec
from tests.support.waiting import wait_until

FLEET = {"engine": "fleet", "engine_options": {}}


class FleetPipeline(Pipeline):
    """Every task runs on ``fleet``: cluster ``a`` is preferred, ``b`` has a storage of its own."""

    def task(self, name: str, **arguments: Any) -> Any:
        where = {} if name in ("open_run", "stage_dataset", "report") else FLEET
        return super().task(name, **{**where, **arguments})

    def cluster(self, name: str) -> LocalEngine:
        """Return a cluster's own engine."""
        return LocalEngine(root=str(self.state_root / "engines" / name), num_nodes=1)

    def close(self) -> None:
        for name in ("a", "b"):
            engine = self.cluster(name)
            for key in (self.scope.run_key, self.scope.evaluation_key):
                for handle in engine.find(key):
                    engine.stop(handle, grace_s=0.0)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetPipeline]:
    monkeypatch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(tmp_path / "state"))
    monkeypatch.setenv("AIRFLOW__LLMSCHED__MIN_DEFERRAL", "0")
    monkeypatch.setenv("AIRFLOW__LLMSCHED__FLEET_FILE", str(tmp_path / "fleet.yaml"))
    for name in ("a", "b"):
        (tmp_path / f"disk-{name}").mkdir()
    (tmp_path / "fleet.yaml").write_text(
        "version: 1\n"
        "storages:\n"
        f"  - {{name: disk-a, mounted_at: {tmp_path}/disk-a}}\n"
        f"  - {{name: disk-b, mounted_at: {tmp_path}/disk-b}}\n"
        "clusters:\n"
        "  - {name: a, engine: local, options: {num_nodes: 1}, preference: 1, shared_storage: disk-a}\n"
        "  - {name: b, engine: local, options: {num_nodes: 1}, shared_storage: disk-b}\n"
    )
    made = FleetPipeline(tmp_path, spec=plain_spec(arguments=("--step-s=0.5",)))
    yield made
    made.close()


def test_unchanged_spec_trains_on_the_preferred_cluster_goes_on_on_the_other_and_is_evaluated_there(
    pipeline: FleetPipeline,
) -> None:
    pipeline.prepare()
    deferred = pipeline.defer("run_gang")
    root = next(event.channel_root for event in pipeline.journal() if isinstance(event, ev.LaunchIntended))
    wait_until(lambda: DirectoryChannel(root).last_sign_s() is not None, 60.0)
    taking = threading.Thread(
        target=pipeline.cluster("a").preempt, args=("n0",), kwargs={"grace_s": 0.2, "return_after_s": 600.0}
    )
    taking.start()
    result = deferred.finish()
    taking.join()
    assert result["step"] == NUM_STEPS
    assert Path(result["checkpoint"]).is_relative_to(pipeline.folder / "disk-b")
    plans = [event.plan for event in pipeline.journal() if isinstance(event, ev.PlanChosen)]
    assert [cluster_of(plan.placement.nodes[0]) for plan in plans] == ["a", "b"]
    evaluated = pipeline.run("evaluate_checkpoint")
    assert evaluated["passed"]
    assert pipeline.cluster("a").find(pipeline.scope.evaluation_key) == []
    assert len(pipeline.cluster("b").find(pipeline.scope.evaluation_key)) == 1
    pipeline.run("release")
    for name in ("a", "b"):
        engine = pipeline.cluster(name)
        found = engine.find(pipeline.scope.run_key)
        assert all(status.phase.ended for status in engine.poll(found).values())
    pipeline.run("report")
    (report,) = pipeline.scope.directory.glob("**/report.json")
    assert f"{pipeline.folder}/disk-b" in report.read_text()
