"""What comes down the channel to one node: the lease that keeps its ranks alive, and orders passed on to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.spool import write_json


class Lease:
    """Says until when this node may keep its ranks without hearing from control. ``lease_s`` None: for ever.

    What cannot be read renews nothing: the last lease seen holds, and then it runs out.

    ``now_s`` is the machine's clock (Unix seconds), ``elapsed_s`` one that nobody sets. A lease is over by whichever
    says so first. A clock that is set back must not lengthen what control takes for over, with a successor running;
    one that jumps ahead may have slept through the lease.
    """

    def __init__(self, *, lease_s: float | None, start_s: float, now_s: float, elapsed_s: float) -> None:
        self._fences = lease_s is not None
        self.until_s = start_s + (lease_s or 0.0)
        self._renewed_until_s = self.until_s
        self._ends_s = elapsed_s + self.until_s - now_s

    def expired(self, renewed_until_s: float | None, *, now_s: float, elapsed_s: float) -> bool:
        """Take in a renewal, if there is one, and say whether the lease has run out."""
        if renewed_until_s is not None and renewed_until_s != self._renewed_until_s:
            self._renewed_until_s = renewed_until_s
            self.until_s = max(self.until_s, renewed_until_s)
            self._ends_s = max(self._ends_s, elapsed_s + renewed_until_s - now_s)
        return self._fences and (now_s >= self.until_s or elapsed_s >= self._ends_s)


class Orders:
    """Passes control's orders and preemption notices to the ranks' spool. A notice counts as one order to save."""

    def __init__(self, spool: Path) -> None:
        self._target = spool / wire.ORDERS
        self._last: dict[str, Any] | None = None
        self._control: Mapping[str, Any] = {"checkpoint_seq": 0, "stop": None, "checkpoint_interval_s": None}

    def forward(self, orders: Mapping[str, Any] | None, notices: Mapping[str, float]) -> None:
        """Write the spool's orders if they changed; None leaves the last ones standing. Raises ``OSError``."""
        if orders is not None:
            self._control = orders
        merged = {
            "v": wire.VERSION,
            **self._control,
            "checkpoint_seq": self._control["checkpoint_seq"] + len(notices),
        }
        if merged != self._last:
            write_json(self._target, merged)
            self._last = merged
