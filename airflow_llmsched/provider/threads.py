"""A bounded set of daemon threads for calls that may never return.

The pools of ``concurrent.futures`` are joined when the interpreter ends: one hung call would keep a triggerer from
ever stopping. These threads die with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class DaemonThreads:
    """Runs calls on at most ``max_threads`` threads, started as they are needed."""

    def __init__(self, max_threads: int, *, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = 0
        self._num_waiting = 0  # idle threads minus jobs that none has taken yet
        self._closed = False

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Run ``call(*args)`` on a thread, as soon as one is free. Raises ``RuntimeError`` once closed."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name} are closed")
            self._num_waiting -= 1
            if self._num_waiting < 0 and self._num_threads < self._max_threads:
                self._start()
            self._jobs.put((future, call, args))
        return future

    def close(self) -> None:
        """End every thread once it is idle; what is queued already still runs. Idempotent, and waits for nobody."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in range(self._num_threads):
                    self._jobs.put(None)

    def _start(self) -> None:
        self._num_threads += 1
        self._num_waiting += 1
        threading.Thread(target=self._work, name=f"{self._name}-{self._num_threads}", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _do(job)
            del job  # an idle thread must not keep its last call's arguments alive
            with self._lock:
                self._num_waiting += 1


def _do(job: _Job) -> None:
    future, call, args = job
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call(*args)
    except BaseException as error:  # noqa: BLE001  (whoever waits for the future gets it)
        future.set_exception(error)
    else:
        future.set_result(result)
