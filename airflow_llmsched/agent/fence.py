"""What comes down the channel to one node: the lease that keeps its ranks alive, and orders passed on to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.spool import read_json, write_json


class Lease:
    """Says until when this node may keep its ranks without hearing from control. ``lease_s`` None: for ever.

    An unreadable lease renews nothing: the last one seen holds, and then it runs out.
    """

    def __init__(self, path: Path, *, lease_s: float | None, start_s: float) -> None:
        self._path = path
        self._fences = lease_s is not None
        self.until_s = start_s + (lease_s or 0.0)

    def expired(self, *, now_s: float) -> bool:
        """Take in a renewal, if there is one, and say whether the lease has run out."""
        if not self._fences:
            return False
        try:
            lease = read_json(self._path)
            if lease is not None:
                until_s = float(lease["until_s"])
                if math.isfinite(until_s):  # one without an end would fence nobody ever again
                    self.until_s = max(self.until_s, until_s)
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            pass
        return now_s >= self.until_s


class Orders:
    """Passes control's orders and preemption notices to the ranks' spool. A notice counts as one order to save."""

    def __init__(self, path: Path, spool: Path) -> None:
        self._path = path
        self._target = spool / wire.ORDERS
        self._last: dict[str, Any] | None = None
        self._control: dict[str, Any] = {"checkpoint_seq": 0, "stop": None}

    def forward(self, notices: Mapping[str, float]) -> None:
        """Write the spool's orders if they changed. Raises ``OSError`` when the spool cannot be written."""
        try:
            orders = read_json(self._path)
            if orders is not None:
                self._control = {"checkpoint_seq": int(orders["checkpoint_seq"]), "stop": orders["stop"]}
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            pass  # control replaces the file atomically; whatever is wrong with it, the last orders hold
        merged = {
            "v": wire.VERSION,
            "checkpoint_seq": self._control["checkpoint_seq"] + len(notices),
            "stop": self._control["stop"],
        }
        if merged != self._last:
            write_json(self._target, merged)
            self._last = merged
