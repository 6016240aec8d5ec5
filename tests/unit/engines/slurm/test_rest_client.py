"""Against a server that answers as slurmrestd 22.05 did, and as a broken one might; the real one: tests/integration."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.engines.slurm.replies import Job
from airflow_llmsched.engines.slurm.rest_client import RestAccess, RestClient, TokenFile
from airflow_llmsched.errors import CouldNotLookError, LaunchError, SpecError
from tests.support.http_server import LocalServer, QuietHandler

NO_SUCH_JOB = {"error_number": 2017, "error": "Invalid job id specified", "source": "slurm_kill_job"}
UNSPECIFIED = {"error_number": -1, "error": "Unspecified error", "description": "Failed while looking for jobs"}
JOB = {"job_id": 7, "name": "ls-x-g1-a1", "job_state": "RUNNING", "exit_code": 0, "nodes": "n1", "user_name": "me"}


def jwt(expires_s: float) -> str:
    parts = ({"alg": "HS256"}, {"exp": int(expires_s), "sun": "me"})
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join((*coded, "c2lnbmF0dXJl"))


@dataclass
class Stand:
    """What is asked, and what is answered to it: a status, and JSON or bytes."""

    address: str = ""
    token_file: Path = Path()
    asked: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    answer: Callable[[], tuple[int, Any]] = lambda: (200, {"errors": [], "jobs": [JOB]})

    def client(self, **changes: Any) -> RestClient:
        base = {"url": self.address, "user": "me", "limit_s": 10.0}
        return RestClient(access=RestAccess(**{**base, **changes}), token=TokenFile(str(self.token_file)))

    def answers(self, status: int, said: Any) -> None:
        self.answer = lambda: (status, said)


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    found = Stand(token_file=tmp_path / "token")
    found.token_file.write_text(f"SLURM_JWT={jwt(time.time() + 600)}\n")

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            found.asked.append((self.command, self.path, dict(self.headers), body))
            status, said = found.answer()
            text = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # whoever asked did not wait
                self.wfile.write(text)

        do_POST = do_DELETE = do_GET

    with LocalServer(Handler) as server:
        found.address = server.address
        yield found


def test_jobs_of_the_user_come_by_one_call_and_strange_ones_hurt_nobody(stand: Stand) -> None:
    strangers = [
        {**JOB, "job_id": 8, "user_name": "somebody"},
        {**JOB, "job_id": 9, "name": "notebook", "job_state": "MELTED", "nodes": "?"},
    ]
    stand.answers(200, {"errors": [], "jobs": [JOB, *strangers]})
    assert [job.job_id for job in stand.client().jobs()] == ["7"]
    ((method, path, headers, _),) = stand.asked
    assert (method, path, headers["X-SLURM-USER-NAME"]) == ("GET", "/slurm/v0.0.38/jobs", "me")


def test_a_token_is_read_anew_for_every_call(stand: Stand) -> None:
    client = stand.client()
    client.jobs()
    stand.token_file.write_text(jwt(time.time() + 1200))
    client.jobs()
    first, second = (headers["X-SLURM-USER-TOKEN"] for _, _, headers, _ in stand.asked)
    assert first != second == stand.token_file.read_text()
    assert not first.startswith("SLURM_JWT")


def test_a_job_is_submitted_with_its_options(stand: Stand) -> None:
    stand.answers(200, {"errors": [], "job_id": 12})
    assert stand.client().submit("#!/bin/bash\n", parts=[{"job-name": "x", "nodes": "2"}]) == Job(id="12")
    assert stand.asked[0][3] == {"script": "#!/bin/bash\n", "job": {"name": "x", "nodes": "2-2", "tasks": 2}}


def test_a_refused_job_is_refused_with_slurms_words(stand: Stand) -> None:
    error = {"error_code": 2072, "error": "Invalid generic resource (gres) specification"}
    stand.answers(500, {"errors": [error, {"error_code": 9001, "error": "Failure during parsing"}]})
    with pytest.raises(LaunchError, match="Invalid generic resource"):
        stand.client().submit("#!/bin/bash\n", parts=[{"nodes": "2"}])


def test_a_job_that_is_gone_is_cancelled_already(stand: Stand) -> None:
    stand.answers(500, {"errors": [NO_SUCH_JOB]})
    stand.client().cancel(Job(id="9999"))
    stand.answers(500, {"errors": [{"error_number": 2021, "error": "Job/step already completing or completed"}]})
    stand.client().cancel(Job(id="7"))
    assert [(method, path) for method, path, _, _ in stand.asked] == [
        ("DELETE", "/slurm/v0.0.38/job/9999"),
        ("DELETE", "/slurm/v0.0.38/job/7"),
    ]


@pytest.mark.parametrize("number", [2012, 1001, -1])
def test_a_job_that_may_live_on_is_not_taken_for_cancelled(stand: Stand, number: int) -> None:
    stand.answers(500, {"errors": [{"error_number": number, "error": "something"}]})
    with pytest.raises(CouldNotLookError):
        stand.client().cancel(Job(id="7"))


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (401, b"Authentication failure", "does not accept the token"),
        (500, {"errors": [UNSPECIFIED], "jobs": []}, "or its controller does not answer"),
        (500, {"errors": [{"error_number": 1007, "error": "Protocol version has changed"}]}, "could not reach"),
        (404, b"Unable find requested URL", "no API v0.0.38"),
        (502, b"<html>bad gateway</html>", "no JSON"),
        (200, b"", "no JSON"),
        (200, {"errors": []}, "does not list jobs"),
        (200, {"errors": [], "jobs": None}, "does not list jobs"),
        (200, [], "no JSON"),
        (302, b"", "no JSON"),
    ],
)
def test_no_answer_is_ever_an_empty_list(stand: Stand, status: int, said: Any, why: str) -> None:
    stand.answers(status, said)
    with pytest.raises(CouldNotLookError, match=why):
        stand.client().jobs()


def test_an_expired_token_is_told_from_a_controller_that_is_gone(stand: Stand) -> None:
    stand.answers(500, {"errors": [UNSPECIFIED], "jobs": []})
    stand.token_file.write_text(jwt(time.time() - 100))
    with pytest.raises(CouldNotLookError, match=r"expired 1\d\d s ago; write a new one"):
        stand.client().jobs()
    stand.token_file.write_text("not-a-jwt")
    with pytest.raises(CouldNotLookError, match="which is no JWT"):
        stand.client().jobs()


def test_a_token_is_in_no_message(stand: Stand) -> None:
    token = stand.token_file.read_text().strip().removeprefix("SLURM_JWT=")
    for status, said in ((401, token.encode()), (500, f"<p>{token}</p>".encode()), (500, {"errors": [UNSPECIFIED]})):
        stand.answers(status, said)
        with pytest.raises(CouldNotLookError) as caught:
            stand.client().jobs()
        assert token not in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("text", [None, "", "a b", "a\nb", "\xff\xfe"])
def test_a_file_without_a_token_is_no_refusal_of_slurms(stand: Stand, text: str | None) -> None:
    stand.token_file.unlink()
    if text is not None:
        stand.token_file.write_bytes(text.encode("latin-1"))
    with pytest.raises(CouldNotLookError, match="write one there"):
        stand.client().jobs()
    assert stand.asked == []


def test_a_server_that_does_not_answer_or_is_not_there_is_no_answer(stand: Stand) -> None:
    def slowly() -> tuple[int, Any]:
        time.sleep(0.5)
        return 200, {"errors": [], "jobs": []}

    stand.answer = slowly
    with pytest.raises(CouldNotLookError, match="did not answer"):
        stand.client(limit_s=0.05).jobs()
    with pytest.raises(CouldNotLookError, match="ConnectError"):
        stand.client(url="http://127.0.0.1:9").jobs()


def test_the_network_is_what_its_file_says(stand: Stand, tmp_path: Path) -> None:
    access, token = RestAccess(url=stand.address, user="me"), TokenFile(str(stand.token_file))
    file = tmp_path / "topology.conf"
    client = RestClient(access=access, token=token, network_file=str(file))
    with pytest.raises(CouldNotLookError, match="network cannot be read"):
        client.switches()
    file.write_text("SwitchName=a Nodes=n1\n")
    assert client.switches() == "SwitchName=a Nodes=n1\n"
    assert RestClient(access=access, token=token).switches() == ""


def test_sources_that_slurmrestd_does_not_have_say_nothing(stand: Stand) -> None:
    assert (stand.client().accounting(["7"]), stand.client().completion(["7"])) == ((), ())


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "slurm.example.org:6820"},
        {"url": "http://slurm.example.org:6820"},
        {"url": "https://user:secret@slurm.example.org"},
        {"user": ""},
        {"user": "me\r\nX: y"},
        {"version": "38"},
        {"limit_s": 0.0},
    ],
    ids=str,
)
def test_an_access_that_could_not_be_used_or_not_safely_is_refused(changes: dict[str, Any]) -> None:
    base = {"url": "https://slurm.example.org:6820", "user": "me"}
    RestAccess(**base)
    with pytest.raises(SpecError):
        RestAccess(**{**base, **changes})


def test_plain_http_is_for_loopback_or_for_who_says_so() -> None:
    for url in ("http://127.0.0.1:6820", "http://[::1]:6820", "http://localhost:6820"):
        RestAccess(url=url, user="me")
    RestAccess(url="http://slurm:6820", user="me", allows_plain_http=True)


def test_a_tokens_file_has_one_path_for_every_process() -> None:
    with pytest.raises(SpecError, match="token_file"):
        TokenFile("token")
