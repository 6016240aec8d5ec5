"""Gangs on hosts that share no folder with control: agents report by presigned URLs, each by its own alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmsched.control.records import read_all
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.telemetry.http_channel import ObjectChannel
from airflow_llmsched.testing.engine_contract import HANGS, ended, gang_of, poll, submit
from tests.support.hosts_engine import HostsHarness
from tests.support.signed_store import SignedStore
from tests.support.ssh_hosts import SshHosts
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

LIMIT_S = 90.0

TRAINER = """
import time
from airflow_llmsched import agent
agent.ready()
step = 0
while not agent.stop_requested():
    step += 1
    time.sleep(0.05)
    agent.report(step=step, loss=1.0, tokens=8)
print("left", flush=True)
"""


@pytest.fixture
def signed(tmp_path: Path, machines: SshHosts) -> Iterator[SignedStore]:
    with SignedStore(LocalStore(str(tmp_path / "store")), host=machines.gateway) as signed:
        yield signed


@pytest.fixture
def channel(tmp_path: Path, signed: SignedStore) -> ObjectChannel:
    return ObjectChannel(LocalStore(str(tmp_path / "store")), "ch", presigner=signed, links=tmp_path / "links")


@pytest.fixture
def harness(tmp_path: Path, machines: SshHosts) -> Iterator[HostsHarness]:
    """Its ranks run a module that is brought along, and import the agent that was shipped."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "their_trainer.py").write_text(TRAINER)
    harness = HostsHarness(tmp_path / "engine", machines, code=[str(code)])
    yield harness
    harness.close()


def launched(harness: HostsHarness, channel: ObjectChannel) -> GangHandle:
    gang: GangSpec = gang_of(harness, [HANGS] * 4)
    links = channel.prepare(gang.placement.nodes, at_s=time.time())
    command = (sys.executable, "-S", "-m", "their_trainer")
    return submit(harness, replace(gang, command=command, channel_root="s3://bucket/ch", channel_links=links))


def test_gang_reports_and_obeys_and_each_host_holds_its_own_urls_alone(
    harness: HostsHarness, channel: ObjectChannel
) -> None:
    handle = launched(harness, channel)
    try:
        wait_until(lambda: {report.node for report in read_all(channel)} == {"h1", "h2"}, LIMIT_S)
        wait_until(lambda: any(report.steps for report in read_all(channel)), LIMIT_S)
        for process in harness.processes(handle):
            for name in ("environ", "cmdline"):
                assert b"signature" not in Path(f"/proc/{process.pid}/{name}").read_bytes()
        for name in harness.names:
            folder = harness.machines.disk_of(name) / harness.folder.name
            holds = [path for path in folder.rglob("*") if path.is_file() and b"signature" in path.read_bytes()]
            assert [path.name for path in holds] == [f"{name}.json"]
            assert all(path.stat().st_mode & 0o077 == 0 for path in holds)
        assert b"signature" not in (harness.root / "engine" / "gangs" / handle.native_id / "request.json").read_bytes()
        channel.order_stop(reason="enough")
        assert ended(harness, handle, limit_s=LIMIT_S).phase is GangPhase.SUCCEEDED
        assert harness.engine.log_tail(handle, rank=3, num_lines=1) == "left"
    finally:
        harness.engine.stop(handle, grace_s=0.5)


def test_host_that_no_longer_reaches_the_store_ends_its_ranks_with_its_lease(
    harness: HostsHarness, channel: ObjectChannel, signed: SignedStore
) -> None:
    gang = gang_of(harness, [HANGS] * 4)
    links = channel.prepare(gang.placement.nodes, at_s=time.time())
    handle = submit(harness, replace(gang, lease_s=6.0, channel_root="s3://bucket/ch", channel_links=links))
    wait_until(lambda: renewed(channel) and poll(harness, handle).phase is GangPhase.RUNNING, LIMIT_S, poll_s=0.5)
    signed.cut = True
    status = ended(harness, handle, limit_s=LIMIT_S)
    assert status.phase is GangPhase.LOST
    assert "the lease ran out" in status.reason
    assert harness.left(handle) == []


def renewed(channel: ObjectChannel) -> bool:
    channel.renew(until_s=time.time() + 6.0)
    return True
