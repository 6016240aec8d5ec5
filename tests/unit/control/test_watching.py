"""Looking at a gang, in both the blocking and the deferred form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Watch
from airflow_llmsched.control.poller import HandOver, KeepWatching, WatchState
from airflow_llmsched.control.watching import look, step, watch
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.errors import InternalError
from airflow_llmsched.sim.channel import SimChannel
from airflow_llmsched.sim.scripts import RankFails, SimTraining
from tests.support.sim_house import SimHouse


def watched(house: SimHouse, **changes: object) -> WatchState:
    outcome = house.driver(**changes).start()
    assert isinstance(outcome, Watch)
    return outcome.state


def test_look_sees_the_gang_and_what_its_agents_wrote() -> None:
    house = SimHouse()
    state = watched(house)
    house.clock.sleep(20.0)
    seen = look(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert seen.error is None
    assert seen.status is not None
    assert seen.status.phase is GangPhase.RUNNING
    assert max(record.step for report in seen.reports for record in report.steps) > 5
    assert seen.cursor is not None
    assert seen.cursor.positions == {"n0": 1, "n1": 1}


@pytest.mark.parametrize("what", ["engine", "channel"])
def test_look_that_fails_is_an_observation(what: str) -> None:
    house = SimHouse()
    state = watched(house)
    (house.engine if what == "engine" else house.hub).blind(for_s=10.0)
    seen = look(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert seen.status is None
    assert seen.error


def test_look_at_an_ended_gang_reads_to_the_end_though_one_read_is_bounded() -> None:
    house = SimHouse(training=SimTraining(num_steps=10))
    state = watched(house)
    channel = house.hub.open(state.channel_root)
    for _ in range(30):
        house.clock.sleep(1.0)
        channel.read(state.cursor)

    class OneAtATime(SimChannel):
        def read(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
            found, _ = super().read(cursor)
            positions = dict(cursor.positions)
            for report in found[:1]:
                positions[report.node] = positions.get(report.node, 0) + 1
            return found[:1], ChannelCursor(positions=positions)

    slow = OneAtATime(house.hub, state.channel_root)
    event = watch(house.engine, slow, state, house.clock)
    assert isinstance(event, ev.GangEnded)
    assert (event.fault, event.last_step) == (None, 10)


def test_fault_of_our_own_is_not_taken_for_a_failed_look() -> None:
    house = SimHouse()
    state = watched(house)

    def broken(_handles: object) -> None:
        raise InternalError("a bug")

    house.engine.poll = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(InternalError):
        look(house.engine, house.hub.open(state.channel_root), state, house.clock)


def test_every_look_renews_the_lease_and_a_hand_over_extends_it() -> None:
    house = SimHouse()
    state = watched(house, lease_s=30.0, handoff_limit_s=600.0)
    house.clock.sleep(5.0)
    line = house.hub.line(state.channel_root)
    state, verdict = step(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert isinstance(verdict, KeepWatching)
    assert line.lease_until_s == house.clock.now_s() + 30.0
    late = replace(state, deadline_s=house.clock.now_s())
    _, verdict = step(house.engine, house.hub.open(state.channel_root), late, house.clock)
    assert isinstance(verdict, HandOver)
    assert line.lease_until_s == line.last_extension_s == house.clock.now_s() + 630.0


def test_lease_of_a_gang_that_failed_is_not_extended_for_a_successor_to_wait_out() -> None:
    house = SimHouse()
    state = watched(house, lease_s=30.0, handoff_limit_s=600.0)
    line = house.hub.line(state.channel_root)
    house.engine.faults.append(RankFails(at_step=1))
    house.clock.sleep(10.0)
    _, verdict = step(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert isinstance(verdict, HandOver)
    assert (line.lease_until_s or 0.0) <= house.clock.now_s() + 30.0


def test_watch_blocks_until_there_is_something_to_hand_over() -> None:
    house = SimHouse(training=SimTraining(num_steps=10))
    state = watched(house)
    event = watch(house.engine, house.hub.open(state.channel_root), state, house.clock)
    assert isinstance(event, ev.GangEnded)
    assert (event.fault, event.last_step) == (None, 10)


def test_watch_without_a_gang_only_waits() -> None:
    house = SimHouse()
    wake_at_s = house.clock.now_s() + 50.0
    event = watch(house.engine, None, WatchState(handle=None, wake_at_s=wake_at_s), house.clock)
    assert event == ev.Woke(at_s=wake_at_s)
