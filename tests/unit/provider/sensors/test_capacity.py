from __future__ import annotations

import datetime
import json
import threading
from dataclasses import replace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException

from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.provider.sensors.capacity import CapacitySensor
from airflow_llmsched.provider.triggers.lease import CapacityTrigger
from tests.support.airflow_context import UTC, context_of
from tests.support.pipeline import Deferred, deferral_of

MODES = pytest.mark.parametrize("deferrable", [True, False])


@pytest.fixture(autouse=True)
def _market(state_root, sim_cloud):
    return sim_cloud


def _sensor(**arguments):
    told = {
        "clouds": {"sim": {}},
        "shapes": {"sim.8x": {"num_nodes": 2, "work": "1h"}},
        "poke_interval": 0.05,
        "timeout": 60,
    }
    with DAG("dag", schedule=None):
        return CapacitySensor(task_id="wait", **{**told, **arguments})


def _deferred(sensor):
    context = context_of(sensor)
    return Deferred(sensor, context, deferral_of(sensor.execute, context))


def _wait(sensor, then):
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
    return getattr(looked, "xcom_value", looked)


@MODES
def test_an_offer_that_serves_already_ends_it_at_once_with_the_quote(sim_cloud, deferrable):
    found = _wait(_sensor(deferrable=False), lambda: None) if not deferrable else _execute(_sensor())
    assert found["offer"]["pool"]["zone"] == "sim-east-b"
    assert found["num_nodes"] == 2
    assert json.loads(json.dumps(found)) == found
    assert not sim_cloud.billed()


@MODES
@pytest.mark.parametrize("condition", ["count", "price"])
def test_it_waits_until_the_count_or_the_price_is_there(sim_cloud, deferrable, condition):
    arguments = {}
    if condition == "count":
        sim_cloud.pools[0].num_free = sim_cloud.pools[1].num_free = 1
    else:
        arguments = {"max_usd_per_hour": "20", "capacity_types": [CapacityType.ON_DEMAND]}

    def then():
        sim_cloud.pools[0].num_free = 2
        sim_cloud.pools[0].offer = _priced(sim_cloud.pools[0].offer, 19.0)

    found = _wait(_sensor(deferrable=deferrable, **arguments), then)
    assert found["offer"]["usd_per_hour"] == 19.0


@pytest.mark.parametrize("soft_fail", [True, False])
def test_a_time_that_passes_says_what_the_market_was_like(sim_cloud, soft_fail):
    sim_cloud.pools[0].num_free = sim_cloud.pools[1].num_free = 1
    deferred = _deferred(_sensor(timeout=0.2, soft_fail=soft_fail))
    event = deferred.fire()
    with pytest.raises(AirflowSkipException if soft_fail else AirflowSensorTimeout) as ended:
        deferred.task.resume_execution("resume", {"event": event}, deferred.context)
    if not soft_fail:
        assert "nothing served within 0 s: no offer serves: 2 with too few nodes" in str(ended.value)


def test_airflows_own_limit_comes_after_the_triggers(sim_cloud):
    sim_cloud.pools[0].num_free = sim_cloud.pools[1].num_free = 1
    sensor = _sensor(timeout=60)
    context = context_of(sensor, started=datetime.datetime.now(UTC) - datetime.timedelta(seconds=45))
    deferral = deferral_of(sensor.execute, context)
    assert isinstance(deferral.trigger, CapacityTrigger)
    started_s = context["ti"].start_date.timestamp()
    assert deferral.trigger.until_s == pytest.approx(started_s + 60.0)
    assert deferral.timeout.total_seconds() == pytest.approx(75.0, abs=10.0)


def test_a_trigger_that_broke_is_replaced_after_a_look(sim_cloud):
    sim_cloud.pools[0].num_free = sim_cloud.pools[1].num_free = 1
    deferred = _deferred(_sensor())
    deferred.again(deferred.resume, {"broken": "ImportError: x"})
    sim_cloud.pools[0].num_free = 2
    assert deferred.resume({"broken": "ImportError: x"})["offer"]["pool"]["zone"] == "sim-east-a"


def test_a_cloud_that_does_not_answer_is_waited_for(sim_cloud):
    sim_cloud.go_dark(is_dark=True)
    deferred = _deferred(_sensor())
    sim_cloud.go_dark(is_dark=False)
    assert deferred.finish()["offer"]["pool"]["zone"] == "sim-east-b"


@MODES
def test_an_argument_that_is_wrong_fails_for_good(deferrable):
    with pytest.raises(AirflowFailException, match=r"shapes\.sim\.8x\.work"):
        _execute(_sensor(deferrable=deferrable, shapes={"sim.8x": {"num_nodes": 2, "work": "long"}}))


def _execute(sensor):
    return sensor.execute(context_of(sensor))


def _priced(offer, usd_per_hour):
    from dataclasses import replace

    return replace(offer, usd_per_hour=usd_per_hour)


def test_carbon_counts_as_it_is_told_and_what_does_not_tell_it_is_left_out(sim_cloud):
    sim_cloud.pools[0].offer = replace(sim_cloud.pools[0].offer, carbon_g_per_hour=100.0)
    assert _execute(_sensor())["offer"]["pool"]["zone"] == "sim-east-b"
    assert _execute(_sensor(energy={"usd_per_t_co2": 50}))["offer"]["pool"]["zone"] == "sim-east-a"
