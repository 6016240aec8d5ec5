"""The host against guests that vanish and strangers that mean harm."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.agent import peer_host
from airflow_llmsched.agent.meeting import Meeting
from airflow_llmsched.agent.peer_line import Line
from airflow_llmsched.agent.peer_wire import Session, Told, news_of
from airflow_llmsched.agent.spool import write_json
from tests.support.peers import TOKEN, Link, Talk, all_see
from tests.support.waiting import wait_until


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(tmp_path)
    yield talk
    talk.close()


def call(talk: Talk) -> socket.socket:
    return socket.create_connection(("127.0.0.1", talk.port), timeout=30)


def is_hung_up(caller: socket.socket) -> bool:
    caller.settimeout(30)
    try:
        while caller.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def test_silent_guest_is_gone_after_the_limit_and_not_before(tmp_path: Path) -> None:
    talk = Talk(tmp_path, num_nodes=2, limit_s=1.5)
    link = Link(talk.port)
    try:
        host, guest = talk.host(), talk.guest("m1", port=link.port)
        wait_until(lambda: host.others()["m1"].here or guest.meeting(), 30)
        began_s = time.monotonic()
        link.is_whole.clear()
        wait_until(lambda: host.others()["m1"].gone, 30)
        assert time.monotonic() >= began_s + 1.5 - 0.5  # its last word may have come a beat before
        assert "nothing was heard of it for 1.5 s" in host.others()["m1"].how
        wait_until(lambda: guest.others()["m0"].gone, 30)
    finally:
        link.close()
        talk.close()


def test_guest_that_hung_up_without_a_word_is_gone_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_llmsched.agent.peer_talk.CLOSED_LIMIT_S", 0.5)
    talk = Talk(tmp_path, num_nodes=2, limit_s=60.0)
    try:
        host, guest = talk.host(), talk.guest("m1")
        guest.meeting()
        wait_until(lambda: host.others()["m1"].here, 30)
        guest.close(limit_s=0.0)  # as a kernel does for a supervisor that was killed
        wait_until(lambda: host.others()["m1"].gone, 30)
        assert "did not come back" in host.others()["m1"].how
    finally:
        talk.close()


def test_guest_that_left_with_a_word_is_not_gone(tmp_path: Path) -> None:
    talk = Talk(tmp_path, num_nodes=2, limit_s=0.5)
    try:
        host, guest = talk.host(), talk.guest("m1")
        guest.meeting()
        wait_until(lambda: host.others()["m1"].here, 30)
        guest.leave("terminated")
        guest.close(limit_s=30.0)
        wait_until(lambda: host.others()["m1"].terminated, 30)
        time.sleep(1.0)  # twice the limit
        assert not host.others()["m1"].gone
    finally:
        talk.close()


def test_guest_that_never_came_is_not_gone_but_late(tmp_path: Path) -> None:
    talk = Talk(tmp_path, num_nodes=2, limit_s=0.3)
    try:
        host = talk.host()
        time.sleep(0.6)  # twice the limit
        assert (host.others()["m1"].here, host.others()["m1"].gone) == (False, False)
    finally:
        talk.close()


def test_strangers_cannot_keep_guests_out(talk: Talk) -> None:
    host = talk.host()
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(call(talk)) for _ in range(peer_host.MAX_STRANGERS + 20)]
        assert is_hung_up(strangers[0])  # the oldest gives way
        guests = [talk.guest("m1"), talk.guest("m2")]
        wait_until(all_see(lambda end: end.meeting(), [host, *guests]), 30)


def test_stranger_that_says_nothing_is_hung_up_on(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_host, "STRANGER_LIMIT_S", 0.2)
    talk.host()
    with call(talk) as stranger:
        assert is_hung_up(stranger)


@pytest.mark.parametrize("rubbish", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + os.urandom(5000), b"[[[[\n", b"{}\n"])
def test_rubbish_hurts_nobody(talk: Talk, rubbish: bytes) -> None:
    ends = talk.all()
    with call(talk) as stranger:
        with contextlib.suppress(ConnectionError):
            stranger.sendall(rubbish)
        assert is_hung_up(stranger)
    wait_until(all_see(lambda end: end.meeting(), ends), 30)


def test_holder_of_another_gangs_token_learns_nothing(talk: Talk) -> None:
    host, impostor = talk.host(), talk.guest("m1", token=b"u" * 32)
    impostor.meeting()
    wait_until(lambda: impostor._trouble or impostor._line is None, 30)
    assert (impostor.is_watched(), host.others()["m1"].here) == (False, False)


def hello(talk: Talk, node: str) -> Line:
    """Call as a node of the gang that holds the token."""
    line = Line(call(talk), Session(TOKEN, gang="g", node=node))
    with contextlib.suppress(ConnectionError):
        wait_until(lambda: line.read() or line.session.is_open, 30)
    return line


def test_node_that_is_none_of_the_gangs_is_hung_up_on(talk: Talk) -> None:
    talk.host()
    line = hello(talk, "m7")
    line.socket.setblocking(True)
    assert is_hung_up(line.socket)


def test_guest_that_calls_again_replaces_its_older_call(talk: Talk) -> None:
    host = talk.host()
    first = hello(talk, "m1")
    first.say(Told(here=True))
    wait_until(lambda: host.others()["m1"].here, 30)
    second = hello(talk, "m1")
    assert is_hung_up(first.socket)
    second.say(Told(here=True, armed=True))
    wait_until(lambda: host.others()["m1"].armed, 30)
    news = [news_of(plain) for plain in wait_until(second.read, 30)]
    assert news[-1].meeting == tuple(Meeting("127.0.0.1", 20123))


def test_guest_that_talks_nonsense_is_hung_up_on_and_may_call_again(talk: Talk) -> None:
    host = talk.host()
    line = hello(talk, "m1")
    body = b"[1]"
    line.send(line.session._proof("guest", 0, body) + b" " + body + b"\n")
    line.socket.setblocking(True)
    assert is_hung_up(line.socket)
    guest = talk.guest("m1")
    wait_until(lambda: guest.meeting() is None and host.others()["m1"].here, 30)


def test_large_gang_gets_room_for_its_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        peer_host.make_room(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
        peer_host.make_room(400)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (656, hard)
        peer_host.make_room(hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_caller_without_room_waits_and_is_taken_in_later(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    host = talk.host()
    real_accept, num_refused = talk.listener.accept, 0

    def accept() -> tuple[socket.socket, object]:
        nonlocal num_refused
        if num_refused < 3:
            num_refused += 1
            raise OSError(errno.EMFILE, "too many open files")
        return real_accept()

    monkeypatch.setattr(host, "_listener", types.SimpleNamespace(accept=accept))
    ends = [host, talk.guest("m1"), talk.guest("m2")]
    wait_until(all_see(lambda end: end.meeting(), ends), 30)
    assert num_refused == 3


def test_everybody_learns_the_ports_that_all_hold(tmp_path: Path) -> None:
    talk = Talk(tmp_path, ports={"m0": (20001,), "m1": (), "m2": (20002, 20003)})
    try:
        ends = talk.all()
        wait_until(all_see(lambda end: end.meeting(), ends), 60)
        for end in ends:
            assert end.ports() == {"m0": (20001,), "m1": (), "m2": (20002, 20003)}
    finally:
        talk.close()


def test_each_guest_is_told_what_the_hosts_launcher_asks_of_it_alone(talk: Talk) -> None:
    host, first, second = talk.all()
    wait_until(all_see(lambda end: end.meeting(), [host, first, second]), 60)
    assert [end.daemon() for end in (host, first, second)] == [None, None, None]
    folder = talk.gang("m0").node("m0").path / "daemons"
    folder.mkdir()
    write_json(folder / "10.0.0.1.json", {"v": 1, "argv": ["orted", "-for", "m1"]})
    write_json(folder / "10.0.0.0.json", {"v": 1, "argv": ["orted", "-for", "m0"]})
    wait_until(lambda: host.daemon() and first.daemon(), 60)
    assert host.daemon() == ["orted", "-for", "m0"]
    assert first.daemon() == ["orted", "-for", "m1"]
    assert second.daemon() is None


def test_a_gang_is_ending_once_trainers_of_some_node_are_done_and_not_for_nodes_that_have_none(tmp_path: Path) -> None:
    talk = Talk(tmp_path, helper_nodes=frozenset({"m2"}))
    try:
        host, first, second = talk.all()
        wait_until(all_see(lambda end: end.meeting(), [host, first, second]), 60)
        second.done(at_s=1.0)  # it has no trainers to wait for
        wait_until(lambda: host.others()["m2"].done, 60)
        assert not any(peer.ending for end in (host, first, second) for peer in end.others().values())
        host.done(at_s=2.0)
        wait_until(lambda: all(peer.ending for end in (first, second) for peer in end.others().values()), 60)
        assert not any(peer.done for end in (first, second) for peer in end.others().values())
    finally:
        talk.close()
