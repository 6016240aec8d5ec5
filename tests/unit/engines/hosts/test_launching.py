"""All hosts or none, whatever breaks while a gang is being launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_llmsched import effect_points
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.effect_points import Side
from airflow_llmsched.errors import LaunchError
from airflow_llmsched.testing.engine_contract import (
    HANGS,
    SUCCEEDS,
    ended,
    gang_of,
    only,
    outcome_of,
    poll,
    running,
    submit,
)
from tests.support.hosts_engine import HostsHarness

if TYPE_CHECKING:
    from tests.support.ssh_hosts import SshHosts

pytestmark = pytest.mark.server


@pytest.fixture
def harness(tmp_path: Path, machines: SshHosts) -> Iterator[HostsHarness]:
    harness = HostsHarness(tmp_path, machines, num_hosts=3, silence_limit_s=2.0)
    yield harness
    harness.close()


class KilledError(BaseException):
    """As if the process had died there."""


def die() -> None:
    raise KilledError


@contextmanager
def at(point: str, side: Side, do: Callable[[], object]) -> Iterator[None]:
    """Have ``do`` called the first time that an effect is passed."""
    pending = [do]

    def listener(name: str, seen: Side) -> None:
        if (name, seen) == (point, side) and pending:
            pending.pop()()

    effect_points.listen(listener)
    try:
        yield
    finally:
        effect_points.listen(None)


def test_host_whose_supervisor_does_not_start_leaves_nothing_on_any(harness: HostsHarness) -> None:
    gang = gang_of(harness, [HANGS] * 6)
    handle = handle_of(gang)

    def spoil() -> None:
        """Let the second host's part be there, damaged, before the launch reaches it."""
        there = harness.dir_on("h2", handle)
        there.path.mkdir(parents=True)
        there.request.write_text("{}")

    with at("hosts.submit.start", Side.BEFORE, spoil), pytest.raises(LaunchError, match=r"host h2: .*nothing of it"):
        submit(harness, gang)
    status = poll(harness, only(harness.engine.find(gang.key.run)))
    assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.START_FAILED)
    assert "h2" in status.reason
    assert status.unconfirmed_nodes == ()
    assert harness.processes(handle) == []


def test_host_that_is_cut_off_in_the_middle_of_a_submit_leaves_nothing_anywhere(
    harness: HostsHarness, machines: SshHosts
) -> None:
    gang = gang_of(harness, [HANGS] * 6)
    handle = handle_of(gang)
    try:
        with at("hosts.submit.start", Side.BEFORE, lambda: machines.cut_off("h3")):
            with pytest.raises(LaunchError, match=r"h3.*could not be confirmed on h3"):
                submit(harness, gang)
        assert harness.processes(handle) == []
        status = poll(harness, handle)
        assert (status.phase, status.fault) == (GangPhase.FAILED, FaultKind.START_FAILED)
        assert status.unconfirmed_nodes == (), "nobody was told to go: no rank can have started"
    finally:
        machines.join_again("h3")
    again = submit(harness, replace(gang, key=replace(gang.key, attempt=2)))
    running(harness, again)
    assert harness.num_live_ranks(again) == 6


def test_host_that_is_cut_off_before_it_can_be_told_to_go_ends_all_the_others(
    harness: HostsHarness, machines: SshHosts
) -> None:
    gang = gang_of(harness, [HANGS] * 6)
    handle = handle_of(gang)
    try:
        with at("hosts.submit.go", Side.BEFORE, lambda: machines.cut_off("h2")):
            with pytest.raises(LaunchError, match="h2"):
                submit(harness, gang)
        assert harness.num_live_ranks(handle) == 0
        assert harness.processes(handle, "h1") == harness.processes(handle, "h3") == []
        status = poll(harness, handle)
        assert (status.phase, status.unconfirmed_nodes) == (GangPhase.FAILED, ("h2",))
    finally:
        machines.join_again("h2")

    def is_over() -> bool:
        harness.engine.stop(handle, grace_s=0.5)  # while the machine is busy, h2 may be silent for longer than it may
        return harness.processes(handle) == [] and poll(harness, handle).unconfirmed_nodes == ()

    harness.advance_until(is_over, 10.0)


def test_connection_that_breaks_in_the_middle_of_a_submit_changes_nothing(
    harness: HostsHarness, machines: SshHosts
) -> None:
    def drop() -> None:
        for name in harness.names:  # every login session's process, not the server's
            machines.run(name, "pkill", "-KILL", "-f", "sshd: root@notty")

    for point in ("hosts.submit.start", "hosts.submit.go"):
        with at(point, Side.BEFORE, drop):
            handle = submit(harness, gang_of(harness, [SUCCEEDS] * 6))
        assert ended(harness, handle).phase is GangPhase.SUCCEEDED


def test_gang_stopped_while_it_is_being_launched_is_not_started(harness: HostsHarness) -> None:
    for point in ("hosts.submit.start", "hosts.submit.go"):
        gang = gang_of(harness, [HANGS] * 6)
        handle = handle_of(gang)
        with at(point, Side.BEFORE, lambda handle=handle: harness.reopened().stop(handle, grace_s=0.5)):
            outcome_of(partial(submit, harness, gang))  # that it failed, or that it was stopped: both are true
        assert harness.processes(handle) == []
        assert poll(harness, handle).phase is GangPhase.STOPPED


def test_gang_that_is_lost_while_its_submitter_stands_still_never_starts_late(harness: HostsHarness) -> None:
    gang = replace(gang_of(harness, [HANGS]), start_limit_s=0.5)
    handle = handle_of(gang)
    with (
        at("hosts.submit.start", Side.BEFORE, lambda: ended(harness, handle)),
        pytest.raises(LaunchError, match="given up there"),
    ):
        submit(harness, gang)
    assert harness.processes(handle) == []
    assert poll(harness, handle).phase is GangPhase.LOST


def test_supervisors_of_a_gang_never_told_to_go_end_by_themselves(harness: HostsHarness) -> None:
    gang = replace(gang_of(harness, [HANGS] * 6), start_limit_s=3.0)
    handle = handle_of(gang)
    with at("hosts.submit.go", Side.BEFORE, die), pytest.raises(KilledError):
        submit(harness, gang)
    assert len(harness.processes(handle)) == 3
    assert not poll(harness, handle).phase.ended
    status = ended(harness, handle, limit_s=30.0)
    assert status.phase.ended
    assert harness.left(handle) == []


def test_launch_that_another_began_is_finished(harness: HostsHarness) -> None:
    gang = gang_of(harness, [HANGS] * 6)
    with at("hosts.submit.go", Side.AFTER, die), pytest.raises(KilledError):
        submit(harness, gang)
    engine = harness.reopened()
    handle = engine.submit(engine.render(gang), key=gang.key)
    running(harness, handle)
    assert harness.num_live_ranks(handle) == 6


def handle_of(gang: GangSpec) -> GangHandle:
    return GangHandle(engine="hosts", key=gang.key, native_id=gang.key.name)
