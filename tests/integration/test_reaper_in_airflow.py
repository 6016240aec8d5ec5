"""Airflow's own word, from a worker and over REST: finished and unknown runs lose their orphans, a running one not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from airflow_llmsched.cli.airflow_word import RestWord
from airflow_llmsched.control.deployment import deployment_id
from airflow_llmsched.control.reaper import AirflowWord
from airflow_llmsched.domain.gang import GangHandle, GangPhase
from airflow_llmsched.domain.identity import RunOrigin
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.telemetry.channel import DirectoryChannel
from airflow_llmsched.testing.airflow_stack import AirflowStack
from airflow_llmsched.testing.engine_contract import HANGS, gang_of, running, submit
from tests.support.local_engine import LocalHarness
from tests.support.orphans import hung_agents
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]

RUNS = {"reaped-finished": "finished", "reaped-never-was": "unknown", "spared-running": "running"}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def runs(stack: AirflowStack) -> Iterator[None]:
    """One DAG run that is finished, one that runs, and one that was never there."""
    wait_until(lambda: stack.client.dag("trivial") and stack.client.dag("reaping"), limit_s=120)
    stack.client.trigger("trivial", run_id="reaped-finished")
    stack.client.wait("trivial", "reaped-finished", limit_s=180)
    stack.client.trigger("trivial", run_id="spared-running", conf={"wait": True})
    wait_until(lambda: stack.client.dag_run("trivial", "spared-running")["state"] == "running", limit_s=120)
    yield
    stack.client.mark_dag_run("trivial", "spared-running", "failed")


def orphans(harness: LocalHarness, stack: AirflowStack) -> dict[str, GangHandle]:
    deployment = deployment_id(LocalStore(str(stack.home / "llmsched")))
    found = {}
    for skip, run_id in enumerate(RUNS):
        gang = gang_of(harness, [HANGS], skip=skip)
        origin = RunOrigin(deployment_id=deployment, run=gang.key.run, dag_id="trivial", run_id=run_id)
        found[run_id] = submit(harness, replace(gang, origin=origin))
        running(harness, found[run_id])
    return found


def silent_s(harness: LocalHarness) -> float:
    """Seconds since the agents of any gang were last heard."""
    gangs = harness.engine.find_all()
    signs_s = [DirectoryChannel(gang.channel_root).last_sign_s() or 0.0 for gang in gangs]
    return time.time() - max(*signs_s, *(gang.agents_seen_at_s or 0.0 for gang in gangs))


def reap(stack: AirflowStack, harness: LocalHarness, run_id: str, *, dry_run: bool) -> dict[str, object]:
    conf = {"root": str(harness.root / "engine"), "dry_run": dry_run}
    stack.client.trigger("reaping", run_id=run_id, conf=conf)
    assert stack.client.wait("reaping", run_id, limit_s=180)["state"] == "success"
    result: dict[str, object] = stack.client.xcom("reaping", run_id, "reap")
    return result


@pytest.mark.long
def test_a_worker_reaps_by_airflows_own_word(stack: AirflowStack, runs: None, harness: LocalHarness) -> None:
    gangs = orphans(harness, stack)
    over = [gangs["reaped-finished"], gangs["reaped-never-was"]]
    with ExitStack() as hung:
        for handle in gangs.values():
            hung.enter_context(hung_agents(harness.client, handle))
        wait_until(lambda: silent_s(harness) > 3.0, limit_s=60)
        report = reap(stack, harness, "look", dry_run=True)
        assert report["reap"].keys() == {handle.key.run for handle in over}, report  # type: ignore[attr-defined]
        assert report["stopped"] == []
        assert all(harness.num_live_ranks(handle) == 1 for handle in gangs.values())
        done = reap(stack, harness, "act", dry_run=False)
    assert set(done["stopped"]) == {handle.key.name for handle in over}  # type: ignore[call-overload]
    assert done["spared"] == {gangs["spared-running"].key.run: "Airflow calls its DAG run running"}
    spared = harness.engine.poll([gangs["spared-running"]])[gangs["spared-running"]]
    assert spared.phase is GangPhase.RUNNING, spared
    assert [harness.num_live_ranks(handle) for handle in gangs.values()] == [0, 0, 1]


def test_the_rest_api_gives_the_same_words(stack: AirflowStack, runs: None) -> None:
    login = {"username": stack.username, "password": stack.password}
    token = httpx.post(f"{stack.url}/auth/token", json=login, trust_env=False).json()["access_token"]
    ask = RestWord(stack.url, token=token)
    assert {run_id: ask("trivial", run_id) for run_id in RUNS} == RUNS
    assert ask("no-such-dag", "run") in (AirflowWord.UNKNOWN, AirflowWord.COULD_NOT_ASK)
    assert RestWord(stack.url)("trivial", "reaped-finished") is AirflowWord.COULD_NOT_ASK
    assert RestWord(f"{stack.url}/elsewhere", token=token)("trivial", "reaped-finished") is AirflowWord.COULD_NOT_ASK
