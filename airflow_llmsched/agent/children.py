"""What one node's supervisor has started itself: the launchers of its trainers, and its helpers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from airflow_llmsched.agent import launch
from airflow_llmsched.agent.launchers.site import Start


class Children:
    """Starts and collects them. Their output goes to ``log``."""

    def __init__(self, *, log: Path) -> None:
        self._log = log
        self._codes: dict[int, int | None] = {}
        self._helpers: set[int] = set()

    def start(self, starts: Iterable[Start]) -> None:
        """Start all, one after the other. Raises ``OSError``."""
        for start in starts:
            pid = launch.spawn(start, log=self._log)
            self._codes[pid] = None
            if start.is_helper:
                self._helpers.add(pid)

    def reap(self) -> None:
        """Collect what has ended: ours, and orphans that we adopted."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._codes:
                    self._codes[pid] = os.waitstatus_to_exitcode(status)

    def codes(self, *, with_helpers: bool) -> list[int]:
        """Return how those that have ended did: the exit code, or minus the signal."""
        return [
            code for pid, code in self._codes.items() if code is not None and (with_helpers or pid not in self._helpers)
        ]

    @property
    def are_trainers_left(self) -> bool:
        """Whether a launcher of trainers has not ended."""
        return any(code is None for pid, code in self._codes.items() if pid not in self._helpers)
