"""Airflow's word on a DAG run over its public REST API, for a command line that runs apart from Airflow."""

from __future__ import annotations

from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from airflow_llmsched import codec
from airflow_llmsched.control.reaper import WORD_OF_STATE, AirflowWord
from airflow_llmsched.errors import SpecError

TIMEOUT_S = 20.0


class RestWord:
    """Asks the API server at ``base_url``; ``token`` is a bearer token of a user who may read the DAGs."""

    def __init__(self, base_url: str, *, token: str = "") -> None:
        if urlsplit(base_url).scheme not in ("http", "https"):
            raise SpecError(
                path="--airflow-api", value=base_url, hint="must be an address such as http://localhost:8080"
            )
        self._base_url = base_url.rstrip("/")
        self._token = token

    def __call__(self, dag_id: str, run_id: str) -> AirflowWord:
        """Return Airflow's word. Unknown only if Airflow itself says that it has no such run."""
        url = f"{self._base_url}/api/v2/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            with urlopen(Request(url, headers=headers), timeout=TIMEOUT_S) as answer:  # noqa: S310 - http(s), see above
                return _word_of(codec.parse_json(answer.read()), dag_id=dag_id, run_id=run_id)
        except HTTPError as error:
            with error:
                return _word_of_refusal(error.code, error.read(), dag_id=dag_id, run_id=run_id)
        except (URLError, OSError, ValueError):
            return AirflowWord.COULD_NOT_ASK


def _word_of(run: Any, *, dag_id: str, run_id: str) -> AirflowWord:
    if not isinstance(run, dict) or (run.get("dag_id"), run.get("dag_run_id")) != (dag_id, run_id):
        return AirflowWord.COULD_NOT_ASK  # whatever answered, it was not asked about this run
    return WORD_OF_STATE.get(str(run.get("state")), AirflowWord.COULD_NOT_ASK)


def _word_of_refusal(status: int, body: bytes, *, dag_id: str, run_id: str) -> AirflowWord:
    """A proxy or another server answers 404, too: only Airflow names the run that it does not have."""
    try:
        detail = codec.parse_json(body)["detail"]
    except (ValueError, KeyError, TypeError):
        return AirflowWord.COULD_NOT_ASK
    named = isinstance(detail, str) and run_id in detail and dag_id in detail
    return AirflowWord.UNKNOWN if status == 404 and named else AirflowWord.COULD_NOT_ASK
