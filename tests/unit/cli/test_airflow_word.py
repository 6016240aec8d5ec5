from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from airflow_llmsched.cli.airflow_word import RestWord
from airflow_llmsched.control.reaper import AirflowWord
from airflow_llmsched.errors import SpecError

DAG, RUN = "a dag", "manual__2026-03-29T01:30:00+00:00"
NOT_FOUND = f"The DagRun with dag_id: `{DAG}` and run_id: `{RUN}` was not found"


class Server(HTTPServer):
    status = 200
    body: object = None
    seen: list[tuple[str, str | None]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers["Authorization"]))
        body = self.server.body
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def word(server: Server, status: int, body: object, token: str = "") -> AirflowWord:
    server.status, server.body = status, body
    return RestWord(f"http://127.0.0.1:{server.server_port}/", token=token)(DAG, RUN)


def run(state: object, **changes: object) -> dict[str, object]:
    return {"dag_id": DAG, "dag_run_id": RUN, "state": state, **changes}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("queued", AirflowWord.RUNNING),
        ("running", AirflowWord.RUNNING),
        ("success", AirflowWord.FINISHED),
        ("failed", AirflowWord.FINISHED),
        ("later", AirflowWord.COULD_NOT_ASK),
        (None, AirflowWord.COULD_NOT_ASK),
    ],
)
def test_each_state_has_its_word(server: Server, state: object, expected: AirflowWord) -> None:
    assert word(server, 200, run(state)) is expected


def test_airflow_is_asked_about_exactly_this_run_with_the_token(server: Server) -> None:
    word(server, 200, run("running"), token="t0ken")
    path = "/api/v2/dags/a%20dag/dagRuns/manual__2026-03-29T01%3A30%3A00%2B00%3A00"
    assert server.seen == [(path, "Bearer t0ken")]


def test_only_airflow_naming_the_run_makes_it_unknown(server: Server) -> None:
    assert word(server, 404, {"detail": NOT_FOUND}) is AirflowWord.UNKNOWN


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"detail": "Not Found"}),
        (404, b"<html>nginx</html>"),
        (404, []),
        (401, {"detail": NOT_FOUND}),
        (403, {"detail": NOT_FOUND}),
        (500, {"detail": NOT_FOUND}),
        (200, b"<html>the page of the web UI</html>"),
        (200, run("success", dag_run_id="another")),
        (200, run("success", dag_id="another")),
        (200, ["success"]),
    ],
)
def test_anything_else_is_no_answer(server: Server, status: int, body: object) -> None:
    assert word(server, status, body) is AirflowWord.COULD_NOT_ASK


def test_server_that_is_not_there_is_no_answer(server: Server) -> None:
    port = server.server_port
    server.server_close()
    assert RestWord(f"http://127.0.0.1:{port}")(DAG, RUN) is AirflowWord.COULD_NOT_ASK


@pytest.mark.parametrize("address", ["", "localhost:8080", "file:///etc/passwd", "ftp://x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(SpecError, match="http://localhost:8080"):
        RestWord(address)
