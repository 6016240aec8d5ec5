from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmsched.agent.spool import read_json
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.testing.engine_contract import HANGS, HANGS_ON, SUCCEEDS, ended, gang_of, poll, running, submit
from tests.support.local_engine import LocalHarness
from tests.support.waiting import wait_until


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


def test_node_is_taken_with_its_supervisor_a_second_after_the_grace(harness: LocalHarness) -> None:
    handle = submit(harness, gang_of(harness, [HANGS, HANGS, HANGS_ON, HANGS_ON], grace_s=30.0))
    running(harness, handle)
    start_s = time.time()
    harness.engine.preempt("n1", grace_s=0.5, return_after_s=60.0)
    took_s = time.time() - start_s
    assert 1.5 <= took_s < 1.5 + 4.0
    assert harness.processes(handle, "n1") == []
    notice = read_json(harness.client.gang(handle.native_id).node("n1").notice)
    assert notice is not None
    assert start_s + 0.5 <= notice["deadline_s"] <= start_s + 1.0
    # The stubborn ranks kept the supervisor from writing a last record within that second: it was killed.
    assert not harness.client.gang(handle.native_id).node("n1").exit.exists()
    assert poll(harness, handle).nodes[1].phase is GangPhase.PREEMPTED


def test_ranks_get_sigterm_after_the_grace_and_not_before(harness: LocalHarness) -> None:
    program = f"""
import os, signal, sys, time
def end(got, frame):
    sys.stdout.write(f"term {{time.time()}}\\n")
    sys.stdout.flush()
    os._exit(0)
signal.signal({int(signal.SIGTERM)}, end)
sys.stdout.write("up\\n")
sys.stdout.flush()
time.sleep(1e6)
"""
    handle = submit(harness, harness.run_python(gang_of(harness, [HANGS] * 3), program))
    wait_until(lambda: harness.engine.log_tail(handle, rank=2, num_lines=1) == "up", 30)
    start_s = time.time()
    harness.engine.preempt("n1", grace_s=1.0, return_after_s=60.0)
    wait_until(lambda: "term" in harness.engine.log_tail(handle, rank=2, num_lines=1), 10)
    at_s = float(harness.engine.log_tail(handle, rank=2, num_lines=1).split()[1])
    assert start_s + 1.0 <= at_s < start_s + 1.0 + 2.0


def test_gangs_on_other_nodes_are_left_alone(harness: LocalHarness) -> None:
    other = submit(harness, gang_of(harness, [HANGS] * 2))
    running(harness, other)
    harness.engine.preempt("n1", grace_s=0.0, return_after_s=60.0)
    status = poll(harness, other)
    assert status.phase is GangPhase.RUNNING
    assert status.noticed == ()


def test_gang_that_has_ended_gets_no_notice(harness: LocalHarness) -> None:
    handle = submit(harness, gang_of(harness, [SUCCEEDS] * 2))
    ended(harness, handle)
    harness.engine.preempt("n0", grace_s=0.0, return_after_s=60.0)
    status = poll(harness, handle)
    assert status.phase is GangPhase.SUCCEEDED
    assert status.noticed == ()
