"""The supervisor's end of the run channel: what it needs of it, and the form over a shared directory.

The form over HTTP is ``agent.http_link``. A supervisor cannot tell them apart: neither ever makes it wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from airflow_llmsched.agent.spool import LineWriter, read_json

ORDERS = "orders"
LEASE = "lease"
REVOKED = "revoked"


class Down(NamedTuple):
    """What has come down the channel. ``orders`` is None as long as none could be read."""

    lease_until_s: float | None = None
    orders: Mapping[str, Any] | None = None


class Link(Protocol):
    """One node's way to control and back."""

    def ready(self) -> bool:
        """Whether a report can be taken now. While not, the caller gathers on. Raises ``OSError`` naming the file."""

    def send(self, report: dict[str, Any]) -> None:
        """Take a report; it is sent, again and again if need be, before the next. Raises ``OSError``."""

    def down(self) -> Down:
        """Return the newest lease that holds and the newest orders, as far as they are known. Never raises."""

    def close(self, report: dict[str, Any], *, limit_s: float) -> bool:
        """Send the last report, waiting at most ``limit_s``; return whether it went. Raises ``OSError``."""


class DirectoryLink:
    """A ``Link`` over files: reports are appended to ``up/<node>.jsonl``, lease and orders are read from ``down/``."""

    def __init__(self, channel_root: str, *, node: str) -> None:
        self._up = Path(channel_root) / "up" / f"{node}.jsonl"
        self._down = Path(channel_root) / "down"
        self._writer = LineWriter(str(self._up))
        self._left: dict[str, Any] | None = None
        self._until_s: float | None = None

    def ready(self) -> bool:
        """Write what could not be written before."""
        try:
            if not self._up.parent.exists():
                self._up.parent.mkdir(parents=True, exist_ok=True)
            if self._left is not None:
                self._writer.append(self._left)
                self._left = None
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._up)) from error
        return True

    def send(self, report: dict[str, Any]) -> None:
        """Append the report. What fails is kept, and written first the next time."""
        self._left = report
        self.ready()

    def down(self) -> Down:
        """Read both files. A lease counts only while it is not revoked, which is looked at after it."""
        until_s = until_of(self._read(LEASE))
        if until_s is not None and until_s > (self._until_s or 0.0) and not self._is_revoked():
            self._until_s = until_s
        return Down(self._until_s, orders_of(self._read(ORDERS)))

    def close(self, report: dict[str, Any], *, limit_s: float) -> bool:  # noqa: ARG002  (a write does not wait)
        """Append the last report."""
        if self.ready():
            self.send(report)
        return True

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            return read_json(self._down / f"{name}.json")
        except (OSError, ValueError):
            return None  # control replaces files atomically; whatever is wrong with one, what was known holds

    def _is_revoked(self) -> bool:
        try:
            revoked = read_json(self._down / f"{REVOKED}.json")
        except (OSError, ValueError):
            return True  # a renewal that cannot be checked is none
        return revoked is not None and is_revoked(revoked)


def until_of(lease: Mapping[str, Any] | None) -> float | None:
    """Return until when a lease runs (Unix seconds), None for what is no lease."""
    try:
        until_s = None if lease is None else float(lease["until_s"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    # One without an end would fence nobody ever again.
    return until_s if until_s is not None and math.isfinite(until_s) else None


def orders_of(orders: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the orders in the form that ranks get, None for what are none."""
    try:
        if orders is None:
            return None
        interval_s = orders.get("checkpoint_interval_s")
        return {
            "checkpoint_seq": int(orders["checkpoint_seq"]),
            "stop": orders["stop"],
            "checkpoint_interval_s": None if interval_s is None else float(interval_s),
        }
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def is_revoked(revoked: Mapping[str, Any]) -> bool:
    """Whether control has given the gang up: what was renewed after that does not count."""
    return revoked.get("at_s") is not None
