"""Everything that goes over the wire to Azure: one request at a time, with bounded waits by the adapter's own clock.

The SDK's pipeline brings credentials and transport; the paths are Azure's REST interface itself, so that a request is
what ``render`` prints. The generated clients would add nothing to that but 300 MB of imported models in every worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from azure.core import PipelineClient
from azure.core.exceptions import AzureError
from azure.core.pipeline.policies import UserAgentPolicy
from azure.core.pipeline.transport import RequestsTransport
from azure.core.rest import HttpRequest
from azure.mgmt.core import ARMPipelineClient
from azure.mgmt.core.policies import ARMChallengeAuthenticationPolicy

from airflow_llmsched.clouds.azure.states import AzureFault, Reaction, SetPhase, faults, operation_phase, react
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.ports import Clock

ENDPOINT = "https://management.azure.com"
PRICES = "https://prices.azure.com"

COMPUTE = "2026-04-01"
DISKS = "2026-03-02"
SKUS = "2021-07-01"
NETWORK = "2026-03-01"
SET_NETWORK = "2018-10-01"
PRICES_VERSION = "2023-01-01-preview"
"""Versions of the interface: those of the SDK's models, which the tests check bodies against."""

NUM_TRIES = 5
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
MAX_PAGES = 1000

Method = Literal["GET", "PUT", "PATCH", "DELETE"]


class NoAnswerError(Exception):
    """The request may have been carried out, or not: nothing came back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What Azure answered. ``operation_url`` says how a long-running operation goes on, ``retry_after_s`` when to ask."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    operation_url: str | None = None
    retry_after_s: float | None = None

    @property
    def is_ok(self) -> bool:
        """Whether it was accepted."""
        return 200 <= self.status < 300

    @property
    def faults(self) -> Sequence[AzureFault]:
        """What it complains of; the HTTP status alone where it says no more."""
        error = self.body.get("error", self.body)
        return list(faults(error if isinstance(error, Mapping) else {}, status=self.status))

    def react(self) -> tuple[Reaction, AzureFault]:
        """Return what its error asks of us. Raises ``InternalError`` for one that no table has."""
        return react(self.faults)


class AzureClient:
    """One subscription's interface. ``credentials`` is an SDK token credential, None: whatever the environment has."""

    def __init__(self, *, endpoint_url: str, prices_url: str, credentials: Any, clock: Clock) -> None:
        self._endpoint_url = _checked(endpoint_url, "endpoint_url")
        self._prices_url = _checked(prices_url, "prices_url")
        self._clock = clock
        self._client = _arm_client(self._endpoint_url, credentials)
        self._prices_client = _plain_client(self._prices_url)

    def send(
        self,
        method: Method,
        path: str,
        *,
        version: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request once. Raises ``NoAnswerError``."""
        request = HttpRequest(
            method,
            path if path.startswith("http") else self._endpoint_url + path,
            params={} if "api-version=" in path else {"api-version": version, **(params or {})},
            headers={"Accept": "application/json", **(headers or {})},
            json=body,
        )
        return _sent(self._client, request, enforce_https=self._endpoint_url.startswith("https"))

    def look(self, path: str, *, version: str, params: Mapping[str, str] | None = None) -> Mapping[str, Any] | None:
        """Return what is at ``path``, None when nothing is. Raises ``CouldNotLookError``."""
        answer = self._asked(self._client, path, version, params)
        return None if answer is None else answer.body

    def look_all(
        self, path: str, *, version: str, params: Mapping[str, str] | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Return every item of the list at ``path``, page by page. Raises ``CouldNotLookError``."""
        return self._pages(self._client, path, version, params, items="value", link="nextLink")

    def prices(self, filter_: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the public price list that ``filter_`` selects. Raises ``CouldNotLookError``."""
        path, params = "/api/retail/prices", {"$filter": filter_, "currencyCode": "'USD'"}
        return self._pages(self._prices_client, path, PRICES_VERSION, params, items="Items", link="NextPageLink")

    def operation(self, url: str) -> tuple[SetPhase, Sequence[AzureFault]]:
        """Return where a long-running operation stands, and why it failed if it did. Raises ``CouldNotLookError``."""
        self._check_ours(url, self._endpoint_url)
        answer = self._asked(self._client, url, COMPUTE, None)
        if answer is None:
            raise CouldNotLookError(f"Azure has forgotten the operation {url}: look at what it was to change")
        phase = operation_phase(str(answer.body.get("status", "InProgress")))
        error = answer.body.get("error")
        return phase, list(faults(error)) if isinstance(error, Mapping) else []

    def pause(self, num_tried: int, retry_after_s: float | None = None) -> None:
        """Wait before the next try, longer each time, or as long as Azure said, within bounds."""
        wanted_s = FIRST_PAUSE_S * 2.0**num_tried if retry_after_s is None else retry_after_s
        self._clock.sleep(min(MAX_PAUSE_S, max(0.1, wanted_s)))

    def _pages(
        self,
        client: PipelineClient[HttpRequest, Any],
        path: str,
        version: str,
        params: Mapping[str, str] | None,
        *,
        items: str,
        link: str,
    ) -> Sequence[Mapping[str, Any]]:
        base_url = self._endpoint_url if client is self._client else self._prices_url
        found: list[Mapping[str, Any]] = []
        for _ in range(MAX_PAGES):
            answer = self._asked(client, path, version, params)
            if answer is None:
                raise CouldNotLookError(f"Azure has no list at {path}: check the adapter's options")
            found += answer.body.get(items) or []
            path = answer.body.get(link) or ""
            if not path:
                return found
            self._check_ours(path, base_url)
        raise CouldNotLookError(f"the list at {path} does not end after {MAX_PAGES} pages")

    def _asked(
        self, client: PipelineClient[HttpRequest, Any], path: str, version: str, params: Mapping[str, str] | None
    ) -> Answer | None:
        """Ask until there is an answer, a bounded number of times; None: there is no such thing."""
        base_url = self._endpoint_url if client is self._client else self._prices_url
        url = path if path.startswith("http") else base_url + path
        further = {} if path.startswith("http") else {"api-version": version, **(params or {})}
        why: object = ""
        for num_tried in range(NUM_TRIES):
            request = HttpRequest("GET", url, params=further, headers={"Accept": "application/json"})
            retry_after_s = None
            try:
                answer = _sent(client, request, enforce_https=base_url.startswith("https"))
            except NoAnswerError as error:
                why = error
            else:
                if answer.is_ok:
                    return answer
                reaction, why = answer.react()
                if reaction is Reaction.ABSENT:
                    return None
                if reaction not in (Reaction.THROTTLED, Reaction.TRANSIENT, Reaction.BUSY):
                    raise CouldNotLookError(f"Azure shows nothing at {url}: {why}. Check the adapter's options and role")
                retry_after_s = answer.retry_after_s
            if num_tried + 1 < NUM_TRIES:
                self.pause(num_tried, retry_after_s)
        raise CouldNotLookError(f"Azure did not answer at {url}, {NUM_TRIES} times: {why}")

    def _check_ours(self, url: str, base_url: str) -> None:
        # A token goes with the request: never to a host that only an answer named.
        if urlsplit(url)[:2] != urlsplit(base_url)[:2]:
            raise CouldNotLookError(f"Azure refers to {url}, which is not at {base_url}: not followed")


def _checked(url: str, path: str) -> str:
    parts = urlsplit(url)
    is_local = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise SpecError(path=path, value=url, hint="must be https: credentials go there")
    return url.rstrip("/")


def _transport() -> RequestsTransport:
    return RequestsTransport(connection_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S)


def _arm_client(endpoint_url: str, credentials: Any) -> ARMPipelineClient[HttpRequest, Any]:
    if credentials is None:
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415  # only where none were handed in

        credentials = DefaultAzureCredential()
    authentication = ARMChallengeAuthenticationPolicy(credentials, f"{endpoint_url}/.default")
    return ARMPipelineClient(
        endpoint_url, policies=[UserAgentPolicy("airflow-llmsched"), authentication], transport=_transport()
    )


def _plain_client(url: str) -> PipelineClient[HttpRequest, Any]:
    return PipelineClient(url, policies=[UserAgentPolicy("airflow-llmsched")], transport=_transport())


def _sent(client: PipelineClient[HttpRequest, Any], request: HttpRequest, *, enforce_https: bool) -> Answer:
    options = {} if enforce_https else {"enforce_https": False}
    try:
        response = client.send_request(request, **options)
    except AzureError as error:
        raise NoAnswerError(str(error)) from error
    try:
        body = response.json() if response.content else {}
    except ValueError:
        body = {}
    return Answer(
        status=response.status_code,
        body=body if isinstance(body, Mapping) else {},
        operation_url=response.headers.get("Azure-AsyncOperation"),
        retry_after_s=_seconds(response.headers.get("Retry-After")),
    )


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None  # a date: our own pauses do
