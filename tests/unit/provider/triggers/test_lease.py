from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from airflow_llmsched.provider import rental_watch
from airflow_llmsched.provider.rental_watch import RentalWatch
from airflow_llmsched.provider.triggers import lease as module
from airflow_llmsched.provider.triggers.lease import CapacityTrigger, LeaseTrigger, broken
from tests.support.pipeline import first_event, stored, through_json

LIMIT_S = 30


@pytest.fixture
def pending(pipeline, sim_cloud):
    """The trigger of a lease that is on its way for an hour."""
    sim_cloud.pools[1].start_up_s = 3600.0
    return pipeline.defer("provision").trigger


@pytest.fixture
def wanting(pipeline, sim_cloud):
    """The trigger of a task that nobody has room for."""
    for pool in sim_cloud.pools:
        pool.num_free = 1
    return pipeline.defer("provision").trigger


def _set_running(sim_cloud):
    for request in sim_cloud.cloud._requests.values():
        for machine in request.machines:
            machine.runs_at_s = 0.0


@pytest.mark.parametrize("kind", ["pending", "wanting"])
def test_arguments_survive_the_database_and_mean_the_same(request, kind):
    trigger = request.getfixturevalue(kind)
    assert isinstance(trigger, LeaseTrigger if kind == "pending" else CapacityTrigger)
    assert stored(trigger).serialize() == trigger.serialize()
    json.dumps(trigger.serialize(), allow_nan=False)


def test_a_lease_that_is_there_is_an_event_that_survives_the_database(pending, sim_cloud):
    _set_running(sim_cloud)
    payload = asyncio.run(first_event(pending))
    assert payload == {"seen": "active"}
    assert through_json(payload) == payload


def test_a_lease_that_lost_a_node_on_its_way_is_one(pending, sim_cloud):
    sim_cloud.preempt(next(iter(sim_cloud.billed())))
    assert asyncio.run(first_event(pending)) == {"seen": "broken"}


def test_a_lease_is_waited_for_until_time_is_up(pending):
    pending.until_s = time.time() + 0.3
    assert asyncio.run(first_event(pending)) == {"late": True}
    assert time.time() >= pending.until_s


def test_a_pending_lease_is_renewed_meanwhile(pending, sim_cloud):
    (request,) = sim_cloud.cloud._requests.values()
    sim_cloud.shorten(request.lease.id, until_s=time.time() + 100.0)

    async def scenario():
        waiting = asyncio.ensure_future(first_event(pending))
        await _until(lambda: request.lease.expires_at_s > time.time() + 1800.0)
        assert not waiting.done()
        _set_running(sim_cloud)
        return await asyncio.wait_for(waiting, LIMIT_S)

    assert asyncio.run(scenario()) == {"seen": "active"}


def test_a_cloud_that_does_not_answer_is_asked_again(pending, sim_cloud):
    asked = []
    look = RentalWatch.look

    def noted(self):
        asked.append(1)
        return look(self)

    async def scenario():
        sim_cloud.go_dark(is_dark=True)
        waiting = asyncio.ensure_future(first_event(pending))
        await _until(lambda: len(asked) >= 2)
        sim_cloud.go_dark(is_dark=False)
        _set_running(sim_cloud)
        return await asyncio.wait_for(waiting, LIMIT_S)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RentalWatch, "look", noted)
        assert asyncio.run(scenario()) == {"seen": "active"}


def test_an_event_that_comes_at_once_waits_until_the_worker_has_gone(pending, sim_cloud):
    _set_running(sim_cloud)
    pending.settle_s = 0.5
    began_s = time.monotonic()
    asyncio.run(first_event(pending))
    assert time.monotonic() - began_s >= 0.5


def test_an_offer_that_serves_is_an_event_with_its_quote(wanting, sim_cloud):
    sim_cloud.pools[0].num_free = 2
    payload = asyncio.run(first_event(wanting))
    assert payload["quote"]["offer"]["pool"]["zone"] == "sim-east-a"
    assert through_json(payload) == payload


def test_the_market_is_left_alone_for_as_long_as_it_was_just_asked(wanting, sim_cloud):
    sim_cloud.pools[0].num_free = 2
    wanting.not_before_s = time.time() + 0.5
    asyncio.run(first_event(wanting))
    assert time.time() >= wanting.not_before_s


def test_a_market_is_watched_until_time_is_up_and_then_told_in_words(wanting):
    wanting.until_s = time.time() + 0.2
    assert asyncio.run(first_event(wanting)) == {"late": True, "market": "no offer serves: 2 with too few nodes"}


@pytest.mark.parametrize("kind", ["pending", "wanting"])
def test_an_unforeseen_error_is_handed_over_and_never_raised(request, monkeypatch, kind):
    trigger = request.getfixturevalue(kind)

    def fail(*_arguments):
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(RentalWatch, "look", fail)
    monkeypatch.setattr(rental_watch, "ask", fail)
    assert asyncio.run(first_event(trigger)) == {"broken": "ZeroDivisionError: unforeseen"}


@pytest.mark.parametrize(
    "trigger",
    [
        LeaseTrigger(settings={"scope": 1}, poll_interval_s=1.0, until_s=0.0),
        CapacityTrigger(request={"clouds": 1}, poll_interval_s=1.0, until_s=0.0),
    ],
)
def test_arguments_that_no_longer_fit_are_handed_over_too(trigger):
    assert "broken" in asyncio.run(first_event(trigger))


@pytest.mark.parametrize("kind", ["pending", "wanting"])
def test_cancelling_propagates_and_leaves_the_lease_alone(request, sim_cloud, kind):
    trigger = request.getfixturevalue(kind)
    trigger.poll_interval_s = 60.0
    before = sim_cloud.billed()

    async def scenario():
        waiting = asyncio.ensure_future(first_event(trigger))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())
    assert sim_cloud.billed() == before


@pytest.mark.parametrize("kind", ["pending", "wanting"])
def test_a_cloud_that_hangs_never_stops_the_event_loop(request, monkeypatch, kind):
    trigger = request.getfixturevalue(kind)
    began, go_on = threading.Event(), threading.Event()

    def hang(*_arguments):
        began.set()
        go_on.wait(LIMIT_S)
        raise ZeroDivisionError("over")

    monkeypatch.setattr(RentalWatch, "look", hang)
    monkeypatch.setattr(rental_watch, "ask", hang)

    async def scenario():
        waiting = asyncio.ensure_future(first_event(trigger))
        await _until(began.is_set)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        go_on.set()
        return await asyncio.wait_for(waiting, LIMIT_S)

    assert "broken" in asyncio.run(scenario())


def test_loading_the_triggers_loads_nothing_slow():
    assert not {"rental_watch", "lease_watch", "rentals"} & set(vars(module))


def test_a_broken_watch_says_what():
    assert broken(ValueError("x")) == {"broken": "ValueError: x"}


async def _until(condition) -> None:
    async def wait():
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), LIMIT_S)
