from __future__ import annotations

import time

import pytest
from airflow.sdk import DAG, TaskGroup
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched import errors
from airflow_llmsched.provider.operators.base import EngineOperator, RunOperator, failing_for_good, now_s
from tests.support.airflow_context import context_of

ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.LlmschedError)
}
RETRIED = {
    "CapacityError",
    "TurnError",
    "LeftoverError",
    "TransientError",
    "CouldNotLookError",
    "PartlySeenError",
    "StoreError",
}


def _error(name):
    if name == "SpecErrors":
        return errors.SpecErrors([_error("SpecError")])
    more = {
        "SpecError": {"path": "a.b", "hint": "mend it"},
        "QuotaError": {"message": "mend it", "region": "us-east-1"},
        "LeftoverError": {"message": "mend it", "ids": ["i-1"]},
        "TurnError": {"message": "mend it", "again_at_s": None},
        "PartlySeenError": {"message": "mend it", "seen": [1], "unseen": ["us-east-1"]},
    }
    return ERRORS[name](**more[name]) if name in more else ERRORS[name]("mend it")


@pytest.mark.parametrize("name", sorted(ERRORS.keys() - RETRIED))
def test_what_a_retry_cannot_mend_fails_the_task_for_good_with_the_same_words(name):
    with pytest.raises(AirflowFailException, match="mend it") as failed, failing_for_good():
        raise _error(name)
    assert isinstance(failed.value.__cause__, ERRORS[name])


@pytest.mark.parametrize("name", sorted(RETRIED))
def test_what_may_mend_itself_is_left_to_airflows_retries(name):
    with pytest.raises(ERRORS[name]), failing_for_good():
        raise _error(name)


def test_a_bug_stays_what_it_is():
    with pytest.raises(ZeroDivisionError), failing_for_good():
        1 / 0  # noqa: B018 - it raises


def test_an_operator_remembers_its_runs_key_for_the_links(state_root):
    with DAG("dag"), TaskGroup("pretraining"):
        task = RunOperator(task_id="task")
    assert task.run_key is None
    scope = task.scope(context_of(task))
    assert task.run_key == scope.run_key
    assert scope.task_group_id == "pretraining"


def test_an_operator_can_work_on_another_groups_run(state_root):
    with DAG("dag"):
        with TaskGroup("a"):
            mine = RunOperator(task_id="mine")
        other = RunOperator(task_id="other", run_scope="a")
    assert mine.scope(context_of(mine)).run_key == other.scope(context_of(other)).run_key


def test_a_run_that_was_never_opened_names_the_task_that_opens_it(state_root):
    with DAG("dag"):
        task = RunOperator(task_id="task")
    with pytest.raises(AirflowFailException, match="run OpenRunOperator first"):
        task.workload(task.scope(context_of(task)))


def test_every_engine_operator_takes_engine_and_options_as_templates():
    given = {"num_nodes": 1}
    task = EngineOperator(task_id="task", engine="{{ params.engine }}", engine_options=given)
    given["num_nodes"] = 2
    task.render_template_fields({"params": {"engine": "local"}})
    assert (task.engine, task.engine_options) == ("local", {"num_nodes": 1})


def test_now_is_unix_time():
    assert now_s() == pytest.approx(time.time(), abs=5)
