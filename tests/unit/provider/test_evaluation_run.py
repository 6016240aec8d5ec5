from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import pytest

from airflow_llmsched.agent.holds import held
from airflow_llmsched.control.context import Watch
from airflow_llmsched.domain.run_report import EvaluationResult
from airflow_llmsched.errors import DataError
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.evaluation_run import (
    open_evaluation,
    read_evaluation,
    stop_evaluation,
    trained_checkpoint,
    why_not_passed,
)
from airflow_llmsched.provider.gang_run import GangSettings
from tests.support.pipeline import python_sleeping

CHECKPOINT = "/checkpoints/step-00000006"


def _settings(pipeline, **changes):
    settings = GangSettings(scope=pipeline.scope, engine="local", engine_options=pipeline.options, poll_interval_s=0.1)
    return replace(settings, **changes)


@pytest.fixture
def endless(make_pipeline):
    """A prepared pipeline whose evaluation never ends."""
    return make_pipeline(evaluation={"command": python_sleeping()}).prepare()


def _request(pipeline, outcome):
    return pipeline.engine._client.request(outcome.state.handle.native_id)["body"]


def _write(settings, result):
    path = settings.scope.directory / "evaluation" / f"generation-{settings.generation}-attempt-1.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    return path


def _read(settings):
    return read_evaluation(settings, checkpoint=CHECKPOINT, attempt=1, now_s=7.0)


def test_the_checkpoint_is_the_one_that_training_ended_with(pipeline):
    pipeline.prepare()
    with pytest.raises(DataError, match="RunGangOperator"):
        trained_checkpoint(pipeline.scope)
    result = pipeline.run("run_gang")
    assert trained_checkpoint(pipeline.scope) == result["checkpoint"]


def test_the_gang_is_one_rank_told_where_checkpoint_data_and_output_are(endless):
    settings = _settings(endless)
    outcome = open_evaluation(settings, checkpoint=CHECKPOINT).start()
    assert isinstance(outcome, Watch)
    request = _request(endless, outcome)
    text = json.dumps(request)
    assert CHECKPOINT in text
    assert "manifest.json" in text
    assert [len(node["slots"]) for node in request["nodes"]] == [1]


def test_the_checkpoint_is_held_from_the_launch_to_the_result(endless, tmp_path):
    checkpoint = tmp_path / "checkpoints" / "g0001-a0001" / "step-00000006"
    checkpoint.mkdir(parents=True)
    settings = _settings(endless, deadline_s=time.time() + 100.0)
    open_evaluation(settings, checkpoint=str(checkpoint)).start()
    root = tmp_path / "checkpoints"
    assert held(root, now_s=time.time() + 90.0) == {checkpoint}
    assert held(root, now_s=time.time() + 500.0) == frozenset()
    _write(settings, {"loss": 3.0, "checkpoint_step": 6})
    read_evaluation(settings, checkpoint=str(checkpoint), attempt=1, now_s=7.0)
    assert held(root, now_s=time.time()) == frozenset()


def test_the_shipped_evaluator_gets_its_batches_and_the_models_shape(make_pipeline, demo_spec):
    pipeline = make_pipeline().prepare()
    run_files.write(pipeline.scope, run_files.SPEC_FILE, demo_spec)
    outcome = open_evaluation(_settings(pipeline), checkpoint=CHECKPOINT).start()
    text = json.dumps(_request(pipeline, outcome))
    stop_evaluation(_settings(pipeline))
    assert "airflow_llmsched.trainers.evaluate" in text
    assert f'"--num-batches", "{demo_spec.evaluation.num_batches}"' in text
    assert "LLMSCHED_TRAIN" in text


def test_a_result_that_another_launch_left_does_not_stand_for_this_one(endless):
    settings = _settings(endless)
    _write(settings, {"loss": 1.0, "checkpoint_step": 6})
    with pytest.raises(DataError, match=r"attempt-2\.json is no evaluation result"):
        read_evaluation(settings, checkpoint=CHECKPOINT, attempt=2, now_s=7.0)
    outcome = open_evaluation(settings, checkpoint=CHECKPOINT).start()
    assert "generation-0-attempt-1.json" in json.dumps(_request(endless, outcome))


@pytest.mark.parametrize(
    ("written", "passed"),
    [
        ({"loss": 4.9, "checkpoint_step": 6}, True),
        ({"loss": 5.0, "checkpoint_step": 6, "num_tokens": 64}, True),
        ({"loss": 5.1, "checkpoint_step": 6}, False),
        ({"loss": float("nan"), "checkpoint_step": 6}, False),
        ({"loss": float("-inf"), "checkpoint_step": 6}, False),
    ],
)
def test_the_gate_is_the_specs(pipeline, written, passed):
    pipeline.run("open_run")
    settings = _settings(pipeline)
    _write(settings, written)
    result = _read(settings)
    assert (result.passed, result.max_loss, result.checkpoint_step) == (passed, 5.0, 6)
    assert (result.checkpoint_path, result.evaluated_at_s) == (CHECKPOINT, 7.0)
    assert result.num_tokens == written.get("num_tokens")


def test_without_a_gate_every_finite_loss_passes(make_pipeline):
    pipeline = make_pipeline(evaluation={"command": ["x"]})
    pipeline.run("open_run")
    settings = _settings(pipeline)
    _write(settings, {"loss": 1e9, "checkpoint_step": 6})
    assert _read(settings).passed


@pytest.mark.parametrize("num_tokens", ["many", [1], {}, math.inf])
def test_garbage_beside_a_good_loss_is_garbage(pipeline, num_tokens):
    pipeline.run("open_run")
    settings = _settings(pipeline)
    path = _write(settings, {"loss": 3.0, "checkpoint_step": 6, "num_tokens": num_tokens})
    with pytest.raises(DataError, match=str(path)):
        _read(settings)


def test_a_missing_result_names_the_file_and_what_belongs_there(pipeline):
    pipeline.run("open_run")
    with pytest.raises(
        DataError, match=r"generation-3-attempt-1\.json is no evaluation result.*loss and checkpoint_step"
    ):
        _read(_settings(pipeline, generation=3))


def test_the_words_tell_a_diverged_model_from_one_that_needs_more_training():
    result = EvaluationResult(checkpoint_step=6, loss=5.25, passed=False, max_loss=5.0)
    assert "5.2500 at step 6 is above the gate 5.0: train longer" in why_not_passed(result)
    assert "not a finite number" in why_not_passed(replace(result, loss=None))


def test_stopping_spares_newer_generations_when_told_to_and_needs_no_data(endless):
    open_evaluation(_settings(endless, generation=2), checkpoint=CHECKPOINT).start()
    assert stop_evaluation(_settings(endless), through_generation=1) == ()
    for name in ("spec.json", "dataset.json"):
        endless.lose(name)
    assert stop_evaluation(_settings(endless)) == (f"{endless.scope.evaluation_key}-g2-a1",)
    assert stop_evaluation(_settings(endless)) == ()
