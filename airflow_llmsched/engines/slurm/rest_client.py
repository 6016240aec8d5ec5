"""Slurm through slurmrestd, with a token: no command of Slurm's and no login to the cluster is needed.

The token is asked of its source for each call, so that whoever renews it there has renewed it here; it is in no
message.
slurmrestd answers 500 to almost everything: to a job it does not know, to a token that is not accepted, and for a
controller that is gone. Only the first says so in its error number.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.engines.agent_request import is_attempt_name
from airflow_llmsched.engines.slurm.nodes import NodeRecord, from_rest_node
from airflow_llmsched.engines.slurm.records import JobRecord, by_job, from_rest
from airflow_llmsched.engines.slurm.replies import Job
from airflow_llmsched.engines.slurm.rest_job import minor_of, submission
from airflow_llmsched.errors import CouldNotLookError, LaunchError, SpecError

if TYPE_CHECKING:
    import httpx

_SUBMIT = EffectPoint("slurm.rest.submit")
_CANCEL = EffectPoint("slurm.rest.cancel")

_LIMIT_S = 30.0
_MAX_ANSWER_BYTES = 256 * 1024 * 1024
_MAX_TOKEN_BYTES = 16 * 1024
_INVALID_JOB_ID = 2017
_ALREADY_DONE = 2021
_UNSPECIFIED = -1
_COMMUNICATION = range(1000, 2000)
"""Numbers of slurm_errno.h: of messages that did not get through, below the first of what the controller refused."""

_PARSING = range(9000, 10_000)


class TokenSource(Protocol):
    """Where the token is kept. ``where`` is for messages."""

    where: str

    def read(self) -> str:
        """Return the token, as it is now. Raises ``OSError`` or ``ValueError``, with no token in them."""


class TokenFile:
    """A token in a file of its own (0600), as ``scontrol token`` prints it or bare."""

    def __init__(self, path: str) -> None:
        if not path.startswith("/"):
            raise SpecError(path="token_file", value=path, hint="must be an absolute path, the same for every process")
        self.where = path

    def read(self) -> str:
        """Return what the file holds."""
        with Path(self.where).open("rb") as file:
            return file.read(_MAX_TOKEN_BYTES).decode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestAccess:
    """Where slurmrestd is, and as whom to ask it. ``ca_file`` holds the certificates to trust, instead of the usual.

    ``version`` is one of its API's, such as ``v0.0.38``. Without TLS a token is for whoever listens: ``http`` needs a
    loopback address, or ``allows_plain_http``.
    """

    url: str
    user: str
    version: str = "v0.0.38"
    ca_file: str | None = None
    allows_plain_http: bool = False
    limit_s: float = _LIMIT_S

    def __post_init__(self) -> None:
        """Refuse what could not be asked, or not safely. Raises ``SpecError``."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise SpecError(path="url", value=self.url, hint="must be like https://slurm.example.org:6820")
        if parts.scheme == "http" and not self.allows_plain_http and not _is_loopback(parts.hostname):
            hint = "would send the token in the clear: use https, or set allows_plain_http on a network you trust"
            raise SpecError(path="url", value=self.url, hint=hint)
        if not self.user.isprintable() or not self.user:
            raise SpecError(path="user", value=self.user, hint="must be the token's user")
        try:
            minor_of(self.version)
        except ValueError as error:
            raise SpecError(path="version", value=self.version, hint=str(error)) from error
        if not self.limit_s > 0:
            raise SpecError(path="limit_s", value=self.limit_s, hint="must be above 0 s")


class RestClient:
    """A ``SlurmClient``. ``network_file`` is a copy of the cluster's topology.conf or topology.yaml, seen from here.

    Of the network slurmrestd says nothing.
    """

    def __init__(self, *, access: RestAccess, token: TokenSource, network_file: str | None = None) -> None:
        self._access = access
        self._tokens = token
        self._network_file = network_file
        self._base = f"{access.url.rstrip('/')}/slurm/{access.version}"
        self._making = threading.Lock()
        self._http: httpx.Client | None = None
        self._pid = 0

    def submit(self, script: str, *, parts: Sequence[Mapping[str, str | None]]) -> Job:
        """Queue a batch script with the options of its ``parts``.

        Raises ``LaunchError`` when it is refused, ``CouldNotLookError`` when nobody can say whether it was queued.
        """
        body = submission(script, parts, version=self._access.version)
        with _SUBMIT:
            answer = self._ask("POST", "job/submit", body)
        if answer.errors or "job_id" not in answer.said:
            raise LaunchError(f"Slurm refused the job: {answer.why}")
        return Job(id=str(int(answer.said["job_id"])))

    def jobs(self) -> Sequence[JobRecord]:
        """Return each of this user's jobs that are named as attempts and that the controller knows, by one call."""
        listed = self._listed("jobs")
        mine = [
            job
            for job in listed
            if job.get("user_name", self._access.user) == self._access.user and is_attempt_name(str(job.get("name")))
        ]
        return list(by_job(map(from_rest, mine)).values())

    def accounting(self, _job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """Return nothing: the accounting database is not asked through slurmrestd."""
        return ()

    def completion(self, _job_ids: Sequence[str]) -> Sequence[JobRecord]:
        """Return nothing: slurmrestd shows no files."""
        return ()

    def cancel(self, job: Job) -> None:
        """End a job. Silent when it has ended already, or is not known."""
        with _CANCEL:
            answer = self._ask("DELETE", f"job/{int(job.id)}")
        if answer.errors and not answer.numbers & {_INVALID_JOB_ID, _ALREADY_DONE}:
            raise CouldNotLookError(f"job {job.id} could not be cancelled: {answer.why}; try again")

    def nodes(self) -> Sequence[NodeRecord]:
        """Return every node."""
        return [from_rest_node(node) for node in self._listed("nodes")]

    def switches(self) -> str:
        """Return what the network's file says; empty without one."""
        if self._network_file is None:
            return ""
        try:
            return Path(self._network_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CouldNotLookError(f"the cluster's network cannot be read: {error}") from error

    def _listed(self, what: str) -> list[Mapping[str, Any]]:
        answer = self._ask("GET", what)
        listed = answer.said.get(what)
        if answer.errors or not isinstance(listed, list):
            raise CouldNotLookError(f"slurmrestd does not list {what}: {answer.why}; look again")
        return listed

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> _Answer:
        """Return what slurmrestd says. Raises ``CouldNotLookError`` when it is unknown what came of the call."""
        import httpx  # noqa: PLC0415  (only those who ask slurmrestd need it)

        token = self._token()
        headers = {"X-SLURM-USER-NAME": self._access.user, "X-SLURM-USER-TOKEN": token}
        try:
            with self._client().stream(method, f"{self._base}/{path}", json=body, headers=headers) as response:
                read = bytearray()
                for chunk in response.iter_bytes():
                    read += chunk
                    if len(read) > _MAX_ANSWER_BYTES:
                        raise CouldNotLookError(f"slurmrestd answered more than {_MAX_ANSWER_BYTES} bytes: not read")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # Of the error only its kind: what it quotes may hold what was sent.
            raise CouldNotLookError(
                f"slurmrestd at {self._access.url} did not answer ({type(error).__name__}); look again"
            ) from None
        return self._understood(response.status_code, bytes(read), token)

    def _understood(self, status: int, read: bytes, token: str) -> _Answer:
        if status in (401, 403):
            raise CouldNotLookError(f"{self._refused(token)} (HTTP {status})")
        if status == 404:
            raise CouldNotLookError(f"slurmrestd at {self._access.url} has no API {self._access.version} (HTTP 404)")
        try:
            said = json.loads(read)
            answer = _Answer(said=said, errors=_errors(said))
        except (ValueError, TypeError, AttributeError):
            shown = read[:200].decode(errors="replace").replace(token, "***")
            raise CouldNotLookError(f"slurmrestd answered HTTP {status} and no JSON: {shown!r}") from None
        if _UNSPECIFIED in answer.numbers and not answer.numbers & set(_PARSING):
            raise CouldNotLookError(f"{self._refused(token)}, or its controller does not answer ({answer.why})")
        if answer.numbers & set(_COMMUNICATION):
            raise CouldNotLookError(f"slurmrestd could not reach the controller: {answer.why}; look again")
        return answer

    def _refused(self, token: str) -> str:
        expired_s = _expiry_s(token)
        said = f"slurmrestd at {self._access.url} does not accept the token in {self._tokens.where}"
        if expired_s is None:
            return f"{said}, which is no JWT: write a new one there (scontrol token username={self._access.user})"
        ago_s = time.time() - expired_s
        if ago_s >= 0:
            return f"{said}: it expired {ago_s:.0f} s ago; write a new one there"
        return said

    def _token(self) -> str:
        where = self._tokens.where
        try:
            text = self._tokens.read().strip()
        except (OSError, ValueError) as error:
            raise CouldNotLookError(
                f"the token for slurmrestd cannot be read from {where} ({type(error).__name__}): write one there"
            ) from None
        token = text.removeprefix("SLURM_JWT=")
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise CouldNotLookError(f"{where} holds no token for slurmrestd: write one there")
        return token

    def _client(self) -> httpx.Client:
        """Return this process's client: a forked one cannot go on with its parent's connections."""
        import httpx  # noqa: PLC0415  (the same)

        with self._making:
            if self._http is None or self._pid != os.getpid():
                self._http = httpx.Client(
                    timeout=self._access.limit_s,
                    verify=_trusted(self._access.ca_file),
                    trust_env=False,  # neither a proxy nor a .netrc of the process's user gets to see the token
                    follow_redirects=False,
                )
                self._pid = os.getpid()
            return self._http


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    said: Mapping[str, Any]
    errors: tuple[Mapping[str, Any], ...]

    @property
    def numbers(self) -> set[int]:
        """Numbers of its errors, which one version calls so and another otherwise."""
        keys = ("error_number", "error_code", "errno")
        return {each[key] for each in self.errors for key in keys if isinstance(each.get(key), int)}

    @property
    def why(self) -> str:
        """Its errors in words."""
        texts = [str(each.get("description") or each.get("error") or each) for each in self.errors]
        return "; ".join(dict.fromkeys(texts))[:800] or "it does not say why"


def _errors(said: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return its errors; a number of 0 is none."""
    found = said.get("errors") or ()
    return tuple(each for each in found if each.get("error_number", 1) != 0)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _trusted(ca_file: str | None) -> Any:
    import ssl  # noqa: PLC0415  (clients that ask over a loopback address do not pay for reading certificates)

    return True if ca_file is None else ssl.create_default_context(cafile=ca_file)


def _expiry_s(token: str) -> float | None:
    """Return when a JWT expires (Unix seconds); None for what is none. Nothing is verified: Slurm does that."""
    try:
        coded = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)))["exp"])
    except (IndexError, KeyError, ValueError, TypeError, binascii.Error):
        return None
