"""The supervisor's end of the run channel over presigned HTTP. No credentials, nothing but the standard library.

Two threads talk to the store, one up and one down, so that neither a slow upload delays the lease nor the store ever
delays the supervisor. A report is frozen once it was tried: it goes out with the same number and the same bytes until
the store has confirmed it, so that a repetition whose first answer was lost changes nothing.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from airflow_llmsched.agent.grant import Grant
from airflow_llmsched.agent.link import LEASE, ORDERS, REVOKED, Down, is_revoked, orders_of, until_of
from airflow_llmsched.agent.say import say
from airflow_llmsched.agent.spool import parse, read_json

REQUEST_LIMIT_S = 10.0
_CONNECT_LIMIT_S = 5.0
_MAX_BODY_BYTES = 16 * 1024 * 1024
_MIN_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
_DOWN_INTERVAL_S = 5.0
_RENEWAL = "renewal"
_DENIED = (401, 403)
_HEADERS: dict[str, dict[str, str]] = {
    "GET": {},
    "PUT": {"Content-Type": "application/json", "x-ms-blob-type": "BlockBlob"},  # the latter for Azure alone
}


class _Answer(NamedTuple):
    """What came of a request. ``trouble`` says, without the URL, why there is no ``body``."""

    body: bytes | None
    trouble: str = ""
    status: int = 0


class HttpLink:
    """A ``Link`` whose URLs are in the file ``grant``; later ones are read through the channel itself.

    Args:
        grant: The 0600 file that control wrote for this node.
        node: The node's id, for messages.
        flush_interval_s: How often the node reports while all is well.
        lease_s: Length of the gang's lease; the lease is then read several times as often.
    """

    def __init__(self, grant: Path, *, node: str, flush_interval_s: float, lease_s: float | None) -> None:
        plain = read_json(grant)
        if plain is None:
            raise FileNotFoundError(f"the grant of URLs of node {node} is missing: {grant}")
        self._node = node
        self._grant = Grant.parse(plain)
        self._flush_interval_s = flush_interval_s
        self._fences = lease_s is not None
        self._down_interval_s = max(0.1, min(_DOWN_INTERVAL_S, (lease_s or _DOWN_INTERVAL_S * 6) / 6))
        self._changed = threading.Condition()
        self._outgoing: tuple[int, bytes] | None = None
        self._next_seq = 1
        self._next_at_s = 0.0
        self._until_s: float | None = None
        self._orders: dict[str, Any] | None = None
        self._wants_grant = False
        self._asked = threading.Event()
        self._closed = False
        self._troubles: dict[str, str] = {}
        self._opener = urllib.request.build_opener(_NoRedirect)
        for work in (self._send_up, self._read_down):
            threading.Thread(target=work, name=f"llmsched-{work.__name__}", daemon=True).start()

    def ready(self) -> bool:
        """Whether the last report has arrived, there is a URL for the next, and its time has come."""
        with self._changed:
            if self._outgoing is not None or time.monotonic() < self._next_at_s:
                return False
            if self._grant.num_left(self._next_seq) <= 1:  # the last place is kept for the last report
                self._want_grant("all URLs are used up; gathering until control sends more")
                return False
            return True

    def send(self, report: dict[str, Any]) -> None:
        """Hand the report to the thread that sends."""
        with self._changed:
            seq = int(report["seq"])
            self._outgoing = (seq, json.dumps(report, separators=(",", ":")).encode())
            self._next_seq = seq + 1
            self._next_at_s = time.monotonic() + self._flush_interval_s * (self._grant.pace(seq + 1) - 1.0)
            self._changed.notify_all()

    def down(self) -> Down:
        """Return what the reading thread has found."""
        with self._changed:
            return Down(self._until_s, self._orders)

    def close(self, report: dict[str, Any], *, limit_s: float) -> bool:
        """Wait for the report on its way, then for the last one."""
        limit_at_s = time.monotonic() + limit_s
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._outgoing is None, limit_s)
            if arrived:
                self.send(report)
                arrived = self._changed.wait_for(lambda: self._outgoing is None, limit_at_s - time.monotonic())
            if not arrived:
                self._say("up", f"the last report could not be sent within {limit_s:g} s")
            self._closed = True
            self._changed.notify_all()
            self._asked.set()
            return arrived

    def _send_up(self) -> None:
        backoff_s = _MIN_BACKOFF_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outgoing is not None or self._closed)
                if self._outgoing is None or self._closed:
                    return
                seq, data = self._outgoing
                if seq < self._grant.first_seq:  # control gives places from the first report that it has not read
                    self._sent()
                    continue
                url = self._grant.url_of(seq)
                if url is None:
                    self._want_grant("no URL for the next report; gathering until control sends more")
                    self._changed.wait(_MAX_BACKOFF_S)
                    continue
            answer = self._request(url, data)
            with self._changed:
                if answer.body is not None:
                    backoff_s = _MIN_BACKOFF_S
                    self._say("up", "")
                    self._sent()
                    continue
                self._say("up", f"cannot send reports: {answer.trouble}; gathering them meanwhile")
                if answer.status in _DENIED:
                    self._want_grant("a URL was refused; asking for newer ones")
                self._changed.wait(_jittered(backoff_s))  # news of any kind is a reason to try again sooner
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    def _sent(self) -> None:
        self._outgoing = None
        self._changed.notify_all()

    def _read_down(self) -> None:
        while not self._closed:
            self._read_lease()
            self._read_orders()
            self._read_grant()
            self._asked.wait(_jittered(self._down_interval_s))
            self._asked.clear()

    def _read_lease(self) -> None:
        """A lease counts only while it is not revoked, which is looked at after it."""
        if not self._fences:
            return
        until_s = until_of(self._get(LEASE))
        if until_s is None or until_s <= (self._until_s or 0.0):
            return
        revoked = self._get(REVOKED)
        if revoked is not None and not is_revoked(revoked):
            with self._changed:
                self._until_s = until_s

    def _read_orders(self) -> None:
        orders = orders_of(self._get(ORDERS))
        if orders is not None:
            with self._changed:
                self._orders = orders

    def _read_grant(self) -> None:
        with self._changed:
            if not self._wants_grant and not self._grant.is_due(self._next_seq, now_s=time.time()):
                return
        plain = self._get(_RENEWAL)
        if plain is None:
            return
        try:
            grant = Grant.parse(plain)
        except ValueError as error:
            self._say(_RENEWAL, str(error))
            return
        with self._changed:
            if grant.issued_at_s > self._grant.issued_at_s:
                self._grant = grant
                self._wants_grant = False
                self._say("urls", "")
                self._changed.notify_all()

    def _get(self, name: str) -> Mapping[str, Any] | None:
        answer = self._request(self._grant.down[name])
        if answer.body is None:
            self._say(name, f"cannot read {name}: {answer.trouble}")
            return None
        plain = parse(answer.body)
        if plain is None:
            self._say(name, f"cannot read {name}: no JSON object")
            return None
        self._say(name, "")
        return plain

    def _request(self, url: str, data: bytes | None = None) -> _Answer:
        """Send one request: PUT ``data``, or GET. Never raises, and never shows the URL."""
        method = "GET" if data is None else "PUT"
        give_up_at_s = time.monotonic() + REQUEST_LIMIT_S
        try:
            request = urllib.request.Request(  # noqa: S310  (Grant lets http and https through and nothing else)
                url, data=data, method=method, headers=_HEADERS[method]
            )
            with self._opener.open(request, timeout=_CONNECT_LIMIT_S) as response:
                return _read_body(response, give_up_at_s)
        except urllib.error.HTTPError as error:
            error.close()
            return _Answer(None, f"HTTP {error.code}", error.code)
        except urllib.error.URLError as error:
            return _Answer(None, _describe(error.reason))
        except (OSError, http.client.HTTPException, ValueError) as error:
            return _Answer(None, _describe(error))

    def _want_grant(self, why: str) -> None:
        self._say("urls", why)
        if not self._wants_grant:
            self._wants_grant = True
            self._asked.set()

    def _say(self, topic: str, text: str) -> None:
        """Log a trouble when it is new, and that it is over."""
        with self._changed:
            if self._troubles.get(topic, "") == text:
                return
            self._troubles[topic] = text
        say(f"llmsched: node {self._node}: channel: {text or f'{topic} works again'}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A signature is for one place only; whoever redirects does not get it."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _read_body(response: http.client.HTTPResponse, give_up_at_s: float) -> _Answer:
    """Read a body that may come in drops: each is bounded by the socket's limit, all of them by ours."""
    parts: list[bytes] = []
    size = 0
    while part := response.read1(64 * 1024):
        parts.append(part)
        size += len(part)
        if size > _MAX_BODY_BYTES:
            return _Answer(None, f"more than {_MAX_BODY_BYTES} bytes")
        if time.monotonic() > give_up_at_s:
            return _Answer(None, f"not done within {REQUEST_LIMIT_S:g} s")
    return _Answer(b"".join(parts), status=response.status)


def _describe(error: object) -> str:
    """Name an error without its text where that could hold the URL."""
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_LIMIT_S:g} s"
    return type(error).__name__


def _jittered(seconds: float) -> float:
    """Vary a pause, so that the nodes of a gang do not all come at once."""
    return seconds * random.uniform(0.75, 1.25)  # noqa: S311  (no secret)
