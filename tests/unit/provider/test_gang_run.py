from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched import codec
from airflow_llmsched.checkpoints.dcp import DcpFormat
from airflow_llmsched.control.context import Watch
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.errors import DataError, SpecError
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.gang_run import GangSettings, checkpoint_format, open_driver
from airflow_llmsched.provider.places import checkpoint_root
from airflow_llmsched.provider.rentals import open_renter
from tests.support.lease_house import LeaseHouse
from tests.support.pipeline import through_json
from tests.support.waiting import wait_until


def _settings(pipeline, **changes):
    return GangSettings(scope=pipeline.scope, engine="local", engine_options=pipeline.options, **changes)


def test_settings_survive_the_database(pipeline):
    settings = _settings(pipeline, owner="1", deadline_s=1.5, lease_s=None, generation=3)
    assert codec.from_plain(GangSettings, through_json(codec.to_plain(settings))) == settings


def test_checkpoints_of_two_runs_never_share_a_folder(pipeline, demo_spec):
    scope = pipeline.scope
    assert checkpoint_root(scope, demo_spec) == str(scope.directory / "checkpoints")
    for root in ("/mnt/shared", "/mnt/shared/"):
        spec = replace(demo_spec, checkpoint=replace(demo_spec.checkpoint, root=root))
        assert checkpoint_root(scope, spec) == f"/mnt/shared/{scope.run_key}"


def test_the_format_is_the_specs(demo_spec):
    assert isinstance(checkpoint_format(demo_spec), DcpFormat)
    unknown = replace(demo_spec, checkpoint=replace(demo_spec.checkpoint, format="dpc"))
    with pytest.raises(SpecError, match="dcp"):
        checkpoint_format(unknown)


def test_the_driver_trains_what_the_files_say(slow):
    driver = open_driver(_settings(slow, lease_s=77.0, poll_interval_s=0.25, deadline_s=9e9))
    outcome = driver.start()
    assert isinstance(outcome, Watch)
    watch = outcome.state
    assert (watch.lease_s, watch.poll_interval_s, watch.deadline_s, watch.num_steps) == (77.0, 0.25, 9e9, 6)
    (attempt,) = driver.attempts()
    assert attempt.plan == run_files.read_plan(slow.scope).plans[0]
    assert Path(attempt.channel_root).is_relative_to(slow.scope.directory)
    (handle,) = slow.live()
    text = codec.to_json(slow.engine._client.request(handle.native_id)).decode()
    assert sys.executable in text
    assert str(slow.scope.directory / "checkpoints") in text


def test_planning_ahead_is_optional(slow):
    slow.lose("plan.json")
    driver = open_driver(_settings(slow))
    assert isinstance(driver.start(), Watch)
    assert [attempt.plan.layout.world_size for attempt in driver.attempts()] == [2]


@pytest.mark.parametrize("tools", [(), ("megatron-lm",), ("megatron-lm", "accelerate")])
def test_a_run_that_plans_anew_still_plans_for_the_tools_it_was_planned_for(make_pipeline, tools):
    pipeline = make_pipeline(parallelism={"pp": 2})
    for name in ("communication", "memory"):
        del pipeline.spec[name]
    pipeline.spec |= {
        "model": "byte-gpt-1m", "precision": {"compute": "fp32"},
        "batch": {"sequence_length": 64, "global_batch": "4 sequences"},
    }  # fmt: skip
    for name in ("open_run", "stage_dataset"):
        pipeline.run(name)
    run_files.write(pipeline.scope, run_files.PLAN_FILE, PlanSearch(plans=(), tools=tools))
    outcome = open_driver(_settings(pipeline)).start()
    if "accelerate" in tools:
        assert not isinstance(outcome, Watch)
        assert "the trainer cannot express it" in str(outcome)
    else:
        assert isinstance(outcome, Watch)


@pytest.mark.parametrize(
    ("done", "missing"), [((), "OpenRunOperator"), (("open_run",), "StageDatasetOperator")], ids=["open", "stage"]
)
def test_what_is_missing_names_the_task_that_makes_it(pipeline, done, missing):
    for name in done:
        pipeline.run(name)
    with pytest.raises(DataError, match=f"run {missing} first"):
        open_driver(_settings(pipeline))


def test_two_drivers_of_one_run_start_one_gang(slow):
    first, second = (open_driver(_settings(slow, owner="same")).start() for _ in range(2))
    assert first.state.handle == second.state.handle
    assert len(slow.live()) == 1


def test_a_gangs_budget_counts_what_the_run_has_rented(make_pipeline, sim_cloud):
    pipeline = make_pipeline(budget={"steps": 6, "max_usd": "0.0001 USD"}).prepare()
    house = LeaseHouse(sim_cloud, run=pipeline.scope.run_key, store=pipeline.scope.store())
    house.renter().rent(house.wanted())
    wait_until(lambda: open_renter(pipeline.scope).spent_usd() > 0.0001, limit_s=30)
    with pytest.raises(AirflowFailException, match="budget used up"):
        pipeline.run("run_gang")
    assert not pipeline.engine.find(pipeline.scope.run_key)
