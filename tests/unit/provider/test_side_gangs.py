from __future__ import annotations

import time

import pytest

from airflow_llmsched.control.context import Watch
from airflow_llmsched.control.intents import LaunchIntents
from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.channels import channel_dir
from airflow_llmsched.provider.gang_run import GangSettings
from airflow_llmsched.provider.side_gangs import open_side_gang
from tests.support.pipeline import Pipeline, python_sleeping

KEY = RunKey("ls-beside")


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(tmp_path / "state"))
    made = Pipeline(tmp_path)
    made.run("open_run")
    yield made
    for handle in made.engine.find(KEY):
        made.engine.stop(handle, grace_s=0.0)


def test_a_gang_beside_the_training_has_the_limits_of_its_task_and_spec(pipeline):
    scope = pipeline.scope
    spec = run_files.read_spec(scope)
    deadline_s = time.time() + 500.0
    settings = GangSettings(scope=scope, engine="local", generation=4, deadline_s=deadline_s, lease_s=30.0)

    def make_gang(key: AttemptKey) -> GangSpec:
        return GangSpec(
            key=key,
            placement=Placement(
                slots=(RankSlot(rank=0, node=pipeline.engine.topology().nodes[0].id, slot=0, local_rank=0),)
            ),
            layout=ParallelLayout(dp=1),
            command=tuple(python_sleeping()),
            channel_root=f"{channel_dir(scope)}/channel/{key.name}",
            launcher=Launcher.PLAIN,
        )

    intents = LaunchIntents(scope.store(), f"runs/{scope.run_key}/beside/")
    run = open_side_gang(
        settings, spec, key=KEY, engine=pipeline.engine, intents=intents, make_gang=make_gang, limit_s=70.0
    )
    outcome = run.start()
    assert isinstance(outcome, Watch)
    state = outcome.state
    assert (state.deadline_s, state.lease_s, state.hang_limit_s) == (deadline_s, 30.0, 70.0)
    assert state.start_limit_s == spec.launcher.start_limit_s
    (handle,) = pipeline.engine.find(KEY)
    assert (handle.key, state.handle) == (AttemptKey(run=KEY, generation=4, attempt=1), handle)
    assert intents.noted() == (handle.key,)
