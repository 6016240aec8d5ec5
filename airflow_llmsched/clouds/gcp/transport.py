"""Calls to Google's REST interfaces: authorised, bounded in time and number, and with what went wrong in our words.

Plain REST on google-auth: the typed compute client would cost each worker process 4 s and 120 MB to import (ADR 0007).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import google.auth
import requests
from google.auth import exceptions as auth_errors
from google.auth.credentials import Credentials, with_scopes_if_required
from google.auth.transport.requests import AuthorizedSession

from airflow_llmsched.clouds.gcp.states import NativeError
from airflow_llmsched.errors import CouldNotLookError, LlmschedError, TransientError
from airflow_llmsched.ports import Clock

log = logging.getLogger(__name__)

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
TIMEOUT_S = (5.0, 60.0)
"""For a connection, and for the answer."""
NUM_TRIES = 4
FIRST_PAUSE_S = 0.5
THROTTLED = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
HARMLESS_WARNINGS = frozenset({"NO_RESULTS_ON_PAGE"})
"""Warnings in a list that mean no more than that a place has nothing."""
_SCOPE = re.compile(r"(?:zones|regions|locations)/(?P<name>[a-z0-9-]+)$")


class RefusedError(LlmschedError):
    """Google understood the call and refused it: nothing was done. ``errors`` say why."""

    def __init__(self, status: int, errors: tuple[NativeError, ...]) -> None:
        self.status = status
        self.errors = errors
        super().__init__(f"HTTP {status}: {'; '.join(map(str, errors))}")


class Transport:
    """One project's calls below ``root``. Every call may be repeated: each is idempotent by a name or a request id.

    ``credentials`` None are those of the environment. They are refreshed by google-auth when they must be.
    """

    def __init__(self, *, root: str, credentials: Credentials | None, clock: Clock) -> None:
        self._root = root.rstrip("/")
        self._credentials = credentials
        self._clock = clock
        self._session: AuthorizedSession | None = None

    def call(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: object = None
    ) -> dict[str, Any]:
        """Return the answer to one call, made again a few times where that may help.

        Raises ``RefusedError``, ``TransientError`` (every try was one too many: nothing was changed),
        ``CouldNotLookError`` (no answer, or one of a broken server: it is unknown what was done).
        """
        told, throttled_only = "", True
        for attempt in range(NUM_TRIES):
            if attempt:
                self._clock.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                response = self._send(method, path, params=params, body=body)
            except (requests.ConnectionError, requests.Timeout, auth_errors.TransportError) as error:
                told, throttled_only = f"no answer ({type(error).__name__})", False
                continue
            if response.status_code < 400:
                return _json(response)
            refused = RefusedError(response.status_code, _errors(response))
            throttled = response.status_code == 429 or any(each.code in THROTTLED for each in refused.errors)
            if not throttled and response.status_code < 500:
                raise refused
            told, throttled_only = str(refused), throttled_only and throttled
        kind = TransientError if throttled_only else CouldNotLookError
        raise kind(f"{method} {path} failed {NUM_TRIES} times, last: {told}")

    def look(self, path: str, *, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the answer to one question. Raises ``CouldNotLookError`` for whatever keeps us from it."""
        found = self.look_for(path, params=params)
        if found is None:
            raise CouldNotLookError(f"Google does not know {path}. Check the project, and what is enabled in it")
        return found

    def look_for(self, path: str, *, params: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """Return one thing; None: there is none. Raises ``CouldNotLookError`` for whatever keeps us from seeing."""
        try:
            return self.call("GET", path, params=params)
        except CouldNotLookError:
            raise
        except RefusedError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise CouldNotLookError(f"Google does not show {path}: {error}") from error
        except TransientError as error:
            raise CouldNotLookError(str(error)) from error

    def pages(
        self, path: str, *, params: Mapping[str, str], unreached: set[str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield every page of a list. Raises ``CouldNotLookError``, also where a part was not reachable.

        With ``unreached``, what could be reached is listed, and the zones and regions that could not are added to it.
        """
        token = ""
        while True:
            page = self.look(path, params={**params, **({"pageToken": token} if token else {})})
            missing = _missing(page)
            if missing and (unreached is None or not all(missing.values())):
                raise CouldNotLookError(f"{path} is not whole: {', '.join(missing)}. Look again later")
            if unreached is not None:
                unreached.update(missing.values())
            yield page
            token = page.get("nextPageToken", "")
            if not token:
                return

    def _send(self, method: str, path: str, *, params: Mapping[str, str] | None, body: object) -> requests.Response:
        try:
            session = self._session = self._session or self._open()
            response: requests.Response = session.request(
                method, f"{self._root}/{path}", params=params, json=body, timeout=TIMEOUT_S
            )
        except (auth_errors.RefreshError, auth_errors.DefaultCredentialsError) as error:
            raise CouldNotLookError(
                f"Google's credentials cannot be used: {error}. Renew them, or name others in the connection"
            ) from error
        return response

    def _open(self) -> AuthorizedSession:
        credentials = self._credentials
        if credentials is None:
            credentials, _ = google.auth.default(scopes=SCOPES)
        return AuthorizedSession(with_scopes_if_required(credentials, SCOPES))


def _json(response: requests.Response) -> dict[str, Any]:
    if not response.content:
        return {}
    answer = response.json()
    assert isinstance(answer, dict), "Google's answers are objects"
    return answer


def _errors(response: requests.Response) -> tuple[NativeError, ...]:
    """Return why a call was refused: compute lists reasons, Cloud TPU names one status."""
    try:
        error = response.json().get("error", {})
    except ValueError:
        return (NativeError(code=f"HTTP_{response.status_code}", message=response.text[:200]),)
    message = str(error.get("message", ""))
    listed = [each for each in error.get("errors", []) if each.get("reason")]
    if listed:
        return tuple(NativeError(code=each["reason"], message=each.get("message", message)) for each in listed)
    return (NativeError(code=str(error.get("status") or f"HTTP_{response.status_code}"), message=message),)


def _missing(page: Mapping[str, Any]) -> dict[str, str]:
    """Return what a list leaves out because it could not be reached, as Google words it, and which place that is.

    What is not in such a list may be there all the same. The place is empty where Google names none.
    """
    scopes = page.get("items")
    inner = scopes if isinstance(scopes, dict) else {}
    named = {scope: each["warning"] for scope, each in inner.items() if each.get("warning")}
    bad = {f"{scope}: {each['code']}": scope for scope, each in named.items() if _is_bad(each)}
    whole = page.get("warning")
    unreachable = {each: each for each in (*page.get("unreachables", []), *page.get("unreachable", []))}
    if whole and _is_bad(whole) and not bad and not unreachable:
        bad[str(whole["code"])] = ""
    return {told: _place(where) for told, where in {**bad, **unreachable}.items()}


def _is_bad(warning: Mapping[str, Any]) -> bool:
    return warning.get("code") not in HARMLESS_WARNINGS


def _place(scope: str) -> str:
    """Return the zone or region that a scope names (``zones/us-central1-a``), empty where it names none."""
    found = _SCOPE.search(scope)
    return found["name"] if found is not None else ""
