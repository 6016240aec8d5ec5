"""Against asyncssh's own server, which hands commands to a real shell as sshd does; real sshd: tests/integration."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from airflow_llmsched.engines.slurm.ssh_runner import SshRunner
from airflow_llmsched.engines.ssh import Access, Machine
from airflow_llmsched.errors import CouldNotLookError

_TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], sys.stdin.read(), dict(os.environ)]))"
_LOGIN = {"PATH": "/usr/bin:/bin", "SBATCH_PARTITION": "mine", "SQUEUE_STATES": "PD", "SLURM_CLUSTERS": "other"}


async def _shell(process: Any) -> None:
    child = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        process.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_LOGIN,
    )
    out, err = await child.communicate(await process.stdin.read())
    process.stdout.write(out)
    process.stderr.write(err)
    if child.returncode is not None and child.returncode < 0:
        process.exit_with_signal("KILL")
    else:
        process.exit(child.returncode)


async def _listen(folder: Path) -> Any:
    return await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[str(folder / "host")],
        authorized_client_keys=str(folder / "user.pub"),
        process_factory=_shell,
        encoding=None,
    )


@pytest.fixture
def login(tmp_path: Path) -> Iterator[tuple[Machine, Access]]:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    for name in ("host", "user"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(tmp_path / name))
        key.write_public_key(str(tmp_path / f"{name}.pub"))
    server = asyncio.run_coroutine_threadsafe(_listen(tmp_path), loop).result(timeout=60)
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.get_port()} {(tmp_path / 'host.pub').read_text()}")
    machine = Machine(name="login", address="127.0.0.1", port=server.get_port())
    yield machine, Access(user="me", key=str(tmp_path / "user"), known_hosts=str(known), silence_limit_s=60.0)
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)


def test_arguments_and_input_arrive_as_they_are_through_the_far_shell(login: tuple[Machine, Access]) -> None:
    machine, access = login
    arguments = ["a b", "", "$(touch x)", 'it\'s "q" `id`', "line\nline", "*", "ü", "--format=%i|%j"]
    runner = SshRunner(machine=machine, access=access, environment={"SLURM_TIME_FORMAT": "%s"})
    done = runner.run([sys.executable, "-S", "-c", _TELL, *arguments], stdin="#!/bin/sh\nü", limit_s=60.0)
    assert (done.exit_code, done.stderr) == (0, "")
    argv, read, environment = json.loads(done.stdout)
    assert (argv, read) == (arguments, "#!/bin/sh\nü")
    assert environment["SLURM_TIME_FORMAT"] == "%s"
    assert not {"SBATCH_PARTITION", "SQUEUE_STATES", "SLURM_CLUSTERS"} & set(environment)


def test_exit_codes_come_back(login: tuple[Machine, Access]) -> None:
    machine, access = login
    done = SshRunner(machine=machine, access=access).run(["sh", "-c", "echo out; echo err >&2; exit 3"], limit_s=60.0)
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_command_that_is_not_there_or_was_killed_is_no_answer(login: tuple[Machine, Access]) -> None:
    machine, access = login
    runner = SshRunner(machine=machine, access=access)
    with pytest.raises(CouldNotLookError, match="is Slurm's client there"):
        runner.run(["no-such-command"], limit_s=60.0)
    with pytest.raises(CouldNotLookError, match="was killed"):
        runner.run(["sh", "-c", "kill -9 $$"], limit_s=60.0)


def test_a_machine_that_cannot_be_trusted_or_reached_is_no_answer(login: tuple[Machine, Access]) -> None:
    machine, access = login
    Path(access.known_hosts).write_text("")
    with pytest.raises(CouldNotLookError, match="another host key"):
        SshRunner(machine=machine, access=access).run(["true"], limit_s=60.0)
    nowhere = Machine(name="nowhere", address="127.0.0.1", port=9)
    quick = Access(user="me", key=access.key, known_hosts=access.known_hosts, silence_limit_s=0.05)
    with pytest.raises(CouldNotLookError, match=shlex.quote("nowhere")):
        SshRunner(machine=nowhere, access=quick).run(["true"], limit_s=60.0)
