"""The clock that clouds go by, where no other is handed to them."""

from __future__ import annotations

import time


class MachineClock:
    """``ports.Clock``: the machine's clock."""

    def now_s(self) -> float:
        """Return Unix seconds."""
        return time.time()

    def sleep(self, duration_s: float) -> None:
        """Return after ``duration_s`` seconds."""
        time.sleep(duration_s)
