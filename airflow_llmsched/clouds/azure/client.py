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
from airflow_llmsched.errors import CouldNotLookError, InternalError, SpecError
from airflow_llmsched.ports import Clock

ENDPOINT = "https://management.azure.com"
PRICES = "https://prices.azure.com"

COMPUTE = "2026-04-01"
DISKS = "2026-03-02"
SKUS = "2021-07-01"
NETWORK = "2026-03-01"
SET_NETWORK = "2018-10-01"
GRAPH = "2022-10-01"
PRICES_VERSION = "2023-01-01-preview"
"""Versions of the interface: those of the SDK's models, which the tests check bodies against."""

NUM_TRIES = 5
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
MAX_PAGES = 1000

USER_AGENT = "airflow-llmsched"

PASSING = frozenset({Reaction.THROTTLED, Reaction.TRANSIENT, Reaction.BUSY})
"""What goes by when one waits."""

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class NoAnswerError(Exception):
    """The request may have been carried out, or not: nothing came back."""


class NoSuchListError(CouldNotLookError):
    """What the list is of does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What Azure answered. ``operation_url`` tells how a long operation goes on, ``retry_after_s`` when to ask next."""

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
        self._clock = clock
        self._manager = _manager(_checked(endpoint_url, "endpoint_url"), credentials)
        self._price_list = _price_list(_checked(prices_url, "prices_url"))

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
        query = {"api-version": version, **(params or {})}
        return self._manager.send(method, path, params=query, headers=headers or {}, body=body)

    def look(self, path: str, *, version: str, params: Mapping[str, str] | None = None) -> Mapping[str, Any] | None:
        """Return what is at ``path``, None when nothing is. Raises ``CouldNotLookError``."""
        answer = self._asked(self._manager, path, {"api-version": version, **(params or {})})
        return None if answer is None else answer.body

    def look_all(
        self, path: str, *, version: str, params: Mapping[str, str] | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Return every item of the list at ``path``. Raises ``NoSuchListError``, ``CouldNotLookError``."""
        query = {"api-version": version, **(params or {})}
        return self._pages(self._manager, path, query, items="value", link="nextLink")

    def graph(self, query: str, *, subscription_id: str) -> Sequence[Mapping[str, Any]]:
        """Return what the resource graph has for ``query``, a thousand rows at most. Raises ``CouldNotLookError``."""
        body = {"subscriptions": [subscription_id], "query": query}
        path = "/providers/Microsoft.ResourceGraph/resources"
        answer = self._asked(self._manager, path, {"api-version": GRAPH}, method="POST", body=body)
        if answer is None:
            raise NoSuchListError(f"Azure has no {path}: check the adapter's endpoint")
        return answer.body.get("data") or []

    def prices(self, filter_: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the public price list that ``filter_`` selects. Raises ``CouldNotLookError``."""
        query = {"api-version": PRICES_VERSION, "currencyCode": "'USD'", "$filter": filter_}
        return self._pages(self._price_list, "/api/retail/prices", query, items="Items", link="NextPageLink")

    def operation(self, url: str) -> tuple[SetPhase, Sequence[AzureFault]] | None:
        """Return where a long-running operation stands, and why it failed if it did.

        None: Azure has forgotten it, or has a word for it that is new to us.

        Raises ``CouldNotLookError``.
        """
        answer = self._asked(self._manager, url, {})
        if answer is None:
            return None
        error = answer.body.get("error")
        stands = operation_phase(str(answer.body.get("status", "InProgress")), url=url)
        if stands is None:
            return None
        return stands, list(faults(error)) if isinstance(error, Mapping) else []

    def pause(self, num_tried: int, retry_after_s: float | None = None) -> None:
        """Wait before the next try, longer each time, or as long as Azure said, within bounds."""
        wanted_s = FIRST_PAUSE_S * 2.0**num_tried if retry_after_s is None else retry_after_s
        self._clock.sleep(min(MAX_PAUSE_S, max(0.1, wanted_s)))

    def _pages(
        self, wire: _Wire, path: str, query: Mapping[str, str], *, items: str, link: str
    ) -> Sequence[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for _ in range(MAX_PAGES):
            answer = self._asked(wire, path, query)
            if answer is None:
                raise NoSuchListError(f"Azure has no list at {path}: check the adapter's options")
            found += answer.body.get(items) or []
            path, query = str(answer.body.get(link) or ""), {}
            if not path:
                return found
        raise CouldNotLookError(f"the list does not end after {MAX_PAGES} pages: it goes on at {path}")

    def _asked(
        self,
        wire: _Wire,
        path: str,
        query: Mapping[str, str],
        *,
        method: Method = "GET",
        body: Mapping[str, Any] | None = None,
    ) -> Answer | None:
        """Ask until there is an answer, a bounded number of times; None: there is no such thing."""
        why: object = ""
        for num_tried in range(NUM_TRIES):
            retry_after_s = None
            try:
                answer = wire.send(method, path, params=query, body=body)
            except NoAnswerError as error:
                why = error
            else:
                if answer.is_ok:
                    return answer
                reaction, why = _looked(answer, path)
                if reaction is Reaction.ABSENT:
                    return None
                if reaction not in PASSING:
                    raise CouldNotLookError(f"Azure does not show {path}: {why}. Check the adapter's options and role")
                retry_after_s = answer.retry_after_s
            if num_tried + 1 < NUM_TRIES:
                self.pause(num_tried, retry_after_s)
        raise CouldNotLookError(f"Azure did not show {path}, asked {NUM_TRIES} times: {why}")


@dataclass(frozen=True, slots=True)
class _Wire:
    """A pipeline to one host. ``options`` go with each request through it."""

    base_url: str
    client: PipelineClient[HttpRequest, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def send(
        self,
        method: Method,
        path: str,
        *,
        params: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Send one request once. ``path`` may be a link of an answer. Raises ``NoAnswerError``."""
        url = self.base_url + path if path.startswith("/") else path
        if urlsplit(url)[:2] != urlsplit(self.base_url)[:2]:
            # A token goes with the request: never to a host that only an answer named.
            raise CouldNotLookError(
                f"an answer of Azure refers to {url}, which is not at {self.base_url}: not followed"
            )
        request = HttpRequest(
            method, url, params=dict(params), headers={"Accept": "application/json", **(headers or {})}, json=body
        )
        try:
            response = self.client.send_request(request, **self.options)
        except AzureError as error:
            raise NoAnswerError(str(error)) from error
        return _answer(response)


def _checked(url: str, path: str) -> str:
    parts = urlsplit(url)
    is_local = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise SpecError(path=path, value=url, hint="must be https: credentials go there")
    return url.rstrip("/")


def _transport() -> RequestsTransport:
    return RequestsTransport(connection_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S)


def _manager(endpoint_url: str, credentials: Any) -> _Wire:
    if credentials is None:
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415  # only where none were handed in

        credentials = DefaultAzureCredential()
    authentication = ARMChallengeAuthenticationPolicy(credentials, f"{endpoint_url}/.default")
    policies = [UserAgentPolicy(USER_AGENT), authentication]
    client: Any = ARMPipelineClient(endpoint_url, policies=policies, transport=_transport())
    return _Wire(endpoint_url, client, {"enforce_https": endpoint_url.startswith("https")})


def _price_list(url: str) -> _Wire:
    return _Wire(url, PipelineClient(url, policies=[UserAgentPolicy(USER_AGENT)], transport=_transport()))


def _answer(response: Any) -> Answer:
    try:
        body = response.json() if response.content else {}
    except ValueError:
        body = {}  # a gateway's page
    return Answer(
        status=response.status_code,
        body=body if isinstance(body, Mapping) else {},
        operation_url=response.headers.get("Azure-AsyncOperation") or None,
        retry_after_s=_seconds(response.headers.get("Retry-After")),
    )


def _looked(answer: Answer, path: str) -> tuple[Reaction, AzureFault]:
    try:
        return answer.react()
    except InternalError as error:
        raise CouldNotLookError(f"Azure does not show {path}: {error}") from error


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None  # a date: our own pauses do
