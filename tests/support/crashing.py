"""Shots at effect points: which passage of which one, and what it does to whoever passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_llmsched.effect_points import Listener, Side, listen


class WorkerDied(BaseException):
    """SIGKILL, as seen from inside: nothing may catch it."""


@dataclass(frozen=True, slots=True, order=True)
class Shot:
    """One passage of one point: ``occurrence`` counts from 1, on the given side, in one process."""

    point: str
    side: Side
    occurrence: int

    def __str__(self) -> str:
        return f"{self.point}:{self.side}:{self.occurrence}"


class Gun:
    """A listener that calls ``fire`` once, at its shot. ``fired`` says whether it came to that."""

    def __init__(self, shot: Shot, fire: Callable[[], None]) -> None:
        self._shot = shot
        self._fire = fire
        self._count = 0
        self.fired = False

    def __call__(self, point: str, side: Side) -> None:
        if self.fired or (point, side) != (self._shot.point, self._shot.side):
            return
        self._count += 1
        if self._count == self._shot.occurrence:
            self.fired = True
            self._fire()


class Recorder:
    """A listener that notes every passage. ``where`` is called at each, and noted beside it."""

    def __init__(self, where: Callable[[], str] = lambda: "") -> None:
        self._where = where
        self._counts: Counter[tuple[str, Side]] = Counter()
        self.passed: list[tuple[Shot, str]] = []

    def __call__(self, point: str, side: Side) -> None:
        self._counts[point, side] += 1
        self.passed.append((Shot(point, side, self._counts[point, side]), self._where()))

    def first_and_last(self) -> list[tuple[Shot, str]]:
        """Return the first and the last passage of each point and side."""
        return [
            (shot, where) for shot, where in self.passed if shot.occurrence in (1, self._counts[shot.point, shot.side])
        ]


class CrashPoints:
    """A listener that counts all passages, and has the worker die at the ``fatal`` ones (counted from 1)."""

    def __init__(self, *fatal: int) -> None:
        self.fatal = set(fatal)
        self.passed: list[str] = []

    def __call__(self, point: str, side: Side) -> None:
        self.passed.append(f"{side} {point}")
        if len(self.passed) in self.fatal:
            raise WorkerDied(self.passed[-1])


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have ``listener`` told of every effect inside of the block."""
    listen(listener)
    try:
        yield
    finally:
        listen(None)
