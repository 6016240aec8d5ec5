"""Against asyncssh's own server on loopback; against real sshd, cut off and rebooted: tests/contract."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from airflow_llmsched.engines import ssh
from airflow_llmsched.engines.ssh import Access, Command, Done, Machine, Unanswered
from airflow_llmsched.errors import SpecError
from tests.support.waiting import wait_until


@dataclass
class Server:
    """One SSH server, what it was asked to run, and how many logged in."""

    machine: Machine
    access: Access
    asked: list[str]
    logins: list[str]
    connections: list[Any]
    release: Callable[[], Any]


async def serve(process: Any, released: asyncio.Event) -> None:
    """Do what the command's first word says."""
    word = process.command.split()[0]
    if word == "answers":
        word = await answer(process, released)
    if word == "flood":
        while True:
            process.stdout.write(b"x" * 65536)
            await process.stdout.drain()
    if word == "hang":
        await asyncio.sleep(3600)
    if word == "wait":
        await released.wait()
    if word != "gone":
        process.stdout.write(await process.stdin.read())
    process.stderr.write(b"a word\n")
    process.exit(int(process.command.split()[1]) if word in ("exit", "gone") else 0)


async def answer(process: Any, released: asyncio.Event) -> str:
    """Answer each line until there are no more, or one is a word: return that one."""
    while line := (await process.stdin.readline()).strip():
        if line in (b"flood", b"hang", b"gone"):
            return str(line.decode())
        if line == b"wait":
            await released.wait()
        if line == b"babble":
            num_more = int(process.command.split()[1])
            process.stdout.write(b"ANSWER:first\n" + b"ANSWER:2nd\n"[:num_more])
            continue
        process.stdout.write(b"a banner\nANSWER:" + line + b"\n")
    return "echo"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server whose commands are words: ``echo`` what it reads, ``flood``, ``hang``, ``exit N``, ``wait``.

    ``answers`` answers each line that it reads; for a line that is one of the other words it does that.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    for name in ("host", "user"):
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / name))
        asyncssh.read_private_key(str(tmp_path / name)).write_public_key(str(tmp_path / f"{name}.pub"))
    asked: list[str] = []
    logins: list[str] = []
    connections: list[Any] = []
    released = asyncio.Event()

    async def run(process: Any) -> None:
        asked.append(process.command)
        with contextlib.suppress(BrokenPipeError):  # raised from here, it would break the connection of all commands
            await serve(process, released)

    class Watched(asyncssh.SSHServer):
        def connection_made(self, connection: Any) -> None:
            connections.append(connection)

        def begin_auth(self, username: str) -> bool:
            logins.append(username)
            return True

    async def listen() -> Any:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Watched,
            server_host_keys=[str(tmp_path / "host")],
            authorized_client_keys=str(tmp_path / "user.pub"),
            process_factory=run,
            encoding=None,
        )

    listener = asyncio.run_coroutine_threadsafe(listen(), loop).result(30)
    port = listener.get_port()
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")
    access = Access(user="trainer", key=str(tmp_path / "user"), known_hosts=str(known), silence_limit_s=30.0)
    machine = Machine(name="h1", address="127.0.0.1", port=port)
    yield Server(
        machine=machine,
        access=access,
        asked=asked,
        logins=logins,
        connections=connections,
        release=lambda: loop.call_soon_threadsafe(released.set),
    )
    loop.call_soon_threadsafe(listener.close)
    loop.call_soon_threadsafe(loop.stop)


def ask(server: Server, *argv: str, access: Access | None = None, **told: Any) -> ssh.Outcome:
    return ssh.run({server.machine: Command(argv=argv, **told)}, access or server.access)[server.machine]


def test_command_gets_what_it_reads_and_its_words_come_back(server: Server) -> None:
    data = bytes(range(256)) * 4096
    assert ask(server, "echo", reads=data) == Done(output=data, errors="a word\n", code=0)
    assert ask(server, "exit", "7") == Done(output=b"", errors="a word\n", code=7)


def test_arguments_reach_the_remote_shell_quoted(server: Server) -> None:
    ask(server, "echo", "a b", "$(touch /tmp/x)", "it's", "")
    assert server.asked == ["""echo 'a b' '$(touch /tmp/x)' 'it'"'"'s' ''"""]


def test_one_connection_serves_all_commands(server: Server) -> None:
    for _ in range(5):
        ask(server, "echo")
    assert server.logins == ["trainer"]


def test_command_whose_connection_broke_is_run_again_over_another(server: Server) -> None:
    ask(server, "echo")
    server.connections[0].abort()
    assert isinstance(ask(server, "echo"), Done)
    assert len(server.connections) == 2


def test_flood_is_not_read_to_its_end(server: Server) -> None:
    outcome = ask(server, "flood", max_output_bytes=100_000)
    assert isinstance(outcome, Unanswered)
    assert "more than 100000 bytes" in outcome.reason
    assert isinstance(ask(server, "echo"), Done)


def test_command_that_does_not_end_in_time_is_given_up_while_the_connection_stays(server: Server) -> None:
    outcome = ask(server, "hang", limit_s=0.5)
    assert isinstance(outcome, Unanswered)
    assert "did not answer within 0.5 s" in outcome.reason
    assert isinstance(ask(server, "echo"), Done)
    assert len(server.connections) == 1


def test_machine_with_another_host_key_is_not_spoken_to(server: Server, tmp_path: Path) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    for text in ("", f"[127.0.0.1]:{server.machine.port} {other}"):
        known = tmp_path / f"known-{len(text)}"
        known.write_text(text)
        access = Access(user="trainer", key=server.access.key, known_hosts=str(known))
        outcome = ask(server, "echo", access=access)
        assert isinstance(outcome, Unanswered)
        assert outcome.is_refused
        assert "h1" in outcome.reason
        assert f"ssh-keyscan -p {server.machine.port} 127.0.0.1" in outcome.reason
    assert server.asked == []


def test_key_that_opens_nothing_is_said_with_the_user(server: Server, tmp_path: Path) -> None:
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / "stranger"))
    access = Access(user="trainer", key=str(tmp_path / "stranger"), known_hosts=server.access.known_hosts)
    outcome = ask(server, "echo", access=access)
    assert isinstance(outcome, Unanswered)
    assert outcome.is_refused
    assert "lets 'trainer' not in" in outcome.reason


def test_machine_that_refuses_connections_is_tried_until_it_has_been_silent_for_too_long(server: Server) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        machine = Machine(name="h2", address="127.0.0.1", port=taken.getsockname()[1])
        access = Access(user="x", key=server.access.key, known_hosts=server.access.known_hosts, silence_limit_s=0.5)
        began_s = time.monotonic()
        outcome = ssh.run({machine: Command(argv=("true",))}, access)[machine]
    assert isinstance(outcome, Unanswered)
    assert "cannot be reached" in outcome.reason
    assert not outcome.is_refused
    assert time.monotonic() - began_s >= 0.3


def test_one_machine_that_cannot_be_reached_leaves_the_others_answers(server: Server) -> None:
    nowhere = Machine(name="h2", address="127.0.0.1", port=1)
    access = Access(user="trainer", key=server.access.key, known_hosts=server.access.known_hosts, silence_limit_s=0.2)
    outcomes = ssh.run({each: Command(argv=("echo",), reads=b"x") for each in (nowhere, server.machine)}, access)
    assert isinstance(outcomes[nowhere], Unanswered)
    assert outcomes[server.machine] == Done(output=b"x", errors="a word\n", code=0)


def test_nothing_to_run_costs_nothing(server: Server) -> None:
    assert ssh.run({}, server.access) == {}


@pytest.mark.parametrize(
    ("name", "value"), [("key", "relative"), ("known_hosts", ""), ("user", ""), ("silence_limit_s", 0.0)]
)
def test_access_that_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=name):
        Access(**{"user": "x", "key": "/k", "known_hosts": "/h", name: value})


def test_commands_that_may_take_long_leave_room_for_a_look(server: Server) -> None:
    access = replace(server.access, max_sessions=4)
    limits = {"access": access, "limit_s": 120.0}
    waiting = [threading.Thread(target=ask, args=(server, "wait", str(at)), kwargs=limits) for at in range(6)]
    for each in waiting:
        each.start()
    try:
        give_up_s = time.monotonic() + 60.0
        while not server.asked and time.monotonic() < give_up_s:
            time.sleep(0.01)
        assert isinstance(ask(server, "echo", access=access, limit_s=20.0), Done)
    finally:
        server.release()
        for each in waiting:
            each.join(60.0)
    assert len(server.asked) == 7, "each had its turn"


def told(server: Server, line: bytes, *argv: str, **more: Any) -> ssh.Outcome:
    return ask(server, "answers", *argv, reads=line + b"\n", answer=b"ANSWER:", **more)


def test_program_that_answers_line_by_line_is_started_once(server: Server) -> None:
    for line in (b"one", b"two", b"three"):
        assert told(server, line) == Done(output=b"a banner\nANSWER:" + line + b"\n", errors="", code=0)
    assert server.asked == ["answers"]
    assert isinstance(told(server, b"one", "otherwise"), Done)
    assert isinstance(ask(server, "echo"), Done)
    assert server.asked == ["answers", "answers otherwise", "echo"]


def test_program_that_is_busy_is_not_waited_for(server: Server) -> None:
    told(server, b"one")
    busy = threading.Thread(target=told, args=(server, b"wait"))
    busy.start()
    line = ssh._loop().lines[server.machine, server.access]
    wait_until(line._keeping.locked, 60.0)
    assert told(server, b"two") == Done(output=b"a banner\nANSWER:two\n", errors="a word\n", code=0)
    server.release()
    busy.join(60.0)
    assert server.asked == ["answers", "answers"]
    told(server, b"three")
    assert server.asked == ["answers", "answers"], "the first one is still there"


def test_program_that_ended_instead_is_told_by_its_code_and_started_anew_the_next_time(server: Server) -> None:
    told(server, b"one", "3")
    assert told(server, b"gone", "3") == Done(output=b"", errors="a word\n", code=3)
    assert isinstance(told(server, b"two", "3"), Done)
    assert server.asked == ["answers 3", "answers 3"]


def test_program_that_goes_wrong_is_the_end_of_it_and_of_nothing_else(server: Server) -> None:
    told(server, b"one")
    silent = told(server, b"hang", limit_s=0.5)
    assert isinstance(silent, Unanswered)
    assert "did not answer within 0.5 s" in silent.reason
    flood = told(server, b"flood", max_output_bytes=100_000)
    assert isinstance(flood, Unanswered)
    assert flood.is_refused
    assert isinstance(told(server, b"two"), Done)
    assert server.asked == ["answers"] * 3


@pytest.mark.parametrize("num_more", [0, 1, 7, 10, 11])
def test_first_answer_is_the_answer_however_what_follows_it_is_cut(server: Server, num_more: int) -> None:
    """A second answer that nobody asked for, or the part of it that came along, is no answer to what is asked next."""
    for _ in range(2):
        assert told(server, b"babble", str(num_more)) == Done(output=b"ANSWER:first\n", errors="", code=0)
    assert len(server.asked) == (2 if num_more else 1)


def test_answer_that_is_too_long_is_not_read_whatever_comes_with_it(server: Server) -> None:
    assert isinstance(told(server, b"x" * 83, max_output_bytes=100), Done)  # 9 of the banner, 7 and a line's end
    outcome = told(server, b"x" * 84, max_output_bytes=100)
    assert isinstance(outcome, Unanswered)
    assert "wrote more than 100 bytes" in outcome.reason


def test_program_whose_connection_broke_is_asked_again_over_another(server: Server) -> None:
    told(server, b"one")
    server.connections[0].abort()
    assert told(server, b"two") == Done(output=b"a banner\nANSWER:two\n", errors="", code=0)
    assert (len(server.asked), len(server.connections)) == (2, 2)
