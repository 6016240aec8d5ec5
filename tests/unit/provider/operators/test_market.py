from __future__ import annotations

import datetime
from dataclasses import replace

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.provider.operators.market import MarketSnapshotOperator
from tests.support.airflow_context import context_of


def _run(**arguments):
    with DAG("refresh_market", schedule=None):
        task = MarketSnapshotOperator(task_id="snapshot", **{"clouds": {"sim": {}}, "shapes": ["sim.8x"], **arguments})
    return task.execute(context_of(task))


def test_the_result_says_where_the_snapshot_is_and_what_was_left_out(state_root, sim_cloud, capsys):
    sim_cloud.pools[0].offer = replace(sim_cloud.pools[0].offer, usd_per_hour=float("nan"))
    taken = _run()
    assert (taken["num_offers"], taken["rejections"]) == (1, {"without a price": 1})
    assert str(state_root) in taken["uri"]
    assert "left out 1 offers without a price" in capsys.readouterr().out


def test_a_cloud_that_does_not_answer_is_worth_a_retry(state_root, sim_cloud):
    sim_cloud.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError):
        _run()


def test_an_option_that_is_wrong_is_not(state_root, sim_cloud):
    with pytest.raises(AirflowFailException, match="colour"):
        _run(clouds={"sim": {"colour": "blue"}})


def test_the_shipped_dag_takes_one_every_hour(checkout):
    path = checkout / "dags" / "refresh_market.py"
    bag = DagBag(str(path), bundle_path=checkout / "dags", bundle_name="dags-folder")
    assert not bag.import_errors
    (dag,) = bag.dags.values()
    assert (dag.dag_id, dag.schedule, dag.catchup) == ("refresh_market", datetime.timedelta(hours=1), False)
    assert isinstance(dag.get_task("snapshot"), MarketSnapshotOperator)
