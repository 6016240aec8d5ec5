"""A real Airflow starts, runs a DAG, answers only who may ask, and leaves nothing behind, however it ends."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import httpx
import pytest

from airflow_llmsched.errors import LaunchError
from airflow_llmsched.testing.airflow_stack import COMPONENTS, AirflowStack, running_stack, stop_running
from airflow_llmsched.testing.keeper import ProcessId, members
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
DAGS = Path(__file__).parent / "dags"


def _run(stack: AirflowStack, run_id: str, **conf: object) -> None:
    wait_until(lambda: stack.client.dag("trivial"), limit_s=60)
    stack.client.trigger("trivial", conf=conf, run_id=run_id)


def test_a_dag_run_succeeds_and_its_xcom_and_log_can_be_read(stack):
    _run(stack, "a.run:with+signs~", number=20)
    assert stack.client.wait("trivial", "a.run:with+signs~", limit_s=120)["state"] == "success"
    assert stack.client.task_states("trivial", "a.run:with+signs~") == {"double": "success", "add_one": "success"}
    assert stack.client.xcom("trivial", "a.run:with+signs~", "double") == {"number": 40}
    assert stack.client.xcom("trivial", "a.run:with+signs~", "add_one") == 41
    assert "doubling 20" in stack.client.log("trivial", "a.run:with+signs~", "double")


def test_a_cleared_task_runs_again(stack):
    _run(stack, "cleared")
    stack.client.wait("trivial", "cleared", limit_s=120)
    stack.client.clear("trivial", "cleared", ["add_one"])
    stack.client.wait("trivial", "cleared", limit_s=120)
    tries = {each["task_id"]: each["try_number"] for each in stack.client.task_instances("trivial", "cleared")}
    assert tries == {"double": 1, "add_one": 2}


def test_a_running_task_can_be_marked_failed(stack):
    _run(stack, "marked", wait=True)
    wait_until(lambda: stack.client.task_states("trivial", "marked").get("add_one") == "running", limit_s=120)
    stack.client.mark("trivial", "marked", "add_one", "failed")
    assert stack.client.wait("trivial", "marked", limit_s=60)["state"] == "failed"


@pytest.mark.long
def test_a_run_is_started_once_though_the_database_is_locked_for_longer_than_airflow_waits(stack):
    wait_until(lambda: stack.client.dag("trivial"), limit_s=60)
    with contextlib.closing(sqlite3.connect(stack.home / "airflow.db", timeout=60, check_same_thread=False)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        release = threading.Timer(8.0, holder.rollback)  # SQLite's own limit, which the api-server keeps, is 5 s
        release.start()
        run_id = stack.client.trigger("trivial", conf={"number": 1})
        was_locked = release.finished.is_set()
        release.join()
    assert was_locked
    assert stack.client.wait("trivial", run_id, limit_s=120)["state"] == "success"


def test_nobody_gets_in_without_the_password(stack):
    with httpx.Client(base_url=stack.url, trust_env=False) as anonymous:
        assert anonymous.get("/api/v2/dags").status_code == 401
        wrong = {"username": stack.username, "password": "guess"}
        assert anonymous.post("/auth/token", json=wrong).status_code == 401


def test_a_second_stack_under_the_same_home_is_refused(stack):
    with pytest.raises(LaunchError, match="already runs under"):
        AirflowStack(stack.home, DAGS).start()


OWNER = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from airflow_llmsched.testing.airflow_stack import AirflowStack
    stack = AirflowStack(Path(sys.argv[1]), Path(sys.argv[2])).start()
    if sys.argv[3] == "detach":
        stack.detach()
    else:
        print("ready", flush=True)
        time.sleep(600)
""")


def _leaders(home: Path) -> list[int]:
    state = running_stack(home)
    assert state is not None
    return [state["components"][name]["pid"] for name in COMPONENTS]


@pytest.mark.long
def test_the_stack_ends_when_its_owner_is_killed_hard(tmp_path):
    home = tmp_path / "home"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(home), str(DAGS), "stay"], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout.readline() == "ready\n"
    leaders = _leaders(home)
    assert len(members(leaders)) >= len(COMPONENTS)
    owner.kill()
    owner.wait()
    wait_until(lambda: not members(leaders), limit_s=40)
    wait_until(lambda: running_stack(home) is None, limit_s=10)


@pytest.mark.long
def test_a_detached_stack_lives_on_until_it_is_stopped(tmp_path):
    home = tmp_path / "home"
    subprocess.run([sys.executable, "-c", OWNER, str(home), str(DAGS), "detach"], check=True)
    leaders = _leaders(home)
    assert all(ProcessId.of(pid).alive() for pid in leaders)
    assert stop_running(home) is True
    assert members(leaders) == []
    assert running_stack(home) is None
