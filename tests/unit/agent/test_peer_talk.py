"""What either end sees of the other: one host, its guests, real sockets, no supervisors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.agent.spool import create_json, read_json
from tests.support.peers import MEETING, Talk, all_see
from tests.support.waiting import wait_until

ABORT = {"v": 1, "node": "m1", "at_s": 5.0, "fault": "rank_failed", "reason": "rank 3 exited", "rank": 3}
OTHER_ABORT = {**ABORT, "node": "m2", "reason": "rank 4 exited", "rank": 4}
STOP = {"v": 1, "at_s": 5.0, "grace_s": 2.5}


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(tmp_path)
    yield talk
    talk.close()


def test_nobody_may_go_before_all_are_there(talk: Talk) -> None:
    host, one = talk.host(), talk.guest("m1")
    host.meeting()
    one.meeting()
    wait_until(lambda: host.others()["m1"].here, 30)
    assert (host.meeting(), one.meeting()) == (None, None)
    two = talk.guest("m2")
    wait_until(two.is_watched, 30)
    assert (host.meeting(), one.meeting()) == (None, None)  # it is there, but not ready to go
    wait_until(all_see(lambda end: end.meeting() == MEETING, [host, one, two]), 30)


def test_ranks_are_released_once_those_of_all_nodes_stand_ready(talk: Talk) -> None:
    ends = talk.all()
    wait_until(all_see(lambda end: end.meeting(), ends), 30)
    for end in ends[:-1]:
        end.armed(at_s=1.0)
    wait_until(lambda: ends[0].others()["m1"].armed, 30)
    assert [end.beginning() for end in ends] == [None] * 3
    ends[-1].armed(at_s=1.0)
    wait_until(all_see(lambda end: end.beginning(), ends), 30)
    moments_s = [end.beginning() for end in ends]
    assert max(moments_s) - min(moments_s) < 5.0  # the same one, told as how far off it is


def test_all_are_done_once_each_is(talk: Talk) -> None:
    ends = talk.all()
    for end in ends[:-1]:
        end.done(at_s=1.0)
    wait_until(lambda: ends[0].others()["m1"].done, 30)
    assert not ends[1].others()["m0"].done
    ends[-1].done(at_s=1.0)
    wait_until(all_see(lambda end: all(peer.done for peer in end.others().values()), ends), 30)
    assert all(talk.gang(node).node(node).done.exists() for node in talk.nodes)


def test_first_reason_to_give_up_reaches_all_and_is_kept_by_each(talk: Talk) -> None:
    ends = talk.all()
    ends[1].announce(ABORT)
    wait_until(all_see(lambda end: end.abort() == ABORT, ends), 30)
    ends[0].announce(OTHER_ABORT)
    ends[2].announce(OTHER_ABORT)
    assert [end.abort() for end in ends] == [ABORT] * 3
    assert [read_json(talk.gang(node).abort) for node in talk.nodes] == [ABORT] * 3


def test_hosts_own_reason_reaches_its_guests(talk: Talk) -> None:
    ends = talk.all()
    create_json(talk.gang("m0").abort, {**ABORT, "node": "m0"})  # as an engine does that gives a start up
    wait_until(all_see(lambda end: end.abort() == {**ABORT, "node": "m0"}, ends), 30)


@pytest.mark.parametrize("first", ["m0", "m2"])
def test_order_to_stop_given_to_one_reaches_all(talk: Talk, first: str) -> None:
    ends = talk.all()
    create_json(talk.gang(first).stop, STOP)
    wait_until(all_see(lambda end: end.stop() == STOP, ends), 30)
    assert [read_json(talk.gang(node).stop) for node in talk.nodes] == [STOP] * 3


def test_gang_that_is_given_up_or_stopped_goes_nowhere(talk: Talk) -> None:
    host, one = talk.host(), talk.guest("m1")
    create_json(talk.gang("m1").stop, STOP)
    wait_until(all_see(lambda end: end.stop(), [host, one]), 30)
    two = talk.guest("m2")
    wait_until(all_see(lambda end: end.meeting() or end.stop(), [host, one, two]), 30)
    wait_until(lambda: host.others()["m2"].here, 30)
    assert [end.meeting() for end in (host, one, two)] == [None] * 3


@pytest.mark.parametrize("noticed", ["m0", "m2"])
def test_notice_reaches_all_by_their_own_clocks(talk: Talk, noticed: str) -> None:
    ends = talk.all()
    deadline_s = time.time() + 90.0
    create_json(talk.gang(noticed).node(noticed).notice, {"v": 1, "at_s": time.time(), "deadline_s": deadline_s})
    wait_until(all_see(lambda end: end.notices().get(noticed), ends), 30)
    assert [end.notices()[noticed] for end in ends] == pytest.approx([deadline_s] * 3, abs=10.0)


def test_end_waits_until_the_others_know(talk: Talk) -> None:
    ends = talk.all()
    wait_until(all_see(lambda end: end.meeting(), ends), 30)
    for end in ends:
        end.done(at_s=1.0)
    wait_until(all_see(lambda end: all(peer.done for peer in end.others().values()), ends), 30)
    for end in ends[1:]:
        end.leave("done")
        end.close(limit_s=30.0)
    ends[0].leave("done")
    began_s = time.monotonic()
    ends[0].close(limit_s=60.0)
    assert time.monotonic() < began_s + 30.0
    assert not any(peer.gone for peer in ends[0].others().values())


def test_supervisor_is_woken_by_news(tmp_path: Path) -> None:
    woken: list[float] = []
    talk = Talk(tmp_path, wake=lambda: woken.append(time.monotonic()))
    try:
        host, one = talk.host(), talk.guest("m1")
        wait_until(lambda: one.is_watched() and woken, 30)
        woken.clear()
        one.armed(at_s=1.0)
        wait_until(lambda: woken, 30)
        assert host.others()["m1"].armed
    finally:
        talk.close()


def test_broken_talk_is_told_and_not_taken_for_peace(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    host = talk.host()
    monkeypatch.setattr(host, "_tell", lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        wait_until(lambda: host.others() is None, 30)
