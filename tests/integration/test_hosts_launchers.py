"""Launchers and helpers on hosts that real sshd and the supervisors' own talk alone connect."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_llmsched.domain.gang import GangPhase, GangRole
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.placement import HelperSlot
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.testing.engine_contract import SUCCEEDS, ended, gang_of, nodes_of, submit
from tests.support.hosts_engine import HostsHarness

if TYPE_CHECKING:
    from tests.support.ssh_hosts import SshHosts

pytestmark = pytest.mark.server


@pytest.fixture
def harness(tmp_path: Path, machines: SshHosts) -> Iterator[HostsHarness]:
    harness = HostsHarness(tmp_path, machines)
    yield harness
    harness.close()


def test_loader_on_another_host_is_reached_where_its_trainers_are_told_and_ends_with_them(
    harness: HostsHarness,
) -> None:
    loader = (
        "import os, socket\n"
        "server = socket.create_server(('', int(os.environ['MASTER_PORT'])))\n"  # sets SO_REUSEADDR
        "while True: server.accept()[0].sendall(b'a shard')"
    )
    trainer = (
        "import json, os, socket, time\n"
        "host, port = json.loads(os.environ['LLMSCHED_ADDRESSES'])['data_loader'][0].rsplit(':', 1)\n"
        "for _ in range(600):\n"
        "    try:\n"
        "        assert socket.create_connection((host, int(port))).recv(100) == b'a shard'\n"
        "        break\n"
        "    except OSError: time.sleep(0.1)\n"
        "else: raise SystemExit('no loader')"
    )
    gang = gang_of(harness, [SUCCEEDS] * 3, exit_grace_s=60.0)
    helper = HelperSlot(role=RoleKind.DATA_LOADER, index=0, node=nodes_of(harness)[1].id)
    gang = replace(
        gang,
        command=(sys.executable, "-S", "-E", "-c", trainer),
        placement=replace(gang.placement, helpers=(helper,)),
        roles=(GangRole(kind=helper.role, command=(sys.executable, "-S", "-E", "-c", loader)),),
    )
    status = ended(harness, submit(harness, gang), limit_s=120.0)
    assert status.phase is GangPhase.SUCCEEDED, status


def test_mpirun_starts_its_daemons_on_hosts_without_ssh_between_them(harness: HostsHarness) -> None:
    says = "import os; print(*(os.environ[name] for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LLMSCHED_NODE')))"
    gang = replace(
        gang_of(harness, [SUCCEEDS] * 4, exit_grace_s=60.0),
        command=(sys.executable, "-S", "-E", "-c", says),
        launcher=Launcher.MPIRUN,
    )
    handle = submit(harness, gang)
    status = ended(harness, handle, limit_s=120.0)
    assert status.phase is GangPhase.SUCCEEDED, status
    first, second = (node.id for node in nodes_of(harness)[:2])
    assert [harness.engine.log_tail(handle, rank=rank, num_lines=1) for rank in range(4)] == [
        f"0 0 4 {first}",
        f"1 1 4 {first}",
        f"2 0 4 {second}",
        f"3 1 4 {second}",
    ]
