"""Time that passes only when someone sleeps."""

from __future__ import annotations

from airflow_llmsched.errors import InternalError


class VirtualClock:
    """``ports.Clock`` for simulations: days pass in microseconds."""

    def __init__(self, now_s: float = 1_750_000_000.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        """Return simulated Unix seconds."""
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        """Advance by ``duration_s`` seconds at once."""
        if duration_s < 0:
            raise InternalError(f"cannot sleep {duration_s} s: time does not run backwards")
        self._now_s += duration_s
