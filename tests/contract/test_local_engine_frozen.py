"""Gangs of the local engine that are stopped and go on: a suspended machine, a debugger."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.agent import proc
from airflow_llmsched.domain.gang import GangHandle, GangPhase
from airflow_llmsched.testing.engine_contract import HANGS, gang_of, poll, running, submit
from tests.support.local_engine import LocalHarness
from tests.support.waiting import wait_until

LIMIT_S = 60.0


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


def test_gang_that_was_stopped_and_goes_on_is_as_it_was(harness: LocalHarness) -> None:
    """A suspended machine or a debugger: supervisors, wrappers and ranks stand still, and then nothing has happened."""
    handle = submit(harness, gang_of(harness, [HANGS, HANGS, HANGS]))
    running(harness, handle)
    before = harness.processes(handle)
    for _ in range(2):
        for process in before:
            proc.send(process, signal.SIGSTOP)
        time.sleep(0.8)  # longer than any of them waits at once
        for process in before:
            proc.send(process, signal.SIGCONT)
        seen_s = time.time()
        wait_until(lambda seen_s=seen_s: all(speaks_after(harness, handle, seen_s)), LIMIT_S)
    assert poll(harness, handle).phase is GangPhase.RUNNING
    assert harness.processes(handle) == before


def speaks_after(harness: LocalHarness, handle: GangHandle, moment_s: float) -> list[bool]:
    """Whether each node's supervisor has written since."""
    facts = harness.client.facts(handle.native_id)
    return [node.alive_at_s is not None and node.alive_at_s > moment_s for node in facts.nodes]
