from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.utils.state import DagRunState

from airflow_llmsched.control.reaper import AirflowWord
from airflow_llmsched.provider.airflow_word import ask_airflow

GONE = {"detail": {"reason": "not_found", "message": "Dag run ... was not found"}}


def _answering(monkeypatch, answer):
    def ask(dag_id, run_id):
        assert (dag_id, run_id) == ("dag", "run")
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(RuntimeTaskInstance, "get_dagrun_state", staticmethod(ask))
    return ask_airflow("dag", "run")


def _refusal(error=ErrorType.API_SERVER_ERROR, **detail):
    return AirflowRuntimeError(ErrorResponse(error=error, detail=detail or None))


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (DagRunState.QUEUED, AirflowWord.RUNNING),
        (DagRunState.RUNNING, AirflowWord.RUNNING),
        (DagRunState.SUCCESS, AirflowWord.FINISHED),
        (DagRunState.FAILED, AirflowWord.FINISHED),
        ("success", AirflowWord.FINISHED),
        ("a state of a later Airflow", AirflowWord.COULD_NOT_ASK),
        (None, AirflowWord.COULD_NOT_ASK),
    ],
)
def test_each_state_has_its_word(monkeypatch, state, word):
    assert _answering(monkeypatch, state) is word


def test_a_run_that_airflow_does_not_have_is_unknown(monkeypatch):
    assert _answering(monkeypatch, _refusal(status_code=404, detail=GONE)) is AirflowWord.UNKNOWN


@pytest.mark.parametrize(
    "error",
    [
        _refusal(status_code=500, detail=GONE),
        _refusal(status_code=403, detail=GONE),
        _refusal(status_code=404, detail=None),
        _refusal(status_code=404, detail={"detail": "Not Found"}),
        _refusal(status_code=404, detail={"detail": {"reason": "route"}}),
        _refusal(ErrorType.PERMISSION_DENIED),
        ConnectionError("no route"),
        TimeoutError(),
    ],
    ids=str,
)
def test_any_other_refusal_is_no_answer(monkeypatch, error):
    assert _answering(monkeypatch, error) is AirflowWord.COULD_NOT_ASK


def test_outside_a_task_nobody_can_be_asked():
    assert ask_airflow("dag", "run") is AirflowWord.COULD_NOT_ASK
