"""Looks again and again, in a thread of its own, while a ``with`` block runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class SamplingThread(ABC):
    """What a look raises ends the looking, and is raised where the block ends, unless that failed by itself."""

    def __init__(self, *, interval_s: float) -> None:
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: Exception | None = None
        self.num_samples = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    @abstractmethod
    def _look(self) -> None:
        """Take one sample."""

    def _run(self) -> None:
        try:
            while not self._done.wait(self._interval_s):
                self._look()
        except Exception as error:  # noqa: BLE001 - raised again where the test sees it
            self._error = error
