from __future__ import annotations

import datetime
import json

import pytest
from airflow.sdk import DAG, TaskGroup

from airflow_llmsched.provider.operators.dataset import StageDatasetOperator
from airflow_llmsched.provider.run_scope import generation_of, scope_of
from tests.support.airflow_context import UTC, context_of


def _task(dag_id="dag", group="pretraining", retries=2):
    with DAG(dag_id), TaskGroup(group):
        return StageDatasetOperator(task_id="stage", retries=retries)


def _key(state_root, task=None, **changes):
    return scope_of(context_of(task or _task(), **changes)).run_key


def test_tasks_of_one_group_and_dag_run_share_a_run(state_root):
    with DAG("dag"), TaskGroup("pretraining"):
        first, second = StageDatasetOperator(task_id="a"), StageDatasetOperator(task_id="b")
    assert scope_of(context_of(first)).run_key == scope_of(context_of(second)).run_key


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "manual__2"},
        {"map_index": 1},
        {"run_after": datetime.datetime(2026, 3, 29, 1, 31, tzinfo=UTC)},
    ],
)
def test_whatever_tells_runs_apart_changes_the_key(state_root, changes):
    assert _key(state_root, **changes) != _key(state_root)


def test_other_dags_and_groups_have_other_keys(state_root):
    keys = {_key(state_root), _key(state_root, _task(dag_id="other")), _key(state_root, _task(group="other"))}
    assert len(keys) == 3


def test_two_deployments_never_share_a_key(tmp_path, monkeypatch):
    keys = set()
    for name in ("a", "b"):
        monkeypatch.setenv("AIRFLOW__LLMSCHED__STATE_ROOT", str(tmp_path / name))
        keys.add(scope_of(context_of(_task())).run_key)
    assert len(keys) == 2


def test_a_run_scope_groups_tasks_across_task_groups(state_root):
    one, other = _task(group="a"), _task(group="b")
    assert scope_of(context_of(one), run_scope="mine").run_key == scope_of(context_of(other), run_scope="mine").run_key


def test_evaluation_has_a_key_of_its_own(state_root):
    scope = scope_of(context_of(_task()))
    assert scope.evaluation_key != scope.run_key


def test_a_retry_keeps_the_generation_and_a_clear_raises_it():
    task = _task(retries=2)
    first = generation_of(context_of(task, try_number=1, max_tries=2))
    retry = generation_of(context_of(task, try_number=2, max_tries=2))
    # A clear after try 2 sets max_tries to try_number + retries.
    cleared = generation_of(context_of(task, try_number=3, max_tries=4))
    cleared_again = generation_of(context_of(task, try_number=4, max_tries=5))
    assert first == retry == 0
    assert first < cleared < cleared_again


def test_gangs_of_a_run_say_whose_they_are(state_root):
    scope = scope_of(context_of(_task()))
    origin = scope.origin
    assert origin.deployment_id == json.loads((state_root / "deployment.json").read_text())["id"]
    assert (origin.run, origin.dag_id, origin.run_id) == (scope.run_key, "dag", "manual__1")
