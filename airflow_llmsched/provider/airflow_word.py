"""Airflow's word on a DAG run, as a worker may ask for it: through the task SDK, never from the database."""

from __future__ import annotations

import logging
from typing import Any

from airflow_llmsched.control.reaper import WORD_OF_STATE, AirflowWord

log = logging.getLogger(__name__)


def ask_airflow(dag_id: str, run_id: str) -> AirflowWord:
    """Return Airflow's word. Unknown only if Airflow itself says that it has no such run; never raises."""
    from airflow.sdk.exceptions import AirflowRuntimeError  # noqa: PLC0415 - only a worker has it to hand
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # noqa: PLC0415 - the same

    try:
        state = RuntimeTaskInstance.get_dagrun_state(dag_id=dag_id, run_id=run_id)
    except AirflowRuntimeError as error:
        if _is_absence(error.error.detail):
            return AirflowWord.UNKNOWN
        log.warning("Airflow could not be asked about run %r of DAG %r: %s", run_id, dag_id, error)
        return AirflowWord.COULD_NOT_ASK
    except Exception:
        log.warning("Airflow could not be asked about run %r of DAG %r", run_id, dag_id, exc_info=True)
        return AirflowWord.COULD_NOT_ASK
    return WORD_OF_STATE.get(str(getattr(state, "value", state)), AirflowWord.COULD_NOT_ASK)


def _is_absence(detail: Any) -> bool:
    """Whether the execution API said 404 about the run itself, in its own words: proxies answer 404, too."""
    if not isinstance(detail, dict) or detail.get("status_code") != 404:
        return False
    body = detail.get("detail")
    told = body.get("detail") if isinstance(body, dict) else None
    return isinstance(told, dict) and told.get("reason") == "not_found"
