"""A guest that has to look for its host, loses it, and finds it again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.agent.peer_guest import HostAddress
from tests.support.peers import TOKEN, Link, Talk
from tests.support.waiting import wait_until


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(tmp_path, num_nodes=2)
    yield talk
    talk.close()


def test_host_that_is_not_to_be_found_yet_is_looked_for_again(talk: Talk) -> None:
    host = talk.host()
    answers: list[HostAddress | None] = []

    def find() -> HostAddress | None:
        answers.append(None)
        if len(answers) == 1:
            raise OSError("stale file handle")
        return HostAddress("localhost", talk.port, TOKEN) if len(answers) > 2 else None

    guest = talk.guest_that_finds("m1", find)
    wait_until(lambda: None not in (host.meeting(), guest.meeting()), 30)


def test_host_that_listens_later_is_called_again(talk: Talk) -> None:
    guest = talk.guest("m1")  # the port is bound, and refuses calls
    guest.meeting()
    time.sleep(0.5)
    assert not guest.is_watched()
    assert not any(peer.gone for peer in guest.others().values())  # the start limit watches over that
    host = talk.host()
    wait_until(lambda: None not in (host.meeting(), guest.meeting()), 30)


def test_glitch_below_the_limit_hurts_nothing_and_what_was_said_meanwhile_arrives(tmp_path: Path) -> None:
    talk = Talk(tmp_path, num_nodes=2, limit_s=8.0)
    link = Link(talk.port)
    try:
        host, guest = talk.host(), talk.guest("m1", port=link.port)
        wait_until(lambda: None not in (host.meeting(), guest.meeting()), 30)
        link.is_whole.clear()
        guest.armed(at_s=1.0)
        host.armed(at_s=1.0)
        time.sleep(2.0)
        assert (host.beginning(), guest.beginning()) == (None, None)
        assert not host.others()["m1"].gone
        link.is_whole.set()
        wait_until(lambda: host.beginning() and guest.beginning(), 30)
        assert (host.others()["m1"].gone, guest.others()["m0"].gone) == (False, False)
    finally:
        link.close()
        talk.close()


def test_dead_connection_is_given_up_for_a_new_one_before_the_limit(tmp_path: Path) -> None:
    talk = Talk(tmp_path, num_nodes=2, limit_s=8.0)
    dead, live = Link(talk.port), Link(talk.port)
    ports = [dead.port, live.port]
    try:
        host = talk.host()
        guest = talk.guest("m1", port=dead.port)
        wait_until(lambda: None not in (host.meeting(), guest.meeting()), 30)
        guest._address = HostAddress("127.0.0.1", ports[1], TOKEN)
        dead.is_whole.clear()  # and never whole again
        guest.armed(at_s=1.0)
        wait_until(lambda: host.others()["m1"].armed, 30)
        assert (host.others()["m1"].gone, guest.others()["m0"].gone) == (False, False)
    finally:
        dead.close()
        live.close()
        talk.close()


def test_host_where_nobody_listens_any_more_is_gone_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_llmsched.agent.peer_talk.CLOSED_LIMIT_S", 0.5)
    talk = Talk(tmp_path, num_nodes=2, limit_s=60.0)
    try:
        host, guest = talk.host(), talk.guest("m1")
        wait_until(lambda: None not in (host.meeting(), guest.meeting()), 30)
        host.close(limit_s=0.0)
        talk.listener.close()  # as a kernel does for a supervisor that was killed
        wait_until(lambda: guest.others()["m0"].gone, 30)
        assert "nobody listens there" in guest.others()["m0"].how
    finally:
        talk.close()


def test_host_that_left_with_a_word_is_not_gone(tmp_path: Path) -> None:
    talk = Talk(tmp_path, num_nodes=2, limit_s=0.6)
    try:
        host, guest = talk.host(), talk.guest("m1")
        wait_until(lambda: None not in (host.meeting(), guest.meeting()), 30)
        host.leave("terminated")
        wait_until(lambda: guest.others()["m0"].terminated, 30)
        host.close(limit_s=0.0)
        talk.listener.close()
        time.sleep(1.2)  # twice the limit
        assert not guest.others()["m0"].gone
        guest.leave("aborted")
        guest.close(limit_s=30.0)
    finally:
        talk.close()


def test_clock_that_differs_from_the_hosts_is_measured(talk: Talk) -> None:
    host, guest = talk.host(), talk.guest("m1")
    wait_until(guest.is_watched, 30)
    assert guest.ahead_s() == 0.0
    assert host.ahead_s() == 0.0
    guest._round_trip_s = 100.0
    guest._set_clock(1000.0, asked_s=time.monotonic() - 2.0, asked_wall_s=4000.0)
    assert guest.ahead_s() == pytest.approx(3001.0, abs=0.5)
    guest._set_clock(1000.0, asked_s=time.monotonic() - 50.0, asked_wall_s=9000.0)  # a slower answer says less
    assert guest.ahead_s() == pytest.approx(3001.0, abs=0.5)
