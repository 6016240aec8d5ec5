from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_llmsched.engines.local.client import LocalClient
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.provider.operators.reap import ReapOperator, is_true
from tests.support.airflow_context import context_of
from tests.support.orphans import hung_agents
from tests.support.sim_cloud import sim_pool
from tests.support.waiting import wait_until


def _reap(pipeline, *, engine_options=None, **changes):
    with DAG("reap", schedule=None):
        task = ReapOperator(
            task_id="reap",
            engine_options=pipeline.options if engine_options is None else engine_options,
            silence_s=1.5,
            unleased_s=0.0,
            **changes,
        )
    return task.execute(context_of(task))


@pytest.fixture
def deleted(monkeypatch):
    """Airflow has no DAG run of any name; returns whom it was asked about."""
    asked = []

    def answer(dag_id, run_id):
        asked.append((dag_id, run_id))
        detail = {"status_code": 404, "detail": {"detail": {"reason": "not_found", "message": "no such run"}}}
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))

    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", staticmethod(answer))
    return asked


def test_an_orphan_is_reported_and_then_reaped(slow, deleted, caplog):
    slow.defer("run_gang", lease_s=None)
    (handle,) = slow.live()
    with hung_agents(LocalClient(slow.state_root / "engines" / "local"), handle):
        report = wait_until(lambda: (found := _reap(slow)) and found["reap"] and found, limit_s=60)
        assert list(report["reap"]) == [slow.scope.run_key]
        assert (report["only_report"], report["stopped"]) == (True, [])
        assert slow.live() == [handle]
        assert deleted[0] == ("plain", "manual__1")
        with caplog.at_level(logging.INFO):
            reaped = _reap(slow, only_report="False")
    assert (reaped["only_report"], reaped["stopped"]) == (False, [handle.key.name])
    assert slow.live() == []
    assert [event.kind for event in slow.journal()][-3:] == ["cancel_requested", "run_cancelled", "released"]
    assert _reap(slow, only_report=False) == {"only_report": False, "reap": {}, "spared": {}, "stopped": []}


def test_a_healthy_run_is_spared_and_says_why(slow, deleted):
    slow.defer("run_gang")
    result = _reap(slow, only_report=False)
    assert list(result["spared"]) == [slow.scope.run_key, f"claim:{slow.scope.run_key}"]
    assert (result["reap"], result["stopped"]) == ({}, [])
    assert len(slow.live()) == 1
    assert deleted == []


def test_an_engine_that_cannot_be_asked_fails_the_task_for_a_retry(slow, deleted):
    broken = slow.folder / "file"
    broken.write_text("no folder")
    with pytest.raises(CouldNotLookError):
        _reap(slow, engine_options={**slow.options, "root": str(broken)})


def test_clusters_of_a_fleet_are_reaped_one_by_one_and_a_silent_one_keeps_nobody_from_the_others(slow, monkeypatch):
    (slow.folder / "file").write_text("no folder")
    root = slow.state_root / "engines" / "local"
    (slow.folder / "fleet.yaml").write_text(
        "version: 1\nclusters:\n"
        f"  - {{name: silent, engine: local, options: {{root: {slow.folder}/file/x}}}}\n"
        f"  - {{name: mine, engine: local, options: {{root: {root}}}}}\n"
    )
    monkeypatch.setenv("AIRFLOW__LLMSCHED__FLEET_FILE", str(slow.folder / "fleet.yaml"))
    slow.defer("run_gang")
    with pytest.raises(CouldNotLookError, match="cluster silent does not answer"):
        _reap(slow, engine="fleet", engine_options={})
    result = _reap(slow, engine="mine", engine_options={})
    assert list(result["spared"]) == [slow.scope.run_key]


def test_what_does_not_end_fails_the_task(slow, deleted, monkeypatch):
    from airflow_llmsched.control import reaping

    slow.defer("run_gang", lease_s=None)
    (handle,) = slow.live()
    trouble = reaping.Reaped(run_key=slow.scope.run_key, trouble="still alive: x")
    monkeypatch.setattr(reaping.Reaper, "reap", lambda _self, _finding: trouble)
    with hung_agents(LocalClient(slow.state_root / "engines" / "local"), handle):
        wait_until(lambda: _reap(slow)["reap"], limit_s=60)
        with pytest.raises(CouldNotLookError, match="still alive: x"):
            _reap(slow, only_report=False)


@pytest.mark.parametrize(
    ("given", "only_report"),
    [(True, True), (False, False), ("True", True), ("False", False), (" false ", False), ("", True), ("None", True)],
)
def test_whatever_is_not_plainly_false_only_reports(given, only_report):
    assert is_true(given) is only_report


def test_it_only_reports_unless_told_otherwise():
    with DAG("reap", schedule=None):
        assert ReapOperator(task_id="reap").only_report is True


def test_the_shipped_dag_only_reports_by_default_and_runs_every_hour(checkout):
    bag = DagBag(str(checkout / "dags" / "reap.py"), bundle_path=checkout / "dags", bundle_name="dags-folder")
    assert bag.import_errors == {}
    dag = bag.dags["reap"]
    assert dag.params["dry_run"] is True
    (task,) = dag.tasks
    context = {"params": dict(dag.params), "ti": SimpleNamespace()}
    rendered = task.render_template(task.only_report, context)
    assert is_true(rendered)
    assert is_true(task.render_template(task.only_report, {"params": {"dry_run": False}})) is False
    assert (dag.max_active_runs, dag.catchup) == (1, False)


def _reap_leases(**changes):
    with DAG("reap", schedule=None):
        task = ReapOperator(task_id="reap", engine=None, clouds={"sim": {}}, **changes)
    return task.execute(context_of(task))


def _expired(pipeline, sim_cloud):
    lease_id = pipeline.run("provision")["lease_id"]
    sim_cloud.shorten(lease_id, until_s=sim_cloud.now_s() - 3600.0)
    return lease_id


def test_machines_that_nobody_renews_are_reported_and_then_given_back(pipeline, sim_cloud):
    lease_id = _expired(pipeline, sim_cloud)
    report = _reap_leases()
    assert list(report["reap"]) == [f"sim:{lease_id}"]
    assert "nobody renewed it" in report["reap"][f"sim:{lease_id}"]
    assert (report["stopped"], len(sim_cloud.billed())) == ([], 2)
    assert _reap_leases(only_report="False")["stopped"] == [f"sim:{lease_id}"]
    assert not sim_cloud.billed()
    assert not pipeline.book().open()
    assert _reap_leases(only_report=False) == {"only_report": False, "reap": {}, "spared": {}, "stopped": []}


def test_a_lease_that_holds_is_spared(pipeline, sim_cloud):
    lease_id = pipeline.run("provision")["lease_id"]
    assert "not expired" in _reap_leases(only_report=False)["spared"][f"sim:{lease_id}"]
    assert len(sim_cloud.billed()) == 2


def test_an_engine_that_cannot_be_asked_keeps_no_machine_and_fails_the_task_in_the_end(pipeline, sim_cloud):
    _expired(pipeline, sim_cloud)
    broken = pipeline.folder / "file"
    broken.write_text("no folder")
    with pytest.raises(CouldNotLookError):
        _reap(pipeline, engine_options={"root": str(broken)}, clouds={"sim": {}}, only_report=False)
    assert not sim_cloud.billed()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine_options": {"colour": 1}}, "colour"),
        ({"engine": "lokal"}, "lokal"),
        ({"clouds": {"nimbus": {}, "sim": {}}}, "nimbus"),
    ],
)
def test_what_is_wrong_with_one_engine_or_cloud_keeps_no_machine_of_another(pipeline, sim_cloud, changes, words):
    _expired(pipeline, sim_cloud)
    with pytest.raises(AirflowFailException, match=words):
        _reap(pipeline, **{"clouds": {"sim": {}}, "only_report": False, **changes})
    assert not sim_cloud.billed()


def test_a_cloud_that_cannot_be_asked_or_does_not_remove_fails_the_task(pipeline, sim_cloud):
    _expired(pipeline, sim_cloud)
    sim_cloud.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError, match=r"sim: .*does not answer"):
        _reap_leases(only_report=False)
    sim_cloud.go_dark(is_dark=False)
    sim_cloud.refuse_removal(num_calls=100)
    with pytest.raises(CouldNotLookError, match="sim-000000, sim-000001"):
        _reap_leases(only_report=False)


def test_a_region_that_cannot_be_asked_keeps_no_machine_elsewhere_and_fails_the_task(pipeline, sim_cloud):
    _expired(pipeline, sim_cloud)
    sim_cloud.cloud._pools |= {(far := sim_pool("a", region="sim-west")).offer.pool: far}
    sim_cloud.cloud.faults.dark_regions = {"sim-west"}
    with pytest.raises(CouldNotLookError, match=r"sim: could not look everywhere: sim-west .*does not answer"):
        _reap_leases(only_report=False)
    assert not sim_cloud.billed()
