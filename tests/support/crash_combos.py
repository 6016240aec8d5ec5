"""Combinations of the crash harness: who is shot where, and what is done about it afterwards; and how some are chosen.

A combination has a name that says all of it, so that one command repeats exactly that one:
``make test-crash ONLY=<engine>:<scenario>:<point>:<side>:<occurrence>:<follow-up>``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from airflow_llmsched.effect_points import Side
from tests.support.crashing import Shot

ONLY, SEED, BUDGET, ALL = "CRASH_ONLY", "CRASH_SEED", "CRASH_BUDGET", "CRASH_ALL"
"""Environment: one combination's name; the seed of what is drawn; how many of each engine at most; all of them."""

PROPERTY = "crash"
"""Name under which a test records its :class:`Findings`, for the table at the end (``record_property``)."""


@dataclass(frozen=True, slots=True, order=True)
class Combination:
    """Shoot ``shot`` in ``scenario`` on ``engine``, then ``follow_up``."""

    engine: str
    scenario: str
    shot: Shot
    follow_up: str

    def __str__(self) -> str:
        return f"{self.engine}:{self.scenario}:{self.shot}:{self.follow_up}"

    @classmethod
    def parse(cls, name: str) -> Combination:
        """Return the combination of this name. Raises ``ValueError``."""
        engine, scenario, point, side, occurrence, follow_up = name.split(":")
        return cls(engine, scenario, Shot(point, Side(side), int(occurrence)), follow_up)

    @property
    def command(self) -> str:
        """Return what repeats exactly this combination."""
        return f"make test-crash ONLY={self} SEED={seed()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one combination came to, as counted on processes and engine."""

    engine: str
    follow_up: str
    max_alive: int
    alive_after: int
    steps_beyond: int

    def plain(self) -> dict[str, Any]:
        """Return what a test report can carry."""
        return asdict(self)


def seed() -> int:
    """Return the seed of this run of the tests."""
    return int(os.environ.get(SEED) or 0)


def chosen(
    engine: str,
    everything: Callable[[], Iterable[Combination]],
    *,
    smoke: Sequence[str] | int,
    share_ratio: float = 1.0,
) -> list[Any]:
    """Return the combinations of ``engine`` to run now. It gets ``share_ratio`` of a budget.

    ``smoke`` is what is run when nothing was asked for: these names, or so many drawn from ``everything``. Drawing goes
    by the seed, and takes every point once before it takes any twice.
    """
    only = os.environ.get(ONLY)
    if only:
        asked = Combination.parse(only)
        return [asked] if asked.engine == engine else []
    if os.environ.get(ALL):
        budget = os.environ.get(BUDGET)
        return spread(everything(), int(share_ratio * int(budget))) if budget else sorted(everything())
    return spread(everything(), smoke) if isinstance(smoke, int) else [Combination.parse(name) for name in smoke]


def spread(combinations: Iterable[Combination], count: int) -> list[Combination]:
    """Return ``count`` of them, drawn by the seed so that points and follow-ups come as evenly as can be."""
    left = sorted(combinations)
    random.Random(seed()).shuffle(left)
    times: dict[object, int] = {}
    drawn: list[Combination] = []
    while left and len(drawn) < count:
        best = min(left, key=lambda each: [times.get(part, 0) for part in _parts(each)])
        left.remove(best)
        drawn.append(best)
        for part in _parts(best):
            times[part] = times.get(part, 0) + 1
    return sorted(drawn)


def _parts(each: Combination) -> tuple[object, ...]:
    return ((each.shot.point, each.shot.side), each.follow_up, each.scenario)


@contextmanager
def repeatable(combination: Combination) -> Iterator[None]:
    """Say, with any failure inside of the block, by what command exactly this combination is repeated."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"repeat it: {combination.command}")
        raise
