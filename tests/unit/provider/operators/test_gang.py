from __future__ import annotations

import json

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_llmsched.control import events as ev
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.provider.operators.gang_base import GangFailedError
from tests.support.pipeline import ASSET, NUM_STEPS, Pipeline

SECOND_TRY = {"try_number": 2, "ti_id": "00000000-0000-0000-0000-000000000002"}


@pytest.fixture(scope="module", params=["blocking", "deferrable"])
def trained(request, tmp_path_factory):
    """A trained run in each mode: the pipeline, the task's result and its context."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(folder / "state"))
        pipeline = Pipeline(folder).prepare()
        if request.param == "deferrable":
            deferred = pipeline.defer("run_gang")
            yield pipeline, deferred.finish(), deferred.context
        else:
            task = pipeline.task("run_gang")
            context = pipeline.context(task)
            yield pipeline, task.execute(context), context
        pipeline.close()


def test_the_result_is_the_last_checkpoint_and_what_it_took(trained):
    pipeline, result, _ = trained
    assert result == {
        "run_key": pipeline.scope.run_key,
        "checkpoint": str(pipeline.scope.directory / "checkpoints" / "g0001-a0001" / f"step-{NUM_STEPS:08d}"),
        "checkpoint_step": NUM_STEPS,
        "digest": result["digest"],
        "step": NUM_STEPS,
        "loss": pytest.approx(5.0 - NUM_STEPS / 100),
        "num_attempts": 1,
        "world_sizes": [2],
    }
    assert len(result["digest"]) == 64
    json.dumps(result, allow_nan=False)


def test_outlets_are_told_step_loss_and_digest(trained):
    _, result, context = trained
    told = context["outlet_events"][ASSET].extra
    assert told == {name: result[name] for name in ("run_key", "checkpoint", "step", "loss", "digest")}


def test_only_a_trigger_leaves_a_handover_on_the_ledger(trained):
    pipeline, _, _ = trained
    handed_over = [event for event in pipeline.journal() if isinstance(event, ev.HandedOver)]
    assert len(handed_over) == (1 if "deferrable" in pipeline.folder.name else 0)


def test_running_the_task_again_returns_the_result_and_trains_nothing(trained):
    pipeline, result, _ = trained
    before = [event.kind for event in pipeline.journal() if event.kind != "span_noted"]
    assert pipeline.run("run_gang") == result
    after = [event.kind for event in pipeline.journal() if event.kind != "span_noted"]
    assert after == before


def test_a_retry_finds_the_gang_that_a_dead_worker_left(slow):
    first = slow.defer("run_gang")
    task = slow.task("run_gang", deferrable=True)
    context = slow.context(task, **SECOND_TRY)
    with pytest.raises(TaskDeferred) as second:
        task.execute(context)
    assert second.value.trigger.watch["handle"] == first.trigger.watch["handle"]
    assert len(slow.live()) == 1


def test_the_worker_of_an_older_try_ends_without_touching_the_newer_ones_gang(slow):
    first = slow.defer("run_gang")
    task = slow.task("run_gang", deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute(slow.context(task, **SECOND_TRY))
    first.task.on_kill()
    assert len(slow.live()) == 1
    with pytest.raises(GangFailedError, match="superseded"):
        first.resume({"handover": {"kind": "woke", "at_s": 0.0}, "yielded_at_s": 0.0})
    assert len(slow.live()) == 1


def test_a_clear_while_it_trains_replaces_the_gang(slow):
    slow.defer("run_gang")
    (old,) = slow.live()
    task = slow.task("run_gang", deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute(slow.context(task, **SECOND_TRY, max_tries=1))
    (new,) = slow.live()
    assert new.key.generation > old.key.generation


def test_a_cleared_run_goes_on_from_its_checkpoint_and_counts_its_own_attempts(pipeline):
    pipeline.prepare()
    first = pipeline.run("run_gang")
    second = pipeline.run("run_gang", context={**SECOND_TRY, "max_tries": 1})
    assert second["num_attempts"] == len(second["world_sizes"]) == 1
    assert second["checkpoint"] == first["checkpoint"]
    assert second["loss"] == first["loss"]


def test_the_specs_deadline_stops_training_with_a_checkpoint(make_pipeline):
    budget = {"steps": NUM_STEPS, "deadline": "6s"}
    pipeline = make_pipeline(arguments=("--hold-at=2", "--hold=/nowhere"), budget=budget).prepare()
    with pytest.raises(GangFailedError, match="deadline"):
        pipeline.run("run_gang")
    assert not pipeline.live()
    saved = pipeline.scope.directory / "checkpoints" / "g0001-a0001" / "step-00000002"
    assert (saved / "llmsched-seal.json").is_file()


def test_an_engine_that_cannot_be_asked_leaves_the_task_to_its_retries(pipeline):
    pipeline.prepare()
    broken = pipeline.folder / "file"
    broken.write_text("no folder")
    options = {**pipeline.options, "root": str(broken)}
    with pytest.raises(CouldNotLookError):
        pipeline.run("run_gang", engine_options=options, max_look_errors=1)
