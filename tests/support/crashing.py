"""Workers that die at a chosen effect: before or after each write to the journal and each call that changes a gang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_llmsched.domain.gang import GangHandle, LaunchRequest
from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.ports import ObjectInfo
from airflow_llmsched.sim.engine import SimEngine


class WorkerDied(BaseException):
    """SIGKILL, as seen from inside: nothing may catch it."""


class CrashPoints:
    """Counts effect points as they are passed, and kills the worker at the ``fatal`` ones (counted from 1)."""

    def __init__(self, *fatal: int) -> None:
        self.fatal = set(fatal)
        self.passed: list[str] = []

    def at(self, name: str) -> None:
        """Pass one effect point."""
        self.passed.append(name)
        if len(self.passed) in self.fatal:
            raise WorkerDied(name)


class CrashingStore:
    """An object store around another, with an effect point on each side of each ``create``."""

    def __init__(self, inner: Any, points: CrashPoints) -> None:
        self._inner = inner
        self._points = points
        self.uri = inner.uri

    def get(self, key: str) -> bytes:
        data: bytes = self._inner.get(key)
        return data

    def put(self, key: str, data: bytes) -> None:
        self._inner.put(key, data)

    def create(self, key: str, data: bytes) -> None:
        self._points.at(f"before writing {key}")
        self._inner.create(key, data)
        self._points.at(f"after writing {key}")

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found: Iterator[ObjectInfo] = self._inner.list(prefix)
        return found

    def folders(self, prefix: str) -> Iterator[str]:
        names: Iterator[str] = self._inner.folders(prefix)
        return names

    def delete(self, key: str) -> None:
        self._inner.delete(key)


class CrashingEngine(SimEngine):
    """A simulated engine with an effect point on each side of submitting and stopping."""

    points: CrashPoints

    def submit(self, request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        self.points.at(f"before submitting {key.name}")
        handle = super().submit(request, key=key)
        self.points.at(f"after submitting {key.name}")
        return handle

    def stop(self, handle: GangHandle, *, grace_s: float) -> None:
        self.points.at(f"before stopping {handle.key.name}")
        super().stop(handle, grace_s=grace_s)
        self.points.at(f"after stopping {handle.key.name}")
