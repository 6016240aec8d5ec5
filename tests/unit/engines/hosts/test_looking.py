"""What is seen of gangs whose hosts are silent, rebooted, slow, or no longer ours."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_llmsched.agent import wire
from airflow_llmsched.domain.gang import GangHandle, GangPhase
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.engines.hosts.engine import HostsEngine
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.testing.engine_contract import HANGS, ended, gang_of, poll, running, submit
from tests.support.hosts_engine import HostsHarness
from tests.support.metadata_service import MetadataService

if TYPE_CHECKING:
    from tests.support.ssh_hosts import SshHosts

pytestmark = pytest.mark.server

SILENCE_S = 2.0


@pytest.fixture
def harness(tmp_path: Path, machines: SshHosts) -> Iterator[HostsHarness]:
    harness = HostsHarness(tmp_path, machines, num_hosts=3, silence_limit_s=SILENCE_S, peer_limit_s=600.0)
    yield harness
    for name in harness.names:
        machines.join_again(name)
    harness.close()


def start(harness: HostsHarness, num_ranks: int) -> GangHandle:
    handle = submit(harness, gang_of(harness, [HANGS] * num_ranks, grace_s=0.5))
    running(harness, handle)
    return handle


def test_silent_host_is_reported_soon_and_its_gang_ended_without_it(harness: HostsHarness, machines: SshHosts) -> None:
    handle = start(harness, 4)
    machines.cut_off("h2")
    began_s = time.monotonic()
    status = poll(harness, handle)
    took_s = time.monotonic() - began_s
    assert (status.phase, status.fault) == (GangPhase.RUNNING, FaultKind.NODE_LOST)
    assert "lost node h2" in status.reason
    assert took_s < SILENCE_S + 4.0
    harness.engine.stop(handle, grace_s=0.5)
    status = poll(harness, handle)
    assert status.phase.ended
    assert status.unconfirmed_nodes == ("h2",)
    assert harness.processes(handle, "h1") == []
    assert harness.num_live_ranks(handle) == 2, "nobody can have ended those"
    machines.join_again("h2")
    harness.engine.stop(handle, grace_s=0.5)
    status = ended(harness, handle)
    assert status.unconfirmed_nodes == ()
    assert harness.processes(handle) == []


def test_host_that_is_turned_off_is_confirmed_gone_for_good(tmp_path: Path, machines: SshHosts) -> None:
    options = {"silence_limit_s": SILENCE_S, "peer_limit_s": 600.0}
    harness = HostsHarness(tmp_path, machines, num_hosts=3, fence=machines.fence, **options)
    handle = start(harness, 4)
    machines.cut_off("h2")
    try:
        assert harness.engine.fence(handle) == frozenset(), "it lives: its hosts are not turned off for it"
        harness.engine.stop(handle, grace_s=0.5)
        assert poll(harness, handle).unconfirmed_nodes == ("h2",)
        assert harness.engine.fence(handle) == {"h1", "h2"}
        assert harness.processes(handle) == []
        assert harness.reopened().poll([handle])[handle].unconfirmed_nodes == ()
    finally:
        machines.power_off("h2")
        machines.join_again("h2")
        machines.power_on("h2")
    assert harness.engine.fence(handle) == {"h1", "h2"}
    assert harness.engine.topology().nodes[1].unusable_reason is None, "nobody turned it off a second time"
    harness.close()


def test_host_that_is_listed_as_off_is_not_asked_and_nothing_is_alive_there(
    harness: HostsHarness, machines: SshHosts
) -> None:
    handle = start(harness, 4)
    listed = [{**host, "off": host["name"] == "h2"} for host in harness.options["hosts"]]
    engine = HostsEngine(**{**harness.options, "hosts": listed})
    engine.stop(handle, grace_s=0.5)
    status = engine.poll([handle])[handle]
    assert status.phase.ended
    assert status.unconfirmed_nodes == ()
    assert engine.topology().nodes[1].unusable_reason == "host h2 is off"
    assert engine.fence(handle) == {"h1", "h2"}
    alone = HostsEngine(**{**harness.options, "hosts": [listed[1]]})
    assert alone.topology().nodes[0].unusable_reason == "host h2 is off", "nobody had to answer"
    harness.engine.stop(handle, grace_s=0.5)  # whoever listed it was wrong, and nothing was concluded by others


def test_gang_with_no_host_in_sight_is_lost_as_long_as_another_host_answers(
    harness: HostsHarness, machines: SshHosts
) -> None:
    handle = start(harness, 2)
    machines.cut_off("h1")
    status = poll(harness, handle)
    assert (status.phase, status.fault) == (GangPhase.RUNNING, FaultKind.NODE_LOST)
    for name in ("h2", "h3"):
        machines.cut_off(name)
    with pytest.raises(CouldNotLookError, match="no host answers"):
        harness.engine.poll([handle])
    with pytest.raises(CouldNotLookError, match="no host answers"):
        harness.engine.topology()
    assert list(harness.engine.find(handle.key.run)) == [handle], "that is on record"


def test_attempt_without_a_record_is_not_absent_while_a_host_is_unseen(
    harness: HostsHarness, machines: SshHosts
) -> None:
    never_was = gang_of(harness, [HANGS])
    handle = GangHandle(engine="hosts", key=never_was.key, native_id=never_was.key.name)
    assert poll(harness, handle).phase is GangPhase.LOST
    machines.cut_off("h2")
    with pytest.raises(CouldNotLookError, match="may be on a host unseen"):
        harness.engine.poll([handle])


def test_machines_that_may_still_come_up_are_not_there_yet_and_later_are_silent(
    harness: HostsHarness, machines: SshHosts
) -> None:
    def opened(joins_until_s: float) -> HostsEngine:
        hosts = [{**each, "joins_until_s": joins_until_s} for each in harness.options["hosts"]]
        return HostsEngine(**{**harness.options, "hosts": hosts})

    gang = gang_of(harness, [HANGS] * 2)
    for name in harness.names:
        machines.cut_off(name)
    young, old = opened(time.time() + 600.0), opened(time.time() - 1.0)
    assert list(young.find(gang.key.run)) == []
    assert all("may still be coming up" in (node.unusable_reason or "") for node in young.topology().nodes)
    with pytest.raises(CouldNotLookError, match="no host answers"):
        old.find(gang.key.run)
    for name in harness.names:
        machines.join_again(name)
    handle = start(harness, 2)
    for name in harness.names:
        machines.cut_off(name)
    with pytest.raises(CouldNotLookError, match="no host answers"):
        young.poll([handle])  # it has let a gang in: what has become of that is not known


def test_rebooted_host_has_lost_its_part(tmp_path: Path, machines: SshHosts) -> None:
    harness = HostsHarness(tmp_path, machines, silence_limit_s=SILENCE_S)
    try:
        handle = start(harness, 4)
        machines.reboot("h2")
        status = ended(harness, handle, limit_s=60.0)
        assert status.phase is GangPhase.LOST
        assert "h2" in status.reason
        assert status.unconfirmed_nodes == ()
        assert harness.processes(handle) == []
    finally:
        harness.close()


def test_slow_host_is_not_a_silent_one(tmp_path: Path, machines: SshHosts) -> None:
    program = tmp_path / "slow-python"
    program.write_text(f'#!/bin/sh\nsleep 3\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    harness = HostsHarness(tmp_path / "engine", machines, silence_limit_s=1.0, python=str(program))
    assert [node.unusable_reason for node in harness.engine.topology().nodes] == [None, None]


def test_host_that_is_no_longer_ours_is_not_taken_for_gone(harness: HostsHarness) -> None:
    handle = start(harness, 4)
    fewer = HostsEngine(**{**harness.options, "hosts": harness.options["hosts"][:1]})
    status = fewer.poll([handle])[handle]
    assert (status.phase, status.fault) == (GangPhase.RUNNING, FaultKind.NODE_LOST)
    assert "no longer among the engine's hosts" in status.reason
    others = HostsEngine(**{**harness.options, "hosts": harness.options["hosts"][2:]})
    assert others.poll([handle])[handle].fault is FaultKind.NODE_LOST


def test_ended_gang_is_remembered_when_its_hosts_have_been_given_back(harness: HostsHarness) -> None:
    handle = start(harness, 4)
    harness.engine.stop(handle, grace_s=0.5)
    status = ended(harness, handle)
    others = HostsEngine(**{**harness.options, "hosts": harness.options["hosts"][2:]})
    assert others.poll([handle])[handle] == status


def test_gang_of_another_deployment_is_seen_with_whose_it_is(harness: HostsHarness, tmp_path: Path) -> None:
    handle = start(harness, 4)
    theirs = HostsEngine(**{**harness.options, "root": str(tmp_path / "other")})
    (found,) = theirs.find_all()
    assert (found.handle, found.channel_root) == (handle, harness.channel_root(handle.key))
    assert found.agents_seen_at_s is not None
    assert list(theirs.find(handle.key.run)) == [handle]
    assert theirs.poll([handle])[handle].phase is GangPhase.RUNNING
    nodes = {node.id: node.num_free_slots for node in theirs.topology().nodes}
    assert nodes == {"h1": 0, "h2": 0, "h3": 2}
    theirs.stop(handle, grace_s=0.5)
    assert ended(harness, handle).phase is GangPhase.STOPPED


def test_host_that_its_cloud_announces_to_take_is_noticed_and_its_ranks_told(
    tmp_path: Path, machines: SshHosts
) -> None:
    with MetadataService(host=machines.gateway) as service:
        program = tmp_path / "python"
        program.write_text(f'#!/bin/sh\nexport {wire.METADATA_ADDRESS}={service.address}\nexec {sys.executable} "$@"\n')
        program.chmod(0o755)
        harness = HostsHarness(tmp_path / "engine", machines, python=str(program))
        hosts = harness.options["hosts"]
        harness.options["hosts"] = [hosts[0], {**hosts[1], "cloud": "gcp"}]
        harness.engine = harness.reopened()
        try:
            handle = start(harness, 4)
            assert poll(harness, handle).noticed == ()
            service.gcp = "TRUE"
            harness.advance_until(lambda: bool(poll(harness, handle).noticed), 30.0)
            assert [node.node for node in poll(harness, handle).noticed] == ["h2"]
            for name in harness.names:
                orders = harness.dir_on(name, handle).node(name).spool / wire.ORDERS
                harness.advance_until(lambda orders=orders: b'"checkpoint_seq":1' in orders.read_bytes(), 30.0)
        finally:
            harness.close()
