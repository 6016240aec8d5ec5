"""What people and crashes do to a run in the middle of it, against a real scheduler, triggerer and api-server.

Ranks stand still at a chosen step until the test lets them go, so that "in mid-run" is a fact and not luck. More field
cases are in ``test_field_cases.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from airflow_llmsched.control import history
from airflow_llmsched.control.records import read_all
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.telemetry.channel import DirectoryChannel
from airflow_llmsched.testing.keeper import ProcessId
from tests.support.gangs import Sampler, live_by_engine, processes_by_attempt
from tests.support.lifecycle import HOLD_AT, LIMIT_S, Run, assert_released, task, worker_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

DEMO_SPEC = Path(__file__).resolve().parents[2] / "dags" / "specs" / "byte_gpt_demo.yaml"


def assert_stopped_once(run: Run, *, generation: int = 1) -> None:
    """Cancelled once, by whoever came first; the engine calls that gang stopped."""
    assert run.num("cancel_requested") == 1
    assert run.num("run_cancelled") == 1
    stopped = {name for event in run.events() for name in getattr(event, "stopped", ())}
    assert stopped <= {f"{run.key()}-g{generation}-a1"}
    assert run.phases()[0] is GangPhase.STOPPED


@pytest.fixture(scope="module")
def runs(stack, tmp_path_factory) -> dict[str, Run]:
    """Runs started at once, so that they share the waiting for Airflow. Those that hold do so until their test."""
    hold = tmp_path_factory.mktemp("hold")
    limited = f'"--step-s=0.02", "--interval=100", "--hold={hold / "never"}", "--hold-at={HOLD_AT}"'
    started = [
        Run(stack, "killed", hold, dag_id="lifecycle_blocking"),
        Run(stack, "limited", hold, dag_id="lifecycle_limited", arguments=limited),
        Run(stack, "fault", hold, arguments='"--step-s=0.02", "--fail-at=7"'),
        Run(stack, "unplaced", hold, min_ranks=64, max_ranks=64),
        Run(stack, "unreleased", hold, arguments='"--step-s=0.02"', release_root="/dev/null/no-folder"),
        Run(stack, "restarted", hold),
        Run(stack, "failed", hold),
        Run(stack, "success", hold),
        Run(stack, "cleared", hold),
    ]
    return {run.run_id: run for run in started}


@pytest.mark.long
def test_a_gang_outlives_its_worker_and_the_retry_adopts_it(stack, runs):
    run = runs["killed"]
    before = run.wait_until_held("running")
    worker = worker_of(stack, run)
    (orphan,) = worker.children()
    worker.kill()
    run.wait_for(lambda: run.instance("run_gang")["try_number"] == 2)
    run.wait_for(lambda: run.num("resumed") == 1)
    assert run.processes() == before
    run.let_go()
    assert run.wait_for_end() == "success"
    assert run.attempts() == [(1, 1)]
    assert run.num("adopted") == 0  # the journal knew the gang: nothing was submitted a second time
    assert run.state().last_step == 12
    assert_released(run)
    wait_until(lambda: not ProcessId(pid=orphan.pid, started_at_s=orphan.create_time()).alive(), limit_s=30)


@pytest.mark.long
def test_the_triggerer_restarts_and_the_gang_never_notices(stack, runs):
    """Field case A29: a whole cycle of deferring and resuming submits once."""
    run = runs["restarted"]
    before = run.wait_until_held()
    stack.restart("triggerer")
    assert run.processes() == before
    run.let_go()
    assert run.wait_for_end() == "success"
    assert set(run.tasks().values()) == {"success"}
    assert run.attempts() == [(1, 1)]
    assert run.num("cancel_requested") == 0
    assert_released(run)


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_deferred_gang_whose_task_is_marked_is_stopped_once(runs, state):
    """Field cases A1, and A14: the trigger's hook and the teardown clean up at the same time."""
    run = runs[state]
    run.wait_until_held()
    run.client.mark(run.dag_id, run.run_id, task("run_gang"), state)
    assert run.wait_for_end() == "failed"
    assert_stopped_once(run)
    assert_released(run)
    assert run.attempts() == [(1, 1)]
    assert run.tasks()["evaluate_checkpoint"] == {"failed": "upstream_failed", "success": "failed"}[state]


def test_a_blocking_gang_whose_task_is_marked_failed_is_stopped_once(stack, tmp_path):
    """Field case A28: the hook of a running task is called, once."""
    run = Run(stack, "terminated", tmp_path, dag_id="lifecycle_blocking")
    run.wait_until_held("running")
    run.client.mark(run.dag_id, run.run_id, task("run_gang"), "failed")
    assert run.wait_for_end() == "failed"
    assert_stopped_once(run)
    assert_released(run)
    assert run.attempts() == [(1, 1)]


def test_a_cleared_gang_is_stopped_and_a_new_generation_resumes_from_its_checkpoint(runs):
    """Field cases A1 and A29."""
    run = runs["cleared"]
    run.wait_until_held()
    key = run.key()
    looks = (lambda: live_by_engine(run.engine, key), lambda: set(processes_by_attempt(key)))
    with Sampler(*looks) as sampler:
        run.client.clear(run.dag_id, run.run_id, [task("run_gang")])
        run.wait_for(lambda: len(run.attempts()) == 2)
        run.let_go()
        assert run.wait_for_end() == "success"
    first, second = history.attempts(run.events())
    assert first.key.generation < second.key.generation
    assert sampler.seen == {first.key.name, second.key.name}
    assert len(sampler.most_at_once) == 1
    assert sampler.num_samples > 20
    assert second.resumed_from is not None
    assert second.resumed_from.step == 5
    assert run.num("run_cancelled") <= 1
    assert run.phases() == [GangPhase.STOPPED, GangPhase.SUCCEEDED]
    assert_released(run)


def test_clearing_a_finished_gang_opens_a_generation_that_trains_no_step_again(runs):
    run = runs["restarted"]
    run.let_go()
    assert run.wait_for_end() == "success"
    run.client.clear(run.dag_id, run.run_id, [task("run_gang")])
    wait_until(lambda: len(run.attempts()) == 2, limit_s=LIMIT_S, poll_s=0.2)
    assert run.wait_for_end() == "success"
    first, second = history.attempts(run.events())
    assert second.key.generation > first.key.generation
    assert second.resumed_from is not None
    assert second.resumed_from.step == 12
    reports = read_all(DirectoryChannel(second.channel_root))
    assert reports
    assert not [step for report in reports for step in report.steps]
    assert_released(run)


def test_a_failed_training_makes_the_run_red_although_its_teardowns_succeed(runs):
    run = runs["fault"]
    assert run.wait_for_end() == "failed"
    assert run.tasks()["run_gang"] == "failed"
    assert run.tasks()["passed"] == "upstream_failed"
    assert "giving up at step 7" in run.failures()["run_gang"]
    assert_released(run)


def test_a_plan_that_does_not_fit_is_still_released_and_reported(runs):
    run = runs["unplaced"]
    assert run.wait_for_end() == "failed"
    tasks = run.tasks()
    assert tasks["plan_training"] == "failed"
    assert tasks["run_gang"] == "upstream_failed"
    assert tasks["release"] == tasks["report"] == "success"
    assert "64" in run.failures()["plan_training"]
    assert run.engine.find(run.key()) == []


def test_a_release_that_cannot_look_makes_the_run_red(runs):
    run = runs["unreleased"]
    assert run.wait_for_end() == "failed"
    tasks = run.tasks()
    assert tasks.pop("release") == "failed"
    assert tasks.pop("report") == "success"
    assert set(tasks.values()) == {"success"}
    assert "/dev/null/no-folder" in run.failures()["release"]


def test_our_own_deadline_strikes_before_airflows_time_limit(runs):
    """Field case A5: whoever runs out of time ends its gang, so that no retry can start a second beside it."""
    run = runs["limited"]
    assert run.wait_for_end() == "failed"
    message = run.failures()["run_gang"]
    assert re.search(r"deadline reached at step \d+", message)
    assert "execution_timeout" in message
    assert "checkpoint is that of step" in message
    state = run.state()
    assert state.phase is RunPhase.FAILED
    assert state.newest is not None
    assert state.newest.step == state.last_step
    assert run.num("cancel_requested") == 0
    assert_released(run)


def test_report_pages_are_served_to_whoever_may_read_the_dag_and_to_nobody_else(stack, runs):
    run = runs["restarted"]
    run.let_go()
    run.wait_for_end()
    by_dag_run = f"/llmsched/dags/{run.dag_id}/runs/{run.run_id}/report"
    link = f"/llmsched/runs/{run.key()}/report"
    with httpx.Client(base_url=stack.url, trust_env=False) as http:
        for path in ("/llmsched/runs", link, by_dag_run, "/llmsched/runs/ls-aaaaaaaaaaaaaaaaaaaa/report"):
            assert http.get(path).status_code == 401, path
        login = {"username": stack.username, "password": stack.password}
        token = http.post("/auth/token", json=login).json()["access_token"]
        http.headers["Authorization"] = f"Bearer {token}"
        assert f'<a href="{link}">' in http.get("/llmsched/runs").text
        for path in (link, by_dag_run):
            page = http.get(path)
            assert page.status_code == 200
            assert "plain" in page.text
            assert "step 12" in page.text.lower() or "12 steps" in page.text.lower()
            assert page.text == (run.state_root / "runs" / run.key() / "report.html").read_text()
        assert http.get("/llmsched/runs/ls-aaaaaaaaaaaaaaaaaaaa/report").status_code == 404
        assert http.get("/llmsched/runs/..%2F..%2Fpasswords/report").status_code == 404
        for name in ("open_run", "plan_training", "run_gang", "evaluate_checkpoint", "report"):
            path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task(name)}/links"
            assert http.get(path).json()["extra_links"] == {"Pretraining report": link}, name
        (plugin,) = [each for each in http.get("/api/v2/plugins").json()["plugins"] if each["name"] == "llmsched"]
        assert [each["url_prefix"] for each in plugin["fastapi_apps"]] == ["/llmsched"]
        assert [each["destination"] for each in plugin["external_views"]] == ["nav", "dag_run"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["providers", "get", "airflow-provider-llmsched"], "airflow-provider-llmsched"),
        (["plugins"], "LlmschedPlugin"),
        (["llmsched", "--help"], "Plan, check and report pretraining runs"),
        (["llmsched", "plan", "--", str(DEMO_SPEC), "--nodes", "2", "--slots", "2"], "Chosen: dp="),
    ],
)
def test_airflows_command_line_knows_us(tmp_path, arguments, shown):
    home = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *arguments],
        env={**os.environ, **home, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_watching_never_blocks_the_triggerers_event_loop(stack, runs):
    runs["unreleased"].wait_for_end()
    log = stack.log_path("triggerer").read_text()
    assert "Starting the triggerer" in log
    assert "async thread was blocked" not in log
