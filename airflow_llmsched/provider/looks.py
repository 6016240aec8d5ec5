"""The threads' side of the shared poller: reading channels, renewing leases and judging, gang by gang.

One thread at first, more while it does not keep up: on a local disk a second one only costs, on a slow or hung file
system it keeps the other gangs going.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.control.poller import KeepWatching, WatchState
from airflow_llmsched.control.watching import Told, conclude
from airflow_llmsched.ports import Clock, RunChannel
from airflow_llmsched.provider.handover import handed_over
from airflow_llmsched.provider.threads import DaemonThreads

MAX_READERS = 4
DELIVER_EVERY_S = 0.05
STALLED_S = 0.25
"""A backlog from which nobody took anything for this long gets another reader: those there wait for a file system."""

SLOW_S = 1.0
"""So does one that is not done after this long. Not sooner: more threads at work on a busy machine only hinder it."""


@dataclass(eq=False, slots=True, kw_only=True)
class Look:
    """One gang to be seen: ``state`` and ``told`` go in.

    It was begun at ``asked_s`` and given to the readers at ``queued_s`` (the poller's time). What comes out is
    ``after`` and then one of ``wait_s``, ``payload`` (the hand-over) or ``error``. A ``dropped`` look came too late: a
    thread that takes it lets it be, and nobody wants its result.
    """

    watcher: Any
    channel: RunChannel | None
    state: WatchState
    asked_s: float
    told: Told | None = None
    queued_s: float | None = None
    dropped: bool = False
    begun: bool = False
    finished: bool = False
    stuck: bool = False
    after: WatchState | None = None
    wait_s: float = 0.0
    payload: dict[str, Any] | None = None
    error: Exception | None = None

    def finish(self, clock: Clock) -> None:
        """Do it. Blocks; raises nothing."""
        if self.dropped:
            return
        try:
            self.after, verdict = conclude(self.channel, self.state, self.told, clock)
            if isinstance(verdict, KeepWatching):
                self.wait_s = verdict.after_s
            else:
                self.payload = handed_over(verdict.event)
        except Exception as error:  # noqa: BLE001  (ends this gang's watch, and no other)
            self.error = error


class Readers:
    """Finishes looks on ``threads`` and hands them, some at a time, to ``deliver``, which is called on a thread."""

    def __init__(self, threads: DaemonThreads, deliver: Callable[[list[Look]], None], clock: Clock) -> None:
        self._threads = threads
        self._deliver = deliver
        self._clock = clock
        self._queue: deque[Look] = deque()
        self._num_running = 0
        self._num_stuck = 0
        self._started_s = self._taken_s = 0.0
        self._lock = threading.Lock()

    @property
    def backlog(self) -> int:
        """Looks that no thread has taken yet."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether no thread reads."""
        return self._num_running == 0

    def add(self, looks: list[Look]) -> None:
        """Queue looks, and have a reader see to them."""
        with self._lock:
            self._queue.extend(looks)
            if self._num_running == self._num_stuck:
                self._start()

    def help(self) -> None:
        """Add a reader if those there do not keep up."""
        with self._lock:
            now_s = time.monotonic()
            stalled = now_s - max(self._taken_s, self._started_s) >= STALLED_S
            if self._queue and (stalled or now_s - self._started_s >= SLOW_S):
                self._start()

    def give_up(self, look: Look) -> bool:
        """Drop a look. Returns whether a thread is at it, which then cannot be counted on for others."""
        with self._lock:
            if not look.dropped:
                look.dropped = True
                look.stuck = look.begun and not look.finished
                self._num_stuck += look.stuck
            return look.stuck

    def _start(self) -> None:
        if self._num_running < MAX_READERS:
            self._num_running += 1
            self._started_s = time.monotonic()
            self._threads.submit(self._read)

    def _read(self) -> None:
        done: list[Look] = []
        delivered_s = time.monotonic()
        while (look := self._take()) is not None:
            look.finish(self._clock)
            self._settle(look)
            done.append(look)
            if time.monotonic() - delivered_s >= DELIVER_EVERY_S:
                self._deliver(done)
                done, delivered_s = [], time.monotonic()
        self._deliver(done)

    def _take(self) -> Look | None:
        """Return the next look; None, and one reader less, when there is none."""
        with self._lock:
            if not self._queue:
                self._num_running -= 1
                return None
            look = self._queue.popleft()
            look.begun = True
            self._taken_s = time.monotonic()
            return look

    def _settle(self, look: Look) -> None:
        with self._lock:
            look.finished = True
            self._num_stuck -= look.stuck
            look.stuck = False
