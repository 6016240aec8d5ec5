"""What a rented machine's own cloud tells it alone: that it will be taken, and when. Standard library only.

Each cloud answers on an address that only the machine itself can reach. A notice comes half a minute (Azure, Google) or
two (AWS) before the end, so it is asked for every other second, by a thread of its own. A machine that may be taken, or
will be maintained, is not given up: only what says that it will be gone counts.
"""

from __future__ import annotations

import calendar
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from airflow_llmsched.agent.say import say

ADDRESS = "http://169.254.169.254"
INTERVAL_S = 2.0
LIMIT_S = 10.0
GOOGLE_NOTICE_S = 30.0
"""How long Google leaves a machine after it says so; it names no time."""

_MAX_BYTES = 1024 * 1024
_TOKEN_LIFE_S = 21_600
_NOT_FOUND, _UNAUTHORIZED = 404, 401
_TAKING = frozenset({"Preempt", "Terminate"})
"""Azure's scheduled events after which the machine is gone."""


class Metadata:
    """The metadata service of ``cloud``: ``aws``, ``azure`` or ``gcp``. Raises ``ValueError`` for any other."""

    def __init__(self, cloud: str, *, address: str = ADDRESS) -> None:
        looks: Mapping[str, Callable[[float], float | None]] = {
            "aws": self._look_at_aws,
            "azure": self._look_at_azure,
            "gcp": self._look_at_gcp,
        }
        if cloud not in looks:
            raise ValueError(f"no cloud {cloud!r} has a metadata service that is known: use {', '.join(looks)}")
        self._look = looks[cloud]
        self._address = address.rstrip("/")
        self._token = ""
        self._name = ""
        # Neither a proxy nor a redirection: another machine's answer would end this one's ranks.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    def taken_at_s(self, *, now_s: float) -> float | None:
        """Return when this machine will be taken (Unix seconds), None: nobody has said so.

        Raises ``OSError``, ``ValueError`` or ``KeyError`` when the service does not answer, or not as it should.
        """
        return self._look(now_s)

    def _look_at_aws(self, _now_s: float) -> float | None:
        try:
            said = self._get("/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": self._token})
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND:
                return None
            if error.code != _UNAUTHORIZED:
                raise
            life = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIFE_S)}
            self._token = self._get("/latest/api/token", life, method="PUT").decode("ascii")
            return None  # the next look has the token
        action = json.loads(said)
        return float(calendar.timegm(time.strptime(action["time"], "%Y-%m-%dT%H:%M:%SZ")))

    def _look_at_azure(self, now_s: float) -> float | None:
        headers = {"Metadata": "true"}
        if not self._name:
            query = "api-version=2021-02-01&format=text"
            self._name = self._get(f"/metadata/instance/compute/name?{query}", headers).decode()
        said = json.loads(self._get("/metadata/scheduledevents?api-version=2020-07-01", headers))
        # The document is that of the whole scale set.
        mine = [
            _not_before_s(event, now_s)
            for event in said["Events"]
            if event["EventType"] in _TAKING and self._name in event["Resources"]
        ]
        return min(mine, default=None)

    def _look_at_gcp(self, now_s: float) -> float | None:
        said = self._get("/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
        return now_s + GOOGLE_NOTICE_S if said.strip() == b"TRUE" else None

    def _get(self, path: str, headers: Mapping[str, str], *, method: str = "GET") -> bytes:
        request = urllib.request.Request(self._address + path, headers=dict(headers), method=method)  # noqa: S310  # http, always: an address of this machine
        with self._opener.open(request, timeout=LIMIT_S) as answer:
            data: bytes = answer.read(_MAX_BYTES)
        return data


def follow(metadata: Metadata, note: Callable[[float], None], *, node: str, interval_s: float = INTERVAL_S) -> None:
    """Call ``note`` once, from a thread of its own, when this machine will be taken (Unix seconds). Returns at once.

    A service that does not answer is asked again; each new kind of trouble is said once.
    """
    threading.Thread(
        target=_follow, args=(metadata, note, node, interval_s), name="llmsched-metadata", daemon=True
    ).start()


def _follow(metadata: Metadata, note: Callable[[float], None], node: str, interval_s: float) -> None:
    trouble = ""
    while True:
        try:
            taken_at_s = metadata.taken_at_s(now_s=time.time())
            if taken_at_s is not None:
                note(taken_at_s)
                return
            trouble = ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            if str(error) != trouble:
                trouble = str(error)
                say(f"llmsched: node {node}: its cloud's metadata service: {trouble}")
        time.sleep(interval_s)


def _not_before_s(event: Mapping[str, Any], now_s: float) -> float:
    """Return when an event begins; one that has begun names no time any more."""
    text = event.get("NotBefore")
    return parsedate_to_datetime(text).timestamp() if text else now_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none."""
