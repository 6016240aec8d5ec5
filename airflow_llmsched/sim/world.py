"""Discrete events under a virtual clock: what is due happens, in order of time, whenever someone looks."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_llmsched.ports import Clock


@dataclass(order=True, slots=True)
class _Due:
    at_s: float
    number: int
    action: Callable[[], None] = field(compare=False)


class SimWorld:
    """The event queue that engine, channels and checkpoints of one simulation share."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._queue: list[_Due] = []
        self._count = 0
        self._time_s = clock.now_s()

    @property
    def time_s(self) -> float:
        """Time of the event that is happening; between events, of the last look."""
        return self._time_s

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Have ``action`` happen at ``at_s``; of several at one instant the first scheduled comes first."""
        self._count += 1
        heapq.heappush(self._queue, _Due(at_s, self._count, action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Have ``action`` happen ``delay_s`` after the event that is happening now."""
        self.at(self._time_s + delay_s, action)

    def advance(self) -> float:
        """Let everything due by the clock's now happen, and return that now."""
        now_s = self.clock.now_s()
        while self._queue and self._queue[0].at_s <= now_s:
            due = heapq.heappop(self._queue)
            self._time_s = max(self._time_s, due.at_s)
            due.action()
        self._time_s = max(self._time_s, now_s)
        return now_s
