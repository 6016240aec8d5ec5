from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from airflow_llmsched.agent.peer_line import Line, Silence
from airflow_llmsched.agent.peer_wire import News, Session, Told, told_of
from tests.support.waiting import wait_until

TOKEN = b"t" * 32


@pytest.fixture
def lines() -> Iterator[tuple[Line, Line]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    host, guest = Line(far, Session(TOKEN, gang="g")), Line(near, Session(TOKEN, gang="g", node="m1"))
    host.send(host.session.greeting())
    wait_until(lambda: guest.read() == [] and guest.session.is_open, 10)
    wait_until(lambda: host.read() == [] and host.session.is_open, 10)
    yield host, guest
    near.close()
    far.close()


def test_messages_arrive_whole_and_in_order(lines: tuple[Line, Line]) -> None:
    host, guest = lines
    assert guest.say(Told(here=True))
    assert guest.say(Told(armed=True))
    found: list[Told] = []
    wait_until(lambda: found.extend(map(told_of, host.read())) or len(found) == 2, 10)
    assert found == [Told(here=True), Told(armed=True)]


def test_nothing_is_said_before_the_hello() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        assert not Line(near, Session(TOKEN, gang="g", node="m1")).say(Told())


def test_who_does_not_listen_gets_the_newest_later_and_costs_no_memory(lines: tuple[Line, Line]) -> None:
    host, guest = lines
    abort = {"v": 1, "node": "m0", "at_s": 1.0, "fault": "f", "reason": "r" * 20_000, "rank": None}
    num_said = 0
    while host.say(News(at_s=1.0, abort=abort)):
        num_said += 1
        assert num_said < 10_000
    assert host.is_writing
    heard = []
    while host.is_writing:
        heard += guest.read()
        host.send()
    wait_until(lambda: heard.extend(guest.read()) or len(heard) == num_said, 10)
    assert host.say(News(at_s=2.0))


def test_end_of_the_other_side_is_seen_after_its_last_word(lines: tuple[Line, Line]) -> None:
    host, guest = lines
    guest.say(Told(left="done"))
    guest.close()
    (plain,) = wait_until(host.read, 10)
    assert told_of(plain).left == "done"
    with pytest.raises(ConnectionError):
        wait_until(host.read, 10)


def test_silence_counts_only_what_could_have_been_listened_to() -> None:
    silence = Silence(step_limit_s=1.0)
    silence.pass_by(0.4)
    silence.pass_by(3600.0)  # the listener itself stood still
    assert silence.s == pytest.approx(1.4)
    silence.end()
    assert silence.s == 0.0
