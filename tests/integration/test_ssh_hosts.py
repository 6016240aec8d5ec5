"""The machines that the tests of hosts run on: apart as real ones are, and reached as real ones are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_llmsched.engines import ssh
from airflow_llmsched.engines.ssh import Access, Command, Done, Machine, Unanswered
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.ssh_hosts import SshHosts

pytestmark = pytest.mark.server

LIMIT_S = 60.0


def access(machines: SshHosts, **told: float) -> Access:
    return Access(user="root", key=str(machines.key), known_hosts=str(machines.known_hosts), **told)


def on(machines: SshHosts, name: str, *argv: str, silence_limit_s: float = 20.0) -> ssh.Outcome:
    machine = Machine(name=name, address=machines.host(name).address)
    outcome = ssh.run({machine: Command(argv=argv, limit_s=LIMIT_S)}, access(machines, silence_limit_s=silence_limit_s))
    return outcome[machine]


def word(machines: SshHosts, name: str, *argv: str) -> str:
    done = on(machines, name, *argv)
    assert isinstance(done, Done), done
    return done.output.decode().strip()


def test_machines_have_processes_boots_and_disks_of_their_own(machines: SshHosts) -> None:
    boots = {word(machines, name, "cat", "/proc/sys/kernel/random/boot_id") for name in machines.names}
    assert len(boots) == len(machines.names) >= 8
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() not in boots
    mine = machines.names[0]
    word(machines, mine, "touch", str(machines.disk / "mine"))
    assert "mine" in word(machines, mine, "ls", str(machines.disk)).split()
    assert "mine" not in word(machines, machines.names[1], "ls", str(machines.disk)).split()
    assert str(os.getpid()) not in word(machines, mine, "ls", "/proc").split()
    (machines.disk_of(mine) / "mine").unlink()


def test_machine_that_is_cut_off_is_silent_and_answers_again_when_it_is_back(machines: SshHosts) -> None:
    name = machines.names[0]
    word(machines, name, "true")
    machines.cut_off(name)
    try:
        outcome = on(machines, name, "true", silence_limit_s=2.0)
        assert isinstance(outcome, Unanswered)
        assert "is silent" in outcome.reason
        assert isinstance(on(machines, machines.names[1], "true"), Done)
    finally:
        machines.join_again(name)
    assert word(machines, name, "echo", "back") == "back"


def test_reboot_ends_every_process_of_the_machine_and_of_no_other(machines: SshHosts) -> None:
    name, other = machines.names[:2]
    left = {}
    for each in (name, other):
        word(machines, each, "sh", "-c", "sleep 3600 </dev/null >/dev/null 2>&1 &")
        left[each] = wait_until(lambda each=each: machines.process_ids(each), LIMIT_S)
    boot = word(machines, name, "cat", "/proc/sys/kernel/random/boot_id")
    machines.reboot(name)
    assert not any(Path(f"/proc/{pid}").exists() for pid in left[name])
    assert machines.process_ids(other) == left[other]
    assert word(machines, name, "cat", "/proc/sys/kernel/random/boot_id") != boot
    machines.run(other, "kill", str(int(word(machines, other, "pgrep", "sleep"))))
