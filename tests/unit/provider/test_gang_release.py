from __future__ import annotations

import shutil
import time
from dataclasses import replace

import pytest

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.journal import JournalError
from airflow_llmsched.control.runs import MovedOnError
from airflow_llmsched.domain.fleet import Fleet
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.errors import CouldNotLookError, LeftoverError, LlmschedError, SpecError
from airflow_llmsched.provider import gang_release, run_files
from airflow_llmsched.provider.evaluation_run import open_evaluation
from airflow_llmsched.provider.gang_release import release_run
from airflow_llmsched.provider.gang_run import GangSettings
from tests.support.pipeline import python_sleeping


def _release(pipeline, **changes):
    arguments = {"engine": "local", "engine_options": pipeline.options, "since_s": time.time()}
    return release_run(pipeline.scope, **{**arguments, **changes})


def test_an_evaluation_that_still_runs_is_stopped_too(make_pipeline):
    pipeline = make_pipeline(evaluation={"command": python_sleeping()}).prepare()
    settings = GangSettings(scope=pipeline.scope, engine="local", engine_options=pipeline.options)
    open_evaluation(settings, checkpoint="/checkpoints/step-00000006").start()
    assert _release(pipeline) == (f"{pipeline.scope.evaluation_key}-g0-a1",)
    assert _release(pipeline) == ()


def test_an_evaluation_that_a_frozen_worker_is_about_to_submit_is_given_up(make_pipeline, monkeypatch):
    pipeline = make_pipeline(evaluation={"command": python_sleeping()}).prepare()
    settings = GangSettings(scope=pipeline.scope, engine="local", engine_options=pipeline.options, generation=3)
    submit = LocalEngine.submit

    def submit_late(self, request, *, key):
        assert _release(pipeline) == ()
        return submit(self, request, key=key)

    monkeypatch.setattr(LocalEngine, "submit", submit_late)
    outcome = open_evaluation(settings, checkpoint="/checkpoints/step-00000006").start()
    assert outcome.kind == "failed"
    assert not pipeline.live(pipeline.scope.evaluation_key)


@pytest.mark.parametrize("lost", ["spec.json", "dataset.json"])
def test_a_gang_whose_files_are_gone_is_stopped_all_the_same(slow, lost):
    slow.defer("run_gang")
    (handle,) = slow.live()
    slow.lose(lost)
    assert _release(slow) == (handle.key.name,)
    assert not slow.live()


def test_a_gang_whose_spec_was_replaced_by_one_that_nobody_can_train_is_stopped(slow, demo_spec):
    slow.defer("run_gang")
    (handle,) = slow.live()
    unknown = replace(demo_spec, checkpoint=replace(demo_spec.checkpoint, format="no-such-format"))
    run_files.write(slow.scope, run_files.SPEC_FILE, unknown)
    assert _release(slow) == (handle.key.name,)


def test_options_that_name_no_engine_are_an_error_and_not_an_empty_engine(slow):
    slow.defer("run_gang")
    with pytest.raises(SpecError, match="num_nodse"):
        _release(slow, engine_options={"num_nodse": 1})
    assert len(slow.live()) == 1


def test_what_was_rented_is_given_back_with_the_gangs(slow, sim_cloud):
    lease = slow.run("provision")
    slow.defer("run_gang")
    (handle,) = slow.live()
    assert _release(slow) == (handle.key.name, lease["lease_id"])
    assert not sim_cloud.billed()
    assert _release(slow) == ()


def test_an_engine_that_cannot_be_asked_fails_the_release_and_keeps_no_machine(slow, sim_cloud, monkeypatch):
    slow.run("provision")
    slow.defer("run_gang")

    def fail(*_arguments):
        raise CouldNotLookError("engine down")

    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "find", fail)
        patch.setattr(SystemClock, "sleep", lambda *_: None)
        with pytest.raises(CouldNotLookError, match="engine down"):
            _release(slow)
    assert not sim_cloud.billed()
    assert len(slow.live()) == 1


def test_a_cloud_that_cannot_be_asked_fails_the_release_and_keeps_no_gang(slow, sim_cloud):
    slow.run("provision")
    slow.defer("run_gang")
    sim_cloud.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError, match="does not answer"):
        _release(slow)
    assert not slow.live()
    sim_cloud.go_dark(is_dark=False)
    _release(slow)
    assert not sim_cloud.billed()


def test_when_neither_can_be_asked_both_are_told(slow, sim_cloud, monkeypatch):
    slow.run("provision")
    sim_cloud.refuse_removal(num_calls=100)
    monkeypatch.setattr("airflow_llmsched.provider.gang_release.open_run_engine", _no_engine)
    with pytest.raises(LeftoverError, match="sim-000000, sim-000001") as failed:
        _release(slow)
    assert "engine down" in str(failed.value.__context__)


def _no_engine(*_arguments):
    raise CouldNotLookError("engine down")


def test_a_teardown_that_set_out_before_the_run_was_begun_anew_leaves_it_alone(slow, sim_cloud):
    slow.run("provision")
    slow.defer("run_gang")
    with pytest.raises(MovedOnError):
        _release(slow, since_s=time.time() - 3600.0)
    assert len(slow.live()) == 1
    assert sim_cloud.billed()
    _release(slow)


def test_a_damaged_record_of_the_lease_book_fails_the_release_and_keeps_no_machine_and_no_gang(slow, sim_cloud):
    slow.run("provision")
    slow.defer("run_gang")
    (record,) = slow.state_root.glob("runs/*/leases/*/intended.json")
    other = record.parent.with_name("g0000-r00002")
    shutil.copytree(record.parent, other)
    for record in ("intended", "copy"):
        (other / f"{record}.json").write_bytes(b"{")
    with pytest.raises(CouldNotLookError, match=r"g0000-r00002/intended\.json is damaged"):
        _release(slow)
    assert not sim_cloud.billed()
    assert not slow.live()


def test_a_book_that_names_no_cloud_any_more_is_cleared_in_the_clouds_of_the_fleet_file(
    slow, sim_cloud, tmp_path, monkeypatch
):
    slow.run("provision")
    for record in slow.state_root.glob("runs/*/leases/*/*.json"):
        record.write_bytes(b"{")
    with pytest.raises(CouldNotLookError, match=r"intended\.json is damaged"):
        _release(slow)
    assert sim_cloud.billed()
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("version: 1\n")
    monkeypatch.setenv("AIRFLOW__LLMSCHED__FLEET_FILE", str(fleet))
    with pytest.raises(LlmschedError):  # a file that is no fleet's names no cloud either
        _release(slow)
    assert sim_cloud.billed()
    monkeypatch.setenv("AIRFLOW__LLMSCHED__FLEET_FILE", "")
    monkeypatch.setattr(gang_release, "deployment_fleet", lambda: Fleet(clusters=(), clouds={"sim": {}}))
    assert _release(slow)
    assert not sim_cloud.billed()
    _release(slow)


def test_a_damaged_journal_fails_the_release_and_keeps_no_gang_beside_the_training(evaluating):
    _damage(evaluating, "runs/*/journal/*.json")
    with pytest.raises(JournalError, match="is not JSON"):
        _release(evaluating)
    assert not evaluating.live(evaluating.scope.evaluation_key)


def test_a_damaged_note_of_a_launch_keeps_no_gang(evaluating):
    _damage(evaluating, "runs/*/evaluation-launches/*.json")
    assert _release(evaluating) == (f"{evaluating.scope.evaluation_key}-g0-a1",)


@pytest.mark.parametrize("pattern", ["arbiter-machines/records/*.json", "arbiter/*/records/*.json"])
def test_a_damaged_record_of_what_all_runs_claim_fails_the_release_and_keeps_no_gang(slow, pattern):
    slow.defer("run_gang")
    _damage(slow, pattern)
    with pytest.raises(LlmschedError, match="is damaged"):
        _release(slow)
    assert not slow.live()


@pytest.fixture
def evaluating(make_pipeline):
    """A run of which an evaluation is alive."""
    pipeline = make_pipeline(evaluation={"command": python_sleeping()}).prepare()
    settings = GangSettings(scope=pipeline.scope, engine="local", engine_options=pipeline.options)
    open_evaluation(settings, checkpoint="/checkpoints/step-00000006").start()
    return pipeline


def _damage(pipeline, pattern):
    found = list(pipeline.state_root.glob(pattern))
    assert found
    for path in found:
        path.write_bytes(b"{")
