from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import RefreshError

from airflow_llmsched.clouds.gcp.transport import NUM_TRIES, RefusedError, Transport
from airflow_llmsched.errors import CouldNotLookError, TransientError
from airflow_llmsched.sim.clock import VirtualClock

Answer = tuple[int, Any]
BROKEN: Answer = (0, None)
"""No answer: the connection is closed."""


class Script:
    """Answers in order, the last one again and again; ``seen`` are the calls, ``tokens`` what they showed."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.seen: list[str] = []
        self.tokens: list[str | None] = []

    def next(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def root(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            script.seen.append(f"{self.command} {self.path}")
            script.tokens.append(self.headers.get("Authorization"))
            status, body = script.next()
            if not status:
                self.close_connection = True
                return
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def transport(root: str, clock: VirtualClock) -> Transport:
    return Transport(root=root, credentials=AnonymousCredentials(), clock=clock)


def reasons(*names: str, message: str = "no") -> dict[str, Any]:
    return {"error": {"message": message, "errors": [{"reason": name} for name in names]}}


def test_an_answer_is_returned(transport: Transport, script: Script) -> None:
    script.answers = [(200, {"a": 1})]
    assert transport.call("POST", "x/y", params={"requestId": "r"}, body={"b": 2}) == {"a": 1}
    assert script.seen == ["POST /x/y?requestId=r"]


@pytest.mark.parametrize("trouble", [BROKEN, (503, reasons("backendError")), (500, b"<html>"), (429, {})])
def test_trouble_that_passes_is_not_noticed(transport: Transport, script: Script, trouble: Answer) -> None:
    script.answers = [trouble] * (NUM_TRIES - 1) + [(200, {"a": 1})]
    assert transport.call("POST", "x") == {"a": 1}


def test_tries_are_bounded_and_further_apart_each_time(
    transport: Transport, script: Script, clock: VirtualClock
) -> None:
    script.answers = [(503, reasons("backendError"))]
    before_s = clock.now_s()
    with pytest.raises(CouldNotLookError, match="backendError"):
        transport.call("POST", "x")
    assert len(script.seen) == NUM_TRIES
    assert clock.now_s() - before_s == 0.5 + 1.0 + 2.0


def test_one_call_too_many_changes_nothing_and_a_broken_answer_may_have(transport: Transport, script: Script) -> None:
    script.answers = [(403, reasons("rateLimitExceeded"))]
    with pytest.raises(TransientError) as caught:
        transport.call("POST", "x")
    assert not isinstance(caught.value, CouldNotLookError)
    script.answers = [BROKEN, (403, reasons("rateLimitExceeded"))]
    with pytest.raises(CouldNotLookError):
        transport.call("POST", "x")


def test_a_refusal_is_not_tried_again_and_says_why(transport: Transport, script: Script) -> None:
    script.answers = [(400, reasons("invalid", message="bad field"))]
    with pytest.raises(RefusedError, match="invalid: bad field") as caught:
        transport.call("POST", "x")
    assert (caught.value.status, len(script.seen)) == (400, 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [({"error": {"status": "INVALID_ARGUMENT", "message": "m"}}, "INVALID_ARGUMENT"), (b"<html>", "HTTP_400")],
)
def test_other_interfaces_name_one_status(transport: Transport, script: Script, body: Any, code: str) -> None:
    script.answers = [(400, body)]
    with pytest.raises(RefusedError) as caught:
        transport.call("POST", "x")
    assert [each.code for each in caught.value.errors] == [code]


def test_what_is_not_there_is_told_from_what_cannot_be_seen(transport: Transport, script: Script) -> None:
    script.answers = [(404, reasons("notFound"))]
    assert transport.look_for("x") is None
    with pytest.raises(CouldNotLookError, match="does not know"):
        transport.look("x")
    for answer in ((403, reasons("forbidden")), (429, {}), BROKEN):
        script.answers = [answer]
        with pytest.raises(CouldNotLookError):
            transport.look_for("x")


def test_a_list_is_turned_over_to_its_end(transport: Transport, script: Script) -> None:
    script.answers = [(200, {"items": [1], "nextPageToken": "t"}), (200, {"items": [2]})]
    assert [page["items"] for page in transport.pages("x", params={"filter": "f"})] == [[1], [2]]
    assert script.seen[1] == "GET /x?filter=f&pageToken=t"


@pytest.mark.parametrize(
    "page",
    [
        {"items": {"zones/a": {"warning": {"code": "UNREACHABLE"}}}},
        {"warning": {"code": "PARTIAL_SUCCESS"}},
        {"unreachables": ["zones/a"]},
    ],
)
def test_a_list_that_leaves_something_out_is_no_list(transport: Transport, script: Script, page: Any) -> None:
    script.answers = [(200, page)]
    with pytest.raises(CouldNotLookError, match="not whole"):
        list(transport.pages("x", params={}))


def test_what_a_list_leaves_out_is_collected_for_whoever_asks_by_the_place_that_it_is(
    transport: Transport, script: Script
) -> None:
    script.answers = [
        (200, {"items": {"zones/a-b": {"warning": {"code": "UNREACHABLE"}}}, "nextPageToken": "t"}),
        (200, {"unreachables": ["projects/p/regions/r1"], "warning": {"code": "UNREACHABLE"}}),
        (200, {"warning": {"code": "PARTIAL_SUCCESS"}}),
    ]
    unreached: set[str] = set()
    assert len(list(transport.pages("x", params={}, unreached=unreached))) == 2
    assert unreached == {"a-b", "r1"}
    with pytest.raises(CouldNotLookError, match="PARTIAL_SUCCESS"):  # of what, nobody says
        list(transport.pages("x", params={}, unreached=unreached))


def test_a_zone_that_has_nothing_is_whole(transport: Transport, script: Script) -> None:
    script.answers = [(200, {"items": {"zones/a": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}})]
    assert len(list(transport.pages("x", params={}))) == 1


def test_credentials_that_cannot_be_renewed_are_named(root: str, clock: VirtualClock) -> None:
    class Expired(Credentials):
        def refresh(self, request: Any) -> None:
            raise RefreshError("invalid_grant: the token was revoked")

    with pytest.raises(CouldNotLookError, match="revoked"):
        Transport(root=root, credentials=Expired(), clock=clock).look("x")


class Hourly(Credentials):
    """Credentials whose tokens hold for as long as one says, as a service account's do."""

    def __init__(self) -> None:
        super().__init__()
        self.num_tokens = 0

    def refresh(self, request: Any) -> None:
        self.num_tokens += 1
        self.token = f"token-{self.num_tokens}"
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)


def test_tokens_are_renewed_as_they_run_out_for_as_long_as_a_run_lasts(
    root: str, script: Script, clock: VirtualClock
) -> None:
    credentials = Hourly()
    transport = Transport(root=root, credentials=credentials, clock=clock)
    script.answers = [(200, {})]
    transport.look("x")
    transport.look("x")
    credentials.expiry -= timedelta(hours=1)
    transport.look("x")
    assert script.tokens == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]


def test_a_token_that_is_refused_is_renewed_at_once(root: str, script: Script, clock: VirtualClock) -> None:
    script.answers = [(401, reasons("authError")), (200, {"a": 1})]
    assert Transport(root=root, credentials=Hourly(), clock=clock).look("x") == {"a": 1}
    assert script.tokens == ["Bearer token-1", "Bearer token-2"]
