from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.errors import DataError
from airflow_llmsched.provider import run_files


def test_what_is_written_is_read_back_and_named_by_its_digest(scope):
    search = PlanSearch(plans=(), rejections={"memory": 3}, num_candidates=3)
    stored = run_files.write(scope, run_files.PLAN_FILE, search)
    assert run_files.read_plan(scope) == search
    path = scope.directory / "tries" / "000000" / run_files.PLAN_FILE
    assert stored["digest"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert stored["uri"].endswith(f"runs/{scope.run_key}/tries/000000/plan.json")


def test_an_absent_file_names_the_task_that_makes_it(scope):
    with pytest.raises(DataError, match="run PlanTrainingOperator first"):
        run_files.read_plan(scope)


def test_a_damaged_file_is_no_plan(scope):
    run_files.write(scope, run_files.PLAN_FILE, PlanSearch(plans=()))
    (scope.directory / "tries" / "000000" / run_files.PLAN_FILE).write_text('{"plans": 7}')
    with pytest.raises(DataError, match="damaged"):
        run_files.read_plan(scope)


def test_a_run_that_nobody_planned_ahead_is_for_any_tool_and_one_whose_plan_is_damaged_for_none_that_is_known(scope):
    assert run_files.planned_tools(scope) == ()
    run_files.write(scope, run_files.PLAN_FILE, 7)
    with pytest.raises(DataError, match=r"plan.json of run .* is damaged: clear PlanTrainingOperator"):
        run_files.planned_tools(scope)


def test_what_a_try_writes_too_late_replaces_nothing(scope):
    first, second = (replace(scope, try_number=number) for number in (9, 10))
    run_files.write(second, run_files.PLAN_FILE, PlanSearch(plans=(), num_candidates=10))
    run_files.write(first, run_files.PLAN_FILE, PlanSearch(plans=(), num_candidates=9))
    assert run_files.read_plan(scope).num_candidates == 10
    run_files.delete(first, run_files.PLAN_FILE)
    assert run_files.read_plan(scope).num_candidates == 10


def test_runs_that_ask_for_the_same_data_share_its_folder(scope, demo_spec):
    other = replace(scope, run_key=RunKey("ls-" + "b" * 20))
    assert run_files.dataset_directory(scope, demo_spec) == run_files.dataset_directory(other, demo_spec)
    less = replace(demo_spec, data=replace(demo_spec.data, held_out_ratio=0.2))
    assert run_files.dataset_directory(scope, less) != run_files.dataset_directory(scope, demo_spec)


def test_whether_a_file_is_there_is_asked_by_its_whole_name(scope):
    assert not run_files.exists(scope, run_files.PLAN_FILE)
    run_files.write(scope, run_files.PLAN_FILE, PlanSearch(plans=()))
    assert run_files.exists(scope, run_files.PLAN_FILE)
    assert not run_files.exists(scope, "plan")
