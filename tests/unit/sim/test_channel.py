"""The simulated channel behaves like the shared directory."""

from __future__ import annotations

import pytest

from airflow_llmsched.control.context import Watch
from airflow_llmsched.domain.progress import ChannelCursor
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.ports import RunChannel
from tests.support.sim_house import SimHouse

START = ChannelCursor(positions={})


def started(house: SimHouse) -> RunChannel:
    outcome = house.driver().start()
    assert isinstance(outcome, Watch)
    return house.hub.open(outcome.state.channel_root)


def test_reading_on_from_the_cursor_misses_nothing_and_repeats_nothing() -> None:
    house = SimHouse()
    channel, cursor, piecewise = started(house), START, []
    for _ in range(60):
        house.clock.sleep(1.0)
        found, cursor = channel.read(cursor)
        piecewise += [step.step for report in found for step in report.steps]
    assert piecewise == list(range(1, 41))
    assert piecewise == [step.step for report in channel.read(START)[0] for step in report.steps]


def test_reports_are_numbered_from_1_per_node_and_only_rank_0s_node_reports_steps() -> None:
    house = SimHouse()
    channel = started(house)
    for _ in range(3):
        house.clock.sleep(10.0)
        channel.read(START)
    found, _ = channel.read(START)
    for node in ("n0", "n1"):
        assert [report.seq for report in found if report.node == node] == [1, 2, 3]
    assert not any(report.steps for report in found if report.node == "n1")


def test_ended_gang_reports_once_more_and_then_is_silent() -> None:
    house = SimHouse()
    channel = started(house)
    house.clock.sleep(200.0)
    _, cursor = channel.read(START)
    assert channel.read(cursor) == ([], cursor)


def test_attempt_that_never_reported_has_an_empty_channel() -> None:
    assert SimHouse().hub.open("nowhere").read(START) == ([], START)


def test_blind_channel_is_an_error_and_not_empty() -> None:
    house = SimHouse()
    channel = started(house)
    house.hub.blind(for_s=5.0)
    with pytest.raises(CouldNotLookError):
        channel.read(START)
    with pytest.raises(CouldNotLookError):
        channel.renew(until_s=1.0)
    house.clock.sleep(5.0)
    channel.read(START)
