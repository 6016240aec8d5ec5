from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airflow_llmsched.errors import CouldNotLookError, LlmschedError, TransientError
from airflow_llmsched.testing import airflow_client
from airflow_llmsched.testing.airflow_client import AirflowClient


class FakeServer:
    """Answers from a script over a real socket; records what it was asked. Integration tests ask the real one."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, str, Any, str | None]] = []
        self.num_logins = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, answer = owner.answer(self.command, self.path, body, self.headers.get("Authorization"))
                data = json.dumps(answer).encode()
                with contextlib.suppress(BrokenPipeError):  # the client did not wait
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            do_GET = do_POST = do_PATCH = _answer

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, method: str, path: str, body: bytes, authorization: str | None) -> tuple[int, Any]:
        if path == "/auth/token":
            self.num_logins += 1
            assert json.loads(body) == {"username": "admin", "password": "secret"}
            return 201, {"access_token": f"token{self.num_logins}"}
        self.asked.append((method, path, json.loads(body) if body else None, authorization))
        script = self.answers.get((method, path), [(404, {"detail": "not found"})])
        return script.pop(0) if len(script) > 1 else script[0]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.http.shutdown()
    fake.http.server_close()


@pytest.fixture
def client(server: FakeServer) -> Iterator[AirflowClient]:
    with AirflowClient(base_url=server.url, username="admin", password="secret") as client:
        yield client


RUN = "/api/v2/dags/d/dagRuns/r"


def test_it_logs_in_once_and_sends_the_token(server, client):
    server.answers[("GET", RUN)] = [(200, {"state": "running"})]
    client.dag_run("d", "r")
    client.dag_run("d", "r")
    assert server.num_logins == 1
    assert [each[3] for each in server.asked] == ["Bearer token1", "Bearer token1"]


def test_it_logs_in_again_when_the_token_has_run_out(server, client):
    server.answers[("GET", RUN)] = [(200, {"state": "running"}), (401, {}), (200, {"state": "success"})]
    client.dag_run("d", "r")
    assert client.dag_run("d", "r")["state"] == "success"
    assert server.num_logins == 2


def test_health_needs_no_login(server, client):
    server.answers[("GET", "/api/v2/monitor/health")] = [(200, {"scheduler": {"status": "healthy"}})]
    assert client.health()["scheduler"]["status"] == "healthy"
    assert server.num_logins == 0


def test_a_dag_or_xcom_that_is_not_there_is_none(client):
    assert client.dag("unknown") is None
    assert client.xcom("d", "r", "t") is None


def test_names_with_spaces_slashes_and_quotes_stay_one_path_segment(server, client):
    with pytest.raises(LlmschedError):
        client.dag_run("d", "a/b c?'$(x)")
    assert server.asked[0][1] == "/api/v2/dags/d/dagRuns/a%2Fb%20c%3F%27%24%28x%29"


def test_trigger_sends_conf_and_returns_the_run_id(server, client):
    server.answers[("POST", "/api/v2/dags/d/dagRuns")] = [(200, {"dag_run_id": "given"})]
    assert client.trigger("d", conf={"steps": 3}, run_id="given") == "given"
    assert server.asked[0][2] == {"logical_date": None, "conf": {"steps": 3}, "dag_run_id": "given"}


LOCKED = (500, {"detail": {"reason": "Database error", "statement": "hidden", "orig_error": "hidden"}})


@pytest.mark.parametrize("num_locked", [0, 1, 2])
def test_what_a_locked_database_rolled_back_is_asked_for_again_under_the_same_name(server, client, num_locked):
    server.answers["POST", "/api/v2/dags/d/dagRuns"] = [*[LOCKED] * num_locked, (200, {"dag_run_id": "answered"})]
    run_id = client.trigger("d")
    assert [each[2]["dag_run_id"] for each in server.asked] == [run_id] * (num_locked + 1)
    assert run_id.startswith("manual__")


def test_a_database_that_stays_locked_is_an_error_to_be_tried_again(server, client, monkeypatch):
    monkeypatch.setattr(airflow_client, "_BUSY_LIMIT_S", 0.0)
    server.answers["POST", "/api/v2/dags/d/dagRuns"] = [LOCKED]
    with pytest.raises(TransientError, match=r"answered 500: .*Database error"):
        client.trigger("d")


@pytest.mark.parametrize(("given", "exists"), [(None, True), (None, False), ("mine", True)])
def test_only_a_run_that_we_named_ourselves_is_ours_when_its_answer_was_lost(server, client, given, exists):
    there = (200, {"state": "queued"}) if exists else (404, {"detail": "not found"})
    answer = server.answer

    def lose(method, path, *rest):
        if method == "GET" and "/dagRuns/" in path:
            return there
        return (
            (409, {"detail": "it is there"}) if method == "POST" and "dagRuns" in path else answer(method, path, *rest)
        )

    server.answer = lose
    if given is None and exists:
        assert client.trigger("d").startswith("manual__")
    else:
        with pytest.raises(LlmschedError, match="answered 409"):
            client.trigger("d", run_id=given)


def test_clear_is_no_dry_run_and_names_its_tasks(server, client):
    server.answers[("POST", "/api/v2/dags/d/clearTaskInstances")] = [(200, {"task_instances": []})]
    client.clear("d", "r", ["a", "b"])
    body = server.asked[0][2]
    assert (body["dry_run"], body["dag_run_id"], body["task_ids"]) == (False, "r", ["a", "b"])


def test_task_states_leave_out_mapped_instances(server, client):
    instances = [
        {"task_id": "a", "state": "success", "map_index": -1},
        {"task_id": "m", "state": "failed", "map_index": 0},
    ]
    server.answers[("GET", f"{RUN}/taskInstances?limit=100&offset=0&order_by=id")] = [
        (200, {"task_instances": instances, "total_entries": len(instances)})
    ]
    assert client.task_states("d", "r") == {"a": "success"}


def test_a_refusal_names_the_call_and_the_answer(server, client):
    server.answers[("PATCH", RUN)] = [(409, {"detail": "already failed"})]
    with pytest.raises(LlmschedError, match=r"PATCH .*/dagRuns/r answered 409: .*already failed"):
        client.mark_dag_run("d", "r", "failed")


@pytest.mark.parametrize("state", ["success", "running"])
def test_a_task_that_has_come_to_its_state_by_itself_is_left_so(server, client, state):
    path = f"{RUN}/taskInstances/t"
    server.answers[("PATCH", path)] = [(409, {"detail": "Task id t is already in success state"})]
    server.answers[("GET", path)] = [(200, {"state": state})]
    with contextlib.nullcontext() if state == "success" else pytest.raises(LlmschedError, match="answered 409"):
        client.mark("d", "r", "t", "success")


def test_a_server_error_can_be_tried_again(server, client):
    server.answers[("GET", RUN)] = [(503, {"detail": "busy"})]
    with pytest.raises(TransientError, match="answered 503"):
        client.dag_run("d", "r")


def test_a_server_that_is_not_there_is_not_an_absent_run():
    with AirflowClient(base_url="http://127.0.0.1:9", username="admin", password="secret") as client:
        with pytest.raises(CouldNotLookError, match="ConnectError"):
            client.dag("d")


def test_wait_returns_the_run_once_it_has_ended(server, client):
    server.answers[("GET", RUN)] = [(200, {"state": "queued"}), (200, {"state": "running"}), (200, {"state": "failed"})]
    assert client.wait("d", "r", limit_s=10)["state"] == "failed"


def test_wait_gives_up_with_the_state_of_every_task(server, client):
    server.answers[("GET", RUN)] = [(200, {"state": "running"})]
    instances = [{"task_id": "stuck", "state": "queued", "map_index": -1}]
    server.answers[("GET", f"{RUN}/taskInstances?limit=100&offset=0&order_by=id")] = [
        (200, {"task_instances": instances, "total_entries": len(instances)})
    ]
    with pytest.raises(LlmschedError, match=r"d/r is still running after 0 s; tasks: \{'stuck': 'queued'\}"):
        client.wait("d", "r", limit_s=0)


def test_log_lines_read_as_text(server, client):
    lines = [{"timestamp": "12:00", "level": "info", "event": "step", "loss": 2.5}, "plain"]
    server.answers[("GET", f"{RUN}/taskInstances/t/logs/2")] = [(200, {"content": lines})]
    assert client.log("d", "r", "t", try_number=2) == "12:00 info step {'loss': 2.5}\nplain"


def test_a_logged_error_reads_as_its_type_and_message(server, client):
    detail = [{"exc_type": "SpecError", "exc_value": "a.yaml:6: model: is absent", "frames": [{"lineno": 1}]}]
    line = {"level": "error", "event": "Task failed", "ti_id": "x", "lineno": 7, "error_detail": detail}
    server.answers[("GET", f"{RUN}/taskInstances/t/logs/1")] = [(200, {"content": [line]})]
    assert client.log("d", "r", "t") == "error Task failed\n  SpecError: a.yaml:6: model: is absent"


@pytest.mark.parametrize(("num_slow", "asked"), [(2, 3), (3, 3)])
def test_what_a_busy_server_does_not_answer_in_time_is_read_again(server, monkeypatch, num_slow, asked):
    server.answers["GET", "/api/v2/dags/d/dagRuns/r"] = [(200, {"state": "running"})]
    answer, calls = server.answer, []

    def slowly(method, path, *rest):
        if path != "/auth/token":
            calls.append(path)
            time.sleep(1.0 if len(calls) <= num_slow else 0.0)
        return answer(method, path, *rest)

    monkeypatch.setattr(server, "answer", slowly)
    with AirflowClient(base_url=server.url, username="admin", password="secret", timeout_s=0.4) as client:
        if num_slow < asked:
            assert client.dag_run("d", "r") == {"state": "running"}
        else:
            with pytest.raises(CouldNotLookError, match="ReadTimeout"):
                client.dag_run("d", "r")
    assert len(calls) == asked


def test_a_change_that_was_not_answered_in_time_is_not_asked_for_twice(server, monkeypatch):
    answer, calls = server.answer, []

    def slowly(method, path, *rest):
        if method == "POST" and path != "/auth/token":
            calls.append(path)
            time.sleep(1.0)
        return answer(method, path, *rest)

    monkeypatch.setattr(server, "answer", slowly)
    with AirflowClient(base_url=server.url, username="admin", password="secret", timeout_s=0.4) as client:
        with pytest.raises(CouldNotLookError, match="ReadTimeout"):
            client.trigger("d")
    assert len(calls) == 1


def test_a_pool_is_made_when_it_is_absent_and_changed_when_it_is_there(server, client):
    path = "/api/v2/pools/gangs"
    server.answers[("POST", "/api/v2/pools")] = [(201, {})]
    server.answers[("PATCH", path)] = [(200, {})]
    client.set_pool("gangs", num_slots=1)
    server.answers[("GET", path)] = [(200, {"name": "gangs"})]
    client.set_pool("gangs", num_slots=2, counts_deferred=True)
    assert [each[:3] for each in server.asked if each[0] != "GET"] == [
        ("POST", "/api/v2/pools", {"name": "gangs", "slots": 1, "include_deferred": False}),
        ("PATCH", path, {"pool": "gangs", "slots": 2, "include_deferred": True}),
    ]


def test_living_jobs_are_counted_by_type(server, client):
    server.answers[("GET", "/api/v2/jobs?is_alive=true&job_type=TriggererJob")] = [(200, {"jobs": [{}, {}]})]
    assert client.num_jobs("TriggererJob") == 2


def test_a_run_of_more_tasks_than_one_page_holds_is_read_page_by_page(server, client):
    instances = [{"task_id": f"t{number}", "map_index": -1, "state": "success"} for number in range(130)]
    for offset, page in ((0, instances[:100]), (100, instances[100:])):
        path = f"{RUN}/taskInstances?limit=100&offset={offset}&order_by=id"
        server.answers[("GET", path)] = [(200, {"task_instances": page, "total_entries": 130})]
    assert client.task_instances("d", "r") == instances
