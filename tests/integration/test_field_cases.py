"""Field cases of a task's lifecycle and of secrets, against a real scheduler, triggerer and api-server.

Those that need no more than what ``test_lifecycle.py`` does anyway are there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.control import history
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.testing.airflow_stack import AirflowStack
from tests.support.gangs import Sampler, live_by_engine, processes_by_attempt
from tests.support.lifecycle import LIMIT_S, Run, assert_released, task, worker_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

SECRET = "hf_TESTsecret123"
FROM_GANG_ON = ("run_gang", "evaluate_checkpoint", "passed", "release", "report")


def plan_trouble(
    stack: AirflowStack,
    run_id: str,
    *,
    at: tuple[str, str],
    what: str,
    of: str = "run_gang",
    until: Path | None = None,
) -> Path:
    """Have the worker of a run's task ``die``, ``hang`` or ``wait`` until a file is there, at an effect point, once.

    Returns what is there once it has come to that.
    """
    plan = stack.home / "llmsched" / "trouble" / f"{run_id}+{of}.json"
    plan.parent.mkdir(parents=True, exist_ok=True)
    plan.write_text(json.dumps({"at": at, "what": what, "until": str(until)}))
    return plan.with_suffix(".done")


class Runs(dict[str, Run]):
    """Runs by id. Those that keep a worker for themselves start with the test that asks for them: workers are few."""

    def __init__(self, stack: AirflowStack, hold: Path) -> None:
        super().__init__()
        self._stack = stack
        self._hold = hold

    def start(self, run_id: str, **arguments: Any) -> None:
        self[run_id] = Run(self._stack, run_id, self._hold, **arguments)

    def __missing__(self, run_id: str) -> Run:
        self.start(run_id, dag_id="lifecycle_blocking")
        return self[run_id]


@pytest.fixture(scope="module")
def runs(stack, tmp_path_factory) -> Runs:
    """Runs that wait deferred are started at once, so that they share the waiting for Airflow."""
    hold = tmp_path_factory.mktemp("field")
    plan_trouble(stack, "shot-after-submit", at=("run.submit", "after"), what="die")
    plan_trouble(stack, "shot-in-submit", at=("local.submit.gang_dir", "after"), what="die")
    tells = '"--step-s=0.02", "--fail-at=7", "--tell=HF_TOKEN"'
    started = Runs(stack, hold)
    started.start("secret", dag_id="lifecycle_secret", arguments=tells)
    started.start("secret-argument", dag_id="lifecycle_secret", arguments=tells, in_argument=True)
    started.start("broken", arguments=f'"--step-s=0.02", "--fail-at=7", "--hold={hold / "broken"}"')
    started.start("impatient", dag_id="lifecycle_impatient")
    started.start("damaged")
    started.start("again")
    return started


@pytest.mark.parametrize("run_id", ["shot-after-submit", "shot-in-submit"])
def test_a_worker_shot_around_its_submit_leaves_a_gang_that_the_retry_adopts(runs, run_id):
    """Field case A8; and A24 for the one shot in its submit: attempt and channel are there already, not yet started."""
    run = runs[run_id]
    run.wait_for(lambda: run.instance("run_gang")["try_number"] == 2)
    run.wait_until_held("running")
    assert list(run.processes()) == [f"{run.key()}-g1-a1"]
    run.let_go()
    assert run.wait_for_end() == "success"
    assert run.attempts() == [(1, 1)]
    assert (run.num("launch_intended"), run.num("launched"), run.num("adopted")) == (1, 0, 1)
    assert_released(run)


@pytest.mark.long
def test_a_gang_that_ended_while_its_worker_was_dead_is_not_trained_again(stack, runs):
    """Field case A12: the same generation's result is taken, and it is not watched for ever."""
    run = runs["unwatched"]
    run.wait_until_held("running")
    worker_of(stack, run).kill()
    run.let_go()
    wait_until(lambda: run.phases() == [GangPhase.SUCCEEDED], limit_s=LIMIT_S)
    assert run.wait_for_end() == "success"
    assert run.instance("run_gang")["try_number"] == 2
    assert run.attempts() == [(1, 1)]
    assert run.num("launched") == 1
    assert run.state().last_step == 12
    assert_released(run)


def test_a_kill_whose_cancel_hangs_is_over_within_the_grace_and_release_ends_the_gang(stack, runs):
    """Field case A28: the hook runs once, has recorded what it wants, and gives up."""
    run = runs["hanging"]
    run.wait_until_held("running")
    worker = worker_of(stack, run)
    (child,) = worker.children()
    hangs = plan_trouble(stack, "hanging", at=("run.stop", "before"), what="hang")
    # The teardown must not come first: there would be nothing left to cancel.
    plan_trouble(stack, "hanging", at=("run.cancel_record", "before"), what="wait", of="release", until=hangs)
    run.client.mark(run.dag_id, run.run_id, task("run_gang"), "failed")
    wait_until(hangs.exists, limit_s=LIMIT_S)
    wait_until(lambda: not child.is_running(), limit_s=30)
    assert run.wait_for_end() == "failed"
    assert run.num("cancel_requested") == 1
    assert run.num("run_cancelled") == 1
    assert run.phases() == [GangPhase.STOPPED]
    assert run.attempts() == [(1, 1)]
    assert_released(run)


def test_a_task_that_loses_patience_leaves_one_gang_which_its_retry_takes_over(runs):
    """Field case A5: after two polls that failed, with one retry."""
    run = runs["impatient"]
    before = run.wait_until_held()
    (handle,) = run.engine.find(run.key())
    record = run.engine._client.gang(handle.native_id).node("n0").exit
    key = run.key()
    with Sampler(lambda: set(processes_by_attempt(key))) as sampler:
        record.write_text("{")  # nobody can look at the gang now
        run.wait_for(lambda: run.tasks()["run_gang"] == "up_for_retry" or run.instance("run_gang")["try_number"] == 2)
        record.unlink()
        run.wait_for(lambda: run.num("resumed") == 1)
        assert run.processes() == before
        run.let_go()
        assert run.wait_for_end() == "success"
    assert len(sampler.most_at_once) == 1
    assert sampler.seen == {f"{key}-g1-a1"}
    assert run.num("look_failed") == 1
    assert run.attempts() == [(1, 1)]
    assert_released(run)


def test_a_status_that_makes_no_sense_ends_the_gang_and_the_message_names_it(runs):
    """Field case A4: an error after the submit, on the last try, while the gang runs."""
    run = runs["damaged"]
    run.wait_until_held()
    (handle,) = run.engine.find(run.key())
    end = {"v": 1, "node": "n0", "at_s": 0.0, "outcome": "no such word", "fault": None, "reason": "", "ends": []}
    run.engine._client.gang(handle.native_id).node("n0").exit.write_text(json.dumps(end))
    assert run.wait_for_end() == "failed"
    message = run.failures()["run_gang"]
    assert f"stopped {run.key()}-g1-a1" in message
    assert "no such word" in message
    assert run.num("cancel_requested") == 1
    assert_released(run)


def test_a_gang_that_was_killed_and_then_cleared_starts_anew_at_execute(runs):
    """Field case A29: nothing is resumed as if its trigger had fired, and a whole cycle submits once."""
    run = runs["again"]
    run.wait_until_held()
    run.client.mark(run.dag_id, run.run_id, task("run_gang"), "failed")
    assert run.wait_for_end() == "failed"
    assert run.attempts() == [(1, 1)]
    run.client.clear(run.dag_id, run.run_id, [task(name) for name in FROM_GANG_ON])
    wait_until(lambda: len(run.attempts()) == 2, limit_s=LIMIT_S, poll_s=0.2)
    run.let_go()
    assert run.wait_for_end() == "success"
    assert run.attempts() == [(1, 1), (2, 1)]
    assert (run.num("opened"), run.num("launch_intended"), run.num("launched")) == (2, 2, 2)
    assert run.phases() == [GangPhase.STOPPED, GangPhase.SUCCEEDED]
    assert_released(run)


def test_leftovers_of_a_failed_try_do_not_stop_the_next(runs):
    """Field case A11: one failed gang is found, none lives, and a new one is started."""
    run = runs["broken"]
    assert run.wait_for_end() == "failed"
    assert run.phases() == [GangPhase.FAILED]
    run.let_go()  # the fault is mended
    run.client.clear(run.dag_id, run.run_id, [task(name) for name in FROM_GANG_ON])
    key = run.key()
    with Sampler(lambda: live_by_engine(run.engine, key)) as sampler:
        wait_until(lambda: len(run.attempts()) == 2, limit_s=LIMIT_S, poll_s=0.2)
        assert run.wait_for_end() == "success"
    assert len(sampler.most_at_once) <= 1
    first, second = history.attempts(run.events())
    assert first.resumed_from is None
    assert second.resumed_from is not None
    assert second.resumed_from.step >= 5  # rank 0 may have gone on until it was ended
    assert run.phases() == [GangPhase.FAILED, GangPhase.SUCCEEDED]
    assert_released(run)


def test_a_secret_of_a_variable_is_nowhere_but_where_the_ranks_get_it_from(stack, runs):
    """Field case B3: rendered fields, logs, XCom, links, event payloads, journal and pages do not have it."""
    run = runs["secret"]
    assert run.wait_for_end() == "failed"
    message = run.failures()["run_gang"]
    assert "HF_TOKEN is ***" in message  # the rank showed it, in the lines that explain its end
    assert "giving up at step 7" in message
    instance = run.instance("open_run")
    assert "var.json" not in json.dumps(instance)
    assert "HF_TOKEN" in json.dumps(instance["rendered_fields"])
    runs["secret-argument"].wait_for_end()
    found = {path.name for path in stack.home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()}
    assert found <= {"spec.json", "request.json", "rank-1.log", "keeper.json"}, found
    assert {"spec.json", "request.json"} <= found


def test_a_secret_in_an_argument_list_is_refused_without_being_shown(runs):
    """Field case B3: everyone on the node could read it."""
    run = runs["secret-argument"]
    assert run.wait_for_end() == "failed"
    message = run.failures()["open_run"]
    assert "launcher.command[" in message
    assert "holds a secret" in message
    assert SECRET not in message
    assert run.tasks()["run_gang"] == "upstream_failed"
