"""Launchers and helpers on hosts that real sshd and the supervisors' own talk alone connect."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangRole
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.placement import HelperSlot
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.testing.engine_contract import SUCCEEDS, ended, gang_of, nodes_of, submit
from tests.support.hosts_engine import HostsHarness

if TYPE_CHECKING:
    from tests.support.ssh_hosts import SshHosts

pytestmark = pytest.mark.server

MPI_SUM = Path(__file__).parents[1] / "support" / "launched" / "mpi_sum.py"


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


def test_shared_memory_of_an_mpi_gang_whose_hosts_killed_it_is_given_back_by_the_next(harness: HostsHarness) -> None:
    first, kept = mpi_gang_in_shared_memory(harness)
    for node in nodes_of(harness)[:2]:
        harness.lose(first, node.id)
    ended(harness, first, limit_s=120.0)
    assert all(any(path.iterdir()) for path in kept), "nobody was there to remove them"
    second, anew = mpi_gang_in_shared_memory(harness)
    assert not any(path.exists() for path in kept)
    harness.engine.stop(second, grace_s=1.0)
    ended(harness, second, limit_s=120.0)
    assert not any(path.exists() for path in anew)


def mpi_gang_in_shared_memory(harness: HostsHarness) -> tuple[GangHandle, set[Path]]:
    """Return a gang of two hosts that hangs, and the folders in memory by which the ranks of a host talk."""
    out = harness.root / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    gang = replace(
        gang_of(harness, [SUCCEEDS] * 4, exit_grace_s=60.0),
        command=(sys.executable, str(MPI_SUM), json.dumps({"out": str(out), "hangs": True})),
        launcher=Launcher.MPIRUN,
    )
    handle = submit(harness, gang)
    harness.advance_until(lambda: len(list(out.iterdir())) == 4, 60.0)
    told = [Path(f"/proc/{each.pid}/environ").read_bytes().split(b"\0") for each in harness.processes(handle)]
    entries = {entry.decode() for environ in told for entry in environ}
    name = "OMPI_MCA_btl_vader_backing_directory="
    folders = {Path(entry.removeprefix(name)) for entry in entries if entry.startswith(name)}
    assert len(folders) == 2, "each host has its own"
    for folder in folders:
        assert folder.parent == Path("/dev/shm")
        assert len(list(folder.glob("vader_segment.*"))) == 2, "one for each rank"
    return handle, folders
