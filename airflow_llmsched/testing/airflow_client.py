"""A small client of Airflow's public REST API: what the demo and the integration tests ask of a running Airflow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from airflow_llmsched.errors import CouldNotLookError, LlmschedError, TransientError

RUN_ENDED = frozenset({"success", "failed"})
_POLL_S = 0.5
_READ_TRIES = 3
_BUSY_LIMIT_S = 90.0
"""How long a request is repeated that the server's database would not take: a stack of one machine has SQLite."""
_BUSY = "Database error"
"""Airflow's reason when its database failed, e.g. was locked for too long: it has rolled the change back."""
_ANSWER_LIMIT = 2_000
"""How much of a refusal an error shows, in characters: a failed statement of the database with its cause."""
_PAGE_SIZE = 100
"""The most that Airflow's default configuration gives at once."""

Json = dict[str, Any]


class AirflowClient:
    """Talks to one api-server as one user; logs in at the first call, and again when the token has run out."""

    def __init__(self, *, base_url: str, username: str, password: str, timeout_s: float = 20.0) -> None:
        self._credentials = {"username": username, "password": password}
        # trust_env=False: a proxy of the environment must not see, or fail, calls to this machine.
        self._http = httpx.Client(base_url=base_url, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> Json:
        """Return the health of every component, without a login. Raises ``CouldNotLookError``."""
        return self._json(self._send("GET", "/api/v2/monitor/health"))

    def num_jobs(self, job_type: str) -> int:
        """Return how many of Airflow's own jobs of this type, e.g. ``TriggererJob``, are alive by their heartbeat."""
        jobs: list[Json] = self._call("GET", f"/api/v2/jobs?is_alive=true&job_type={_part(job_type)}")["jobs"]
        return len(jobs)

    def set_pool(self, name: str, *, num_slots: int, counts_deferred: bool = False) -> None:
        """Make a pool, or give one that exists another number of slots."""
        body: Json = {"slots": num_slots, "include_deferred": counts_deferred}
        if self._get_or_none(f"/api/v2/pools/{_part(name)}") is None:
            self._call("POST", "/api/v2/pools", {"name": name, **body})
        else:
            self._call("PATCH", f"/api/v2/pools/{_part(name)}", {"pool": name, **body})

    def dag(self, dag_id: str) -> Json | None:
        """Return a DAG's details, or None while it has not been parsed."""
        return self._get_or_none(f"/api/v2/dags/{_part(dag_id)}")

    def import_errors(self) -> list[Json]:
        """Return the files that could not be parsed, each with its ``stack_trace``."""
        errors: list[Json] = self._call("GET", "/api/v2/importErrors")["import_errors"]
        return errors

    def trigger(self, dag_id: str, *, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> str:
        """Start a DAG run now and return its id. The DAG must be unpaused to get anywhere.

        The run is named here: asking again cannot start a second one, and one that is there was started by us even
        where its answer was lost.
        """
        name = run_id or f"manual__{datetime.now(UTC).isoformat()}"
        body: Json = {"logical_date": None, "conf": dict(conf or {}), "dag_run_id": name}
        try:
            self._call("POST", f"/api/v2/dags/{_part(dag_id)}/dagRuns", body)
        except LlmschedError:
            if run_id is not None or self._get_or_none(_run_path(dag_id, name)) is None:
                raise
        return name

    def dag_run(self, dag_id: str, run_id: str) -> Json:
        """Return a DAG run; ``state`` is what most callers want."""
        return self._call("GET", _run_path(dag_id, run_id))

    def mark_dag_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Set a DAG run to ``success`` or ``failed``. Silent when it is so already."""
        self._bring_to(state, _run_path(dag_id, run_id), {"state": state})

    def task_instances(self, dag_id: str, run_id: str) -> list[Json]:
        """Return the task instances of a run, mapped ones one by one."""
        instances: list[Json] = []
        while True:
            query = f"limit={_PAGE_SIZE}&offset={len(instances)}&order_by=id"
            page = self._call("GET", f"{_run_path(dag_id, run_id)}/taskInstances?{query}")
            instances += page["task_instances"]
            if not page["task_instances"] or len(instances) >= page["total_entries"]:
                return instances

    def task_instance(self, dag_id: str, run_id: str, task_id: str) -> Json:
        """Return one unmapped task instance."""
        return self._call("GET", f"{_run_path(dag_id, run_id)}/taskInstances/{_part(task_id)}")

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Return the state by task id of the unmapped tasks of a run."""
        return {each["task_id"]: each["state"] for each in self.task_instances(dag_id, run_id) if each["map_index"] < 0}

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """Return an XCom's value, or None when the task has not pushed it."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_part(task_id)}/xcomEntries/{_part(key)}"
        found = self._get_or_none(path)
        return None if found is None else found["value"]

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Set a task instance to ``success``, ``failed`` or ``skipped``. Silent when it is so already."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_part(task_id)}"
        self._bring_to(state, path, {"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_ids: Sequence[str], *, only_failed: bool = False) -> None:
        """Clear task instances of a run, so that the scheduler runs them again."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "only_failed": only_failed,
            "reset_dag_runs": True,
        }
        self._call("POST", f"/api/v2/dags/{_part(dag_id)}/clearTaskInstances", body)

    def log(self, dag_id: str, run_id: str, task_id: str, *, try_number: int = 1) -> str:
        """Return the lines that one try of a task logged."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{_part(task_id)}/logs/{try_number}"
        content = self._call("GET", path)["content"]
        return "\n".join(_log_line(line) for line in content)

    def wait(
        self,
        dag_id: str,
        run_id: str,
        *,
        limit_s: float,
        until: Callable[[Json], bool] = lambda run: run["state"] in RUN_ENDED,
    ) -> Json:
        """Poll a DAG run until ``until`` holds (default: it has ended) and return it.

        Raises:
            LlmschedError: it did not within ``limit_s`` seconds; the message tells the state of every task.
        """
        deadline_s = time.monotonic() + limit_s
        while not until(run := self.dag_run(dag_id, run_id)):
            if time.monotonic() > deadline_s:
                raise LlmschedError(
                    f"DAG run {dag_id}/{run_id} is still {run['state']} after {limit_s:.0f} s; "
                    f"tasks: {self.task_states(dag_id, run_id)}"
                )
            time.sleep(_POLL_S)
        return run

    def _bring_to(self, state: str, path: str, body: Json) -> None:
        """Airflow refuses a state that is there already: by itself, or by a call of ours whose answer was lost."""
        try:
            self._call("PATCH", path, body)
        except LlmschedError:
            if (self._get_or_none(path) or {}).get("state") != state:
                raise

    def _get_or_none(self, path: str) -> Json | None:
        response = self._authorised("GET", path)
        return None if response.status_code == httpx.codes.NOT_FOUND else self._json(response)

    def _call(self, method: str, path: str, body: Json | None = None) -> Json:
        return self._json(self._authorised(method, path, body))

    def _authorised(self, method: str, path: str, body: Json | None = None) -> httpx.Response:
        if "Authorization" not in self._http.headers:
            self._log_in()
        response = self._patiently(method, path, body)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._log_in()
            response = self._send(method, path, body)
        return response

    def _log_in(self) -> None:
        token = self._json(self._send("POST", "/auth/token", self._credentials))["access_token"]
        self._http.headers["Authorization"] = f"Bearer {token}"

    def _patiently(self, method: str, path: str, body: Json | None) -> httpx.Response:
        """Ask again what a busy database refused: reads and changes alike, as what failed was rolled back."""
        deadline_s = time.monotonic() + _BUSY_LIMIT_S
        while True:
            response = self._answered(method, path, body)
            if not _is_busy(response) or time.monotonic() > deadline_s:
                return response
            time.sleep(_POLL_S)

    def _answered(self, method: str, path: str, body: Json | None) -> httpx.Response:
        """Read again what a busy server did not answer in time; a change may have been made, and is asked for once."""
        for _ in range(_READ_TRIES - 1 if method == "GET" else 0):
            try:
                return self._send(method, path, body)
            except CouldNotLookError as error:
                if not isinstance(error.__cause__, httpx.ReadTimeout):
                    raise
        return self._send(method, path, body)

    def _send(self, method: str, path: str, body: Json | None = None) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise CouldNotLookError(f"{method} {self._http.base_url}{path}: {type(error).__name__}: {error}") from error

    def _json(self, response: httpx.Response) -> Json:
        if response.is_success:
            body: Json = response.json()
            return body
        kind = TransientError if response.is_server_error else LlmschedError
        answer = response.text[:_ANSWER_LIMIT]
        raise kind(f"{response.request.method} {response.request.url} answered {response.status_code}: {answer}")


def _is_busy(response: httpx.Response) -> bool:
    is_json = "json" in response.headers.get("content-type", "")
    if response.status_code != httpx.codes.INTERNAL_SERVER_ERROR or not is_json:
        return False
    detail = response.json().get("detail")
    return isinstance(detail, Mapping) and detail.get("reason") == _BUSY


def _part(name: str) -> str:
    """One path segment: names come from users and may hold any character."""
    return quote(name, safe="")


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{_part(dag_id)}/dagRuns/{_part(run_id)}"


_LOG_NOISE = frozenset(
    {"event", "timestamp", "level", "logger", "error_detail", "filename", "lineno", "loc"}
    | {"dag_id", "run_id", "task_id", "ti_id", "map_index", "try_number"}
)


def _log_line(line: str | Json) -> str:
    """Return a structured line as text: when, how bad, what, and its errors. Where it was logged is noise."""
    if isinstance(line, str):
        return line
    rest = {key: value for key, value in line.items() if key not in _LOG_NOISE and value}
    head = f"{line.get('timestamp') or ''} {line.get('level') or ''} {line.get('event')} {rest or ''}".strip()
    errors = [f"  {each.get('exc_type')}: {each.get('exc_value')}" for each in line.get("error_detail") or ()]
    return "\n".join((head, *errors))
