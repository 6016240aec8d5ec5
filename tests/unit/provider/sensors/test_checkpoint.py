from __future__ import annotations

import asyncio
import datetime
import threading

import pytest
from airflow.models.trigger import Trigger
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from airflow_llmsched.provider.sensors.checkpoint import CheckpointSensor
from airflow_llmsched.provider.triggers.checkpoint import CheckpointTrigger
from tests.support.airflow_context import UTC, context_of
from tests.support.checkpoint_files import save_dcp
from tests.support.pipeline import Deferred, deferral_of, first_event, through_json

MODES = pytest.mark.parametrize("deferrable", [True, False])


def _sensor(path, **arguments):
    with DAG("dag", schedule=None):
        return CheckpointSensor(task_id="wait", path=path, poke_interval=0.02, **{"timeout": 60, **arguments})


def _deferred(sensor):
    context = context_of(sensor)
    return Deferred(sensor, context, deferral_of(sensor.execute, context))


def _wait(sensor, then=lambda: None):
    """Run the sensor to its end; ``then`` happens once it waits."""
    if sensor.deferrable:
        deferred = _deferred(sensor)
        then()
        return deferred.finish()
    acting = threading.Timer(0.1, then)
    acting.start()
    try:
        looked = sensor.execute(context_of(sensor))
    finally:
        acting.join()
    return looked


@MODES
@pytest.mark.parametrize("several", [False, True])
def test_a_string_is_one_path_and_a_list_is_several(tmp_path, deferrable, several):
    """Field case B10."""
    first, second = tmp_path / "runs a", tmp_path / "b"
    second.mkdir()
    path = [str(first), str(second)] if several else str(second)
    found = _wait(_sensor(path, deferrable=deferrable), lambda: save_dcp(second / "step-00000100"))
    assert found["step"] == 100
    assert found["path"] == str(second / "step-00000100")


@MODES
@pytest.mark.parametrize("several", [False, True])
def test_the_check_gets_the_same_dict_in_every_mode(tmp_path, deferrable, several):
    """Field case B10."""
    seen = []
    path = [str(tmp_path)] if several else str(tmp_path)
    sensor = _sensor(path, deferrable=deferrable, check=lambda checkpoint: seen.append(checkpoint) or True)
    found = _wait(sensor, lambda: save_dcp(tmp_path / "step-00000100"))
    assert seen == [found]
    assert {name: type(value) for name, value in found.items()} == {
        "step": int,
        "path": str,
        "format": str,
        "saved_at_s": float,
        "world_size": type(None),
        "torn_reason": type(None),
        "saved_by": type(None),
    }


@MODES
def test_a_refused_checkpoint_is_waited_past(tmp_path, deferrable):
    save_dcp(tmp_path / "step-00000100")
    sensor = _sensor(str(tmp_path), deferrable=deferrable, check=lambda checkpoint: checkpoint["step"] > 100)
    assert _wait(sensor, lambda: save_dcp(tmp_path / "step-00000200"))["step"] == 200


def test_the_check_may_refuse_what_the_trigger_saw(tmp_path):
    sensor = _sensor(str(tmp_path), check=lambda checkpoint: checkpoint["step"] > 100)
    deferred = _deferred(sensor)
    save_dcp(tmp_path / "step-00000100")
    payload = deferred.fire()
    deferred.again(deferred.resume, payload)
    assert deferred.trigger.after_step == 100
    save_dcp(tmp_path / "step-00000200")
    assert deferred.finish()["step"] == 200


def test_a_checkpoint_that_is_there_already_takes_no_trigger(tmp_path):
    save_dcp(tmp_path / "step-00000100")
    sensor = _sensor(str(tmp_path), min_step=100)
    assert sensor.execute(context_of(sensor))["step"] == 100


@MODES
def test_a_step_below_the_floor_does_not_count(tmp_path, deferrable):
    save_dcp(tmp_path / "step-00000100")
    sensor = _sensor(str(tmp_path), min_step="101", deferrable=deferrable)  # as a template renders it
    assert _wait(sensor, lambda: save_dcp(tmp_path / "step-00000101"))["step"] == 101


def test_the_timeout_is_for_the_whole_wait(tmp_path):
    sensor = _sensor(str(tmp_path), timeout=60, check=lambda _: False)
    begun = context_of(sensor, started=datetime.datetime.now(UTC) - datetime.timedelta(seconds=45))
    with pytest.raises(TaskDeferred) as deferral:
        sensor.execute(begun)
    assert deferral.value.timeout.total_seconds() == pytest.approx(15, abs=10)
    late = context_of(sensor, started=datetime.datetime.now(UTC) - datetime.timedelta(seconds=61))
    with pytest.raises(AirflowSensorTimeout, match="within 60 s"):
        sensor.resume(late, {"checkpoint": {"step": 1}})


@pytest.mark.parametrize("soft_fail", [True, False])
def test_a_wait_that_times_out_after_a_refusal_fails_softly_if_asked_to(tmp_path, soft_fail):
    sensor = _sensor(str(tmp_path), soft_fail=soft_fail, check=lambda _: False)
    late = context_of(sensor, started=datetime.datetime.now(UTC) - datetime.timedelta(seconds=61))
    with pytest.raises(AirflowSkipException if soft_fail else AirflowSensorTimeout):
        sensor.resume_execution("resume", {"event": {"checkpoint": {"step": 1}}}, late)


def test_starting_in_the_triggerer_needs_no_worker_at_all(tmp_path):
    sensor = _sensor([str(tmp_path)], min_step=5, start_from_trigger=True)
    start = sensor.start_trigger_args
    assert sensor.start_from_trigger is True
    assert (start.next_method, start.timeout) == ("resume", datetime.timedelta(seconds=60))
    trigger = CheckpointTrigger(**through_json(start.trigger_kwargs))
    assert start.trigger_cls == trigger.serialize()[0]
    assert (trigger.path, trigger.min_step, trigger.poll_interval_s) == ([str(tmp_path)], 5, 0.02)
    save_dcp(tmp_path / "step-00000100")
    payload = through_json(asyncio.run(first_event(trigger)))
    assert sensor.resume(context_of(sensor), payload)["step"] == 100


def test_every_templated_argument_is_one_of_the_triggers_so_that_airflow_renders_it_there(tmp_path):
    sensor = _sensor("{{ params.root }}", min_step="{{ params.step }}", start_from_trigger=True)
    trigger = CheckpointTrigger(**sensor.start_trigger_args.trigger_kwargs)
    for name in CheckpointSensor.template_fields:
        assert name in sensor.start_trigger_args.trigger_kwargs
        assert getattr(trigger, name) == getattr(sensor, name)


def test_sensors_do_not_share_their_start_arguments_and_the_dag_can_be_stored(tmp_path):
    with DAG("dag", schedule=None) as dag:
        first = CheckpointSensor(task_id="a", path="/a", start_from_trigger=True)
        second = CheckpointSensor(task_id="b", path=["/b"], start_from_trigger=True)
        third = CheckpointSensor(task_id="c", path="/c", deferrable=False, start_from_trigger=True)
    assert first.start_trigger_args.trigger_kwargs["path"] == "/a"
    assert second.start_trigger_args.trigger_kwargs["path"] == ["/b"]
    assert third.start_from_trigger is False
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert stored.get_task("a").start_from_trigger is True
    start = stored.get_task("a").start_trigger_args
    row = Trigger(classpath=start.trigger_cls, kwargs=start.trigger_kwargs)  # as Airflow's scheduler makes it
    assert CheckpointTrigger(**row.kwargs).path == "/a"
