"""Run keys against a real engine: equal names in two deployments, and a name used twice in one, never meet."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_llmsched.engines.local.client import LocalClient
from airflow_llmsched.provider.operators.reap import ReapOperator
from tests.support.airflow_context import UTC
from tests.support.orphans import hung_agents
from tests.support.pipeline import NUM_STEPS, Pipeline, plain_spec
from tests.support.waiting import wait_until

OPTIONS = {"num_nodes": 2, "slots_per_node": 2}
WITHOUT_LIMITS = {"silence_s": 1.5, "unleased_s": 0.0}


class Deployment:
    """One Airflow with a state root of its own, on an engine that it shares. Its DAG and run have the same names."""

    def __init__(self, folder: Path, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.engine_root = engine
        self._pipeline = Pipeline(folder, spec=plain_spec(arguments=("--step-s=60",)))
        self._pipeline.options = {**OPTIONS, "root": str(engine)}

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline, with this deployment's configuration in force."""
        self._monkeypatch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(self._pipeline.state_root))
        return self._pipeline

    def live(self) -> list[str]:
        pipeline = self.pipeline
        found = pipeline.engine.find(pipeline.scope.run_key)
        return [handle.key.name for handle, status in pipeline.engine.poll(found).items() if not status.phase.ended]

    def reap(self) -> dict[str, object]:
        pipeline = self.pipeline
        task = ReapOperator(task_id="reap", engine_options=pipeline.options, only_report=False, **WITHOUT_LIMITS)
        result: dict[str, object] = task.execute(pipeline.context(task))
        return result


@pytest.fixture
def deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Deployment, Deployment]]:
    monkeypatch.setenv("AIRFLOW__LLMSCHED__MIN_DEFERRAL", "0")
    monkeypatch.setattr(Pipeline, "engine", property(_shared_engine))
    pair = tuple(Deployment(tmp_path / name, tmp_path / "engine", monkeypatch) for name in ("a", "b"))
    yield pair  # type: ignore[misc]
    for each in pair:
        each.pipeline.close()


def _shared_engine(pipeline: Pipeline) -> object:
    from airflow_llmsched.engines.local.engine import LocalEngine

    return LocalEngine(**pipeline.options)


def launch(deployment: Deployment, **arguments: object) -> str:
    deployment.pipeline.prepare().defer("run_gang", **arguments)
    (name,) = deployment.live()
    return name


def test_release_of_one_deployment_leaves_the_others_gang_alone(deployments: tuple[Deployment, Deployment]) -> None:
    ours, theirs = deployments
    names = launch(ours), launch(theirs)
    assert names[0] != names[1]
    assert (ours.pipeline.scope.dag_id, ours.pipeline.scope.run_id) == (
        theirs.pipeline.scope.dag_id,
        theirs.pipeline.scope.run_id,
    )
    assert ours.pipeline.run("release")["stopped"] == [names[0]]
    assert (ours.live(), theirs.live()) == ([], [names[1]])
    assert [event.kind for event in theirs.pipeline.journal()][-1] == "launched"


def test_clear_of_one_deployments_run_stops_only_its_own_gang(deployments: tuple[Deployment, Deployment]) -> None:
    ours, theirs = deployments
    before, other = launch(ours), launch(theirs)
    ours.pipeline.clear()
    ours.pipeline.defer("run_gang")
    (after,) = ours.live()
    assert after != before
    assert theirs.live() == [other]


def test_reaper_of_one_deployment_spares_the_others_orphan(
    deployments: tuple[Deployment, Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", staticmethod(lambda **_asked: "failed"))
    ours, theirs = deployments
    orphan = launch(theirs, lease_s=None)
    (handle,) = theirs.pipeline.live()
    with hung_agents(LocalClient(theirs.engine_root), handle):

        def spared() -> str:
            found = ours.reap()
            assert (found["reap"], found["stopped"]) == ({}, [])
            return str(found["spared"])

        assert "belongs to deployment" in spared()
        stopped = wait_until(lambda: theirs.reap()["stopped"], limit_s=60)
        assert stopped == [orphan]
    assert theirs.live() == []


def test_recreated_run_never_finds_the_journal_of_the_one_that_was_deleted(
    deployments: tuple[Deployment, Deployment],
) -> None:
    """The same DAG and run id, created again: it is trained, not taken for done."""
    pipeline = deployments[0].pipeline
    pipeline.spec = plain_spec()
    first = pipeline.prepare().run("run_gang")
    assert first["step"] == NUM_STEPS
    assert pipeline.run("run_gang")["num_attempts"] == 1
    later = {"run_after": datetime.datetime(2026, 3, 29, 1, 31, tzinfo=UTC)}
    for name in ("open_run", "stage_dataset", "plan_training"):
        pipeline.run(name, context=later)
    second = pipeline.run("run_gang", context=later)
    assert second["run_key"] != first["run_key"]
    assert second["step"] == NUM_STEPS
    launched = [gang.name for gang in (deployments[0].engine_root / "gangs").iterdir() if not gang.name.startswith(".")]
    assert sorted(launched) == sorted(f"{run['run_key']}-g1-a1" for run in (first, second))
