"""Ten virtual minutes without a free worker slot between a watcher's event and the worker: no lease, no gang is lost.

The simulated engine under a virtual clock, through what a triggerer really does with a gang: the provider's looks, the
JSON of its event, and the driver that a worker opens. ``test_two_triggerers.py`` has the same with a real scheduler.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched import codec
from airflow_llmsched.control.context import Outcome, Succeeded, Watch
from airflow_llmsched.control.events import Handover
from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.control.watching import ask, extend
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.provider.gang_run import GangSettings
from airflow_llmsched.provider.looks import Look
from airflow_llmsched.sim.channel import SimLine
from airflow_llmsched.sim.scripts import SimTraining
from tests.support.pipeline import through_json
from tests.support.sim_house import SimHouse

FULL_S = 600.0
LEASE_S = GangSettings.__dataclass_fields__["lease_s"].default
HANDOFF_LIMIT_S = 1800.0  # the configuration's default


def house_of(*, deadline_after_s: float | None = None) -> SimHouse:
    """Return a house whose run takes some 40 minutes, watched as by default."""
    house = SimHouse(training=SimTraining(num_steps=2400, checkpoint_interval_steps=50))
    deadline_s = None if deadline_after_s is None else house.clock.now_s() + deadline_after_s
    house.context = replace(
        house.context, lease_s=LEASE_S, handoff_limit_s=HANDOFF_LIMIT_S, poll_interval_s=5.0, deadline_s=deadline_s
    )
    return house


def started(house: SimHouse) -> WatchState:
    outcome = house.driver().start()
    assert isinstance(outcome, Watch)
    return codec.from_plain(WatchState, through_json(codec.to_plain(outcome.state)))


def line_of(house: SimHouse, watch: WatchState) -> SimLine:
    return house.hub.line(watch.channel_root)


def look(house: SimHouse, watch: WatchState) -> Look:
    """Look once, as a reader of a triggerer's shared poller does."""
    assert watch.handle is not None
    channel, told = house.hub.open(watch.channel_root), ask(house.engine, [watch.handle])[watch.handle]
    taken = Look(watcher=None, channel=channel, state=watch, asked_s=0.0, told=told)
    taken.finish(house.clock)
    assert taken.error is None
    return taken


def watch_until_handed_over(house: SimHouse, watch: WatchState) -> Handover:
    while (taken := look(house, watch)).payload is None:
        assert taken.after is not None
        watch = taken.after
        house.clock.sleep(taken.wait_s)
    event: Handover = codec.from_plain(Handover, through_json(taken.payload)["handover"])
    return event


def wait_in_a_full_pool(house: SimHouse, line: SimLine) -> None:
    """Let ten minutes pass with nobody at it. The agents must never be without a lease."""
    for _ in range(int(FULL_S)):
        house.clock.sleep(1.0)
        assert len(house.live()) == 1
        assert line.lease_until_s is not None
        assert line.lease_until_s > house.clock.now_s()


def test_gang_that_could_not_be_seen_waits_for_a_worker_with_its_lease_and_is_watched_again() -> None:
    house = house_of()
    watch = started(house)
    house.clock.sleep(60.0)
    house.engine.blind(for_s=600.0)
    event = watch_until_handed_over(house, watch)
    assert event.kind == "look_failed"
    yielded_at_s = house.clock.now_s()
    wait_in_a_full_pool(house, line_of(house, watch))
    with pytest.raises(CouldNotLookError):  # this try ends so, by design; the next one watches again
        house.driver().handle(event, yielded_at_s=yielded_at_s)
    assert_trained_through(house, house.driver().start())
    assert "handed_over" in house.kinds()


def test_gang_that_reached_its_deadline_trains_on_until_a_worker_comes() -> None:
    house = house_of(deadline_after_s=300.0)
    watch = started(house)
    event = watch_until_handed_over(house, watch)
    assert event.kind == "deadline_reached"
    yielded_at_s = house.clock.now_s()
    wait_in_a_full_pool(house, line_of(house, watch))
    house.driver().handle(event, yielded_at_s=yielded_at_s)
    assert house.live() == ()
    (attempt,) = house.driver().attempts()
    assert house.steps_of(attempt.channel_root)[-1] > 850  # it had saved and left when it was asked to, not before


def test_gang_whose_watch_broke_waits_for_a_worker_with_its_lease() -> None:
    house = house_of()
    watch = started(house)
    house.clock.sleep(60.0)
    extend(house.hub.open(watch.channel_root), watch, house.clock)  # all that a trigger does then, beside its event
    wait_in_a_full_pool(house, line_of(house, watch))
    assert_trained_through(house, house.driver().start())


@pytest.mark.parametrize("thawed_after_s", [0.5, 30.0, 300.0])
def test_watcher_that_was_frozen_and_goes_on_meanwhile_takes_no_lease_away(thawed_after_s: float) -> None:
    house = house_of()
    frozen = started(house)
    house.clock.sleep(60.0)
    frozen = look(house, frozen).after or frozen
    house.engine.blind(for_s=600.0)
    assert watch_until_handed_over(house, frozen).kind == "look_failed"  # by the triggerer that took over
    house.engine.blind(for_s=0.0)
    house.clock.sleep(thawed_after_s)
    look(house, frozen)
    wait_in_a_full_pool(house, line_of(house, frozen))
    assert_trained_through(house, house.driver().start())


def assert_trained_through(house: SimHouse, outcome: Outcome) -> None:
    """The one gang there ever was trains to the end, each step once."""
    result = house.finish(outcome)
    assert isinstance(result, Succeeded)
    (attempt,) = house.driver().attempts()
    assert house.steps_of(attempt.channel_root) == list(range(1, 2401))
    assert house.max_live == 1
