"""The clock that workers, watchers and clouds go by, where time is not simulated."""

from __future__ import annotations

import time


class SystemClock:
    """``ports.Clock``: the machine's clock."""

    def now_s(self) -> float:
        """Return Unix seconds."""
        return time.time()

    def sleep(self, duration_s: float) -> None:
        """Return after ``duration_s`` seconds."""
        time.sleep(duration_s)
