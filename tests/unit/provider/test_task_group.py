from __future__ import annotations

import datetime
import itertools
from typing import NamedTuple

import pytest
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG, Asset
from airflow.serialization.serialized_objects import DagSerialization

from airflow_llmsched.provider.params import pretraining_params
from airflow_llmsched.provider.task_group import pretraining_task_group


class TaskOutcome(NamedTuple):
    task_id: str
    state: str


def _dag(**changes):
    dag_arguments = changes.pop("dag_arguments", {})
    with DAG("dag", schedule=None, params=pretraining_params("spec.yaml"), **dag_arguments) as dag:
        pretraining_task_group(**changes)
    return dag


def test_tasks_run_in_the_order_of_the_pipeline():
    dag = _dag()
    order = ["open_run", "stage_dataset", "plan_training", "run_gang", "evaluate_checkpoint", "passed"]
    for before, after in itertools.pairwise(order):
        assert f"pretraining.{after}" in dag.get_task(f"pretraining.{before}").downstream_task_ids


def test_nodes_are_checked_between_plan_and_training_where_that_is_asked_for():
    dag = _dag(preflight_arguments={"limit": "5min"})
    assert dag.get_task("pretraining.preflight").upstream_task_ids == {"pretraining.plan_training"}
    assert dag.get_task("pretraining.preflight").downstream_task_ids == {"pretraining.run_gang"}
    assert dag.get_task("pretraining.preflight").limit == "5min"
    assert "pretraining.preflight" not in _dag().task_ids


def test_release_and_report_are_teardowns_of_open_run():
    dag = _dag()
    assert dag.get_task("pretraining.open_run").is_setup
    for name in ("release", "report"):
        task = dag.get_task(f"pretraining.{name}")
        assert task.is_teardown
        assert "pretraining.open_run" in task.upstream_task_ids


def test_airflow_judges_the_run_by_the_gate_and_by_the_release():
    dag = _dag()
    serialized = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    tis = [TaskOutcome(task_id, "success") for task_id in serialized.task_ids]
    judged = {ti.task_id for ti in DagRun()._tis_for_dagrun_state(dag=serialized, tis=tis)}
    assert judged == {"pretraining.passed", "pretraining.release"}


def test_a_dagrun_timeout_is_refused_with_our_deadline_offered():
    with pytest.raises(ValueError, match=r"dagrun_timeout.*budget\.deadline"):
        _dag(dag_arguments={"dagrun_timeout": datetime.timedelta(hours=1)})


def test_two_groups_in_one_dag_are_two_runs():
    with DAG("dag", schedule=None) as dag:
        pretraining_task_group(group_id="small", spec="a.yaml")
        pretraining_task_group(group_id="large", spec="b.yaml")
    groups = {dag.get_task(task_id).task_group.group_id for task_id in dag.task_ids if task_id.endswith("run_gang")}
    assert groups == {"small", "large"}


def test_the_checkpoint_asset_is_the_gangs_outlet():
    asset = Asset("llmsched://checkpoints/x")
    assert _dag(checkpoint_asset=asset).get_task("pretraining.run_gang").outlets == [asset]


def test_arguments_of_the_plan_reach_its_task_alone():
    dag = _dag(plan_arguments={"write_out": ["megatron-lm"]})
    assert dag.get_task("pretraining.plan_training").write_out == ("megatron-lm",)
    DagSerialization.from_dict(DagSerialization.to_dict(dag))


RENTING = {"clouds": {"aws": {}}, "shapes": {"p5.48xlarge": {"num_nodes": 4, "work": "36h"}}}


def test_what_is_rented_is_planned_on_and_trained_on_right_after_and_is_given_back_by_the_release():
    dag = _dag(capacity_arguments={**RENTING, "wait": "12h"}, deferrable=False)
    provision, release = dag.get_task("pretraining.provision"), dag.get_task("pretraining.release")
    assert provision.is_setup
    assert (provision.wait, provision.deferrable) == ("12h", False)
    assert {"pretraining.plan_training", "pretraining.release"} <= provision.downstream_task_ids
    assert "pretraining.stage_dataset" in provision.upstream_task_ids
    assert {"pretraining.open_run", "pretraining.provision"} <= release.upstream_task_ids
    assert dag.get_task("pretraining.open_run").rents_capacity
    DagSerialization.from_dict(DagSerialization.to_dict(dag))


def test_nothing_is_rented_unless_asked_for():
    dag = _dag()
    assert not dag.has_task("pretraining.provision")
    assert not dag.get_task("pretraining.open_run").rents_capacity


@pytest.mark.parametrize(("engine", "chooses"), [("fleet", True), ("local", False)])
def test_a_run_on_a_fleet_may_filter_clusters(engine: str, chooses: bool):
    assert _dag(engine=engine).get_task("pretraining.open_run").chooses_cluster is chooses


def test_a_rental_policy_is_the_gangs_and_nothing_is_rented_before_it():
    dag = _dag(rental_policy=RENTING)
    assert dag.get_task("pretraining.run_gang").capacity == RENTING
    assert not dag.has_task("pretraining.provision")
    assert dag.get_task("pretraining.open_run").rents_capacity
    DagSerialization.from_dict(DagSerialization.to_dict(dag))


def test_two_ways_to_rent_are_refused():
    with pytest.raises(ValueError, match="both rent"):
        _dag(rental_policy=RENTING, capacity_arguments=RENTING)
