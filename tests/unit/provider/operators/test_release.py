from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control import events as ev
from airflow_llmsched.errors import CouldNotLookError, LeftoverError
from airflow_llmsched.provider.operators.release import ReleaseOperator


def _released(pipeline):
    return [event for event in pipeline.journal() if isinstance(event, ev.Released)]


def test_a_run_that_was_never_opened_has_nothing_to_release(pipeline):
    assert pipeline.run("release") == {"run_key": pipeline.scope.run_key, "stopped": []}


def test_a_run_without_data_has_nothing_to_release(pipeline):
    pipeline.run("open_run")
    assert pipeline.run("release")["stopped"] == []


def test_a_finished_run_is_released_once_however_often_it_is_asked(pipeline):
    pipeline.prepare()
    pipeline.run("run_gang")
    for _ in range(3):
        assert pipeline.run("release")["stopped"] == []
    assert len(_released(pipeline)) == 1


def test_what_is_alive_is_stopped_and_named(slow):
    slow.defer("run_gang")
    (handle,) = slow.live()
    assert slow.run("release")["stopped"] == [handle.key.name]
    assert not slow.live()
    assert slow.run("release")["stopped"] == []
    assert len(_released(slow)) == 1


def test_two_releases_at_once_are_one(slow):
    slow.defer("run_gang")
    tasks = [slow.task("release") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda task: task.execute(slow.context(task)), tasks))
    assert not slow.live()
    assert len(_released(slow)) == 1


def test_an_engine_that_cannot_be_asked_fails_the_teardown_for_a_retry(slow, monkeypatch):
    monkeypatch.setattr(SystemClock, "sleep", lambda *_: None)  # between one look and the next
    slow.defer("run_gang")
    broken = slow.folder / "file"
    broken.write_text("no folder")
    with pytest.raises(CouldNotLookError):
        slow.run("release", engine_options={**slow.options, "root": str(broken)})
    assert len(slow.live()) == 1
    assert _released(slow) == []


def test_a_teardown_tries_again_unless_told_otherwise():
    assert ReleaseOperator(task_id="release").retries == 3
    assert ReleaseOperator(task_id="release", retries=0).retries == 0


def test_what_a_cloud_does_not_remove_fails_the_teardown_for_a_retry_and_is_named(pipeline, sim_cloud):
    pipeline.run("provision")
    sim_cloud.refuse_removal(num_calls=100)
    with pytest.raises(LeftoverError, match="sim-000000, sim-000001"):
        pipeline.run("release")
    sim_cloud.refuse_removal(num_calls=0)
    assert len(pipeline.run("release")["stopped"]) == 1
    assert not sim_cloud.billed()
