"""What is free and what is used, now and at each start that has been promised. Pure.

Free slots only ever become fewer at a start. So a gang fits from one moment to another when it fits at the first one
and at each promised start in between, and it is enough to keep free slots and usage for these instants.

Axes: N = node, T = team, Q = quantity, E = end of a gang, in order of time.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.queue.room import Share

MAX_LOOKS = 64
"""Moments that are tried, one after the other, from the first one at which enough would be free if nobody were promised
anything. Beyond them a gang is promised the moment when all that is known has ended."""


@dataclass(slots=True, kw_only=True, eq=False)
class Span:
    """Slots and quantities that one gang holds from ``start_s`` until ``end_s``."""

    key: RunKey
    team: int
    share: Share
    asked_Q: FloatArray
    start_s: float
    end_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class Instant:
    """Free slots and used quantities at one moment."""

    at_s: float
    free_N: IntArray
    usage_TQ: FloatArray

    def add(self, span: Span, sign: int) -> None:
        """Let a gang take (1) its slots, or give them back (-1)."""
        self.free_N[span.share[0]] -= sign * span.share[1]
        self.usage_TQ[span.team] += sign * span.asked_Q


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Left:
    """What is left over a stretch of time: the least that is free of each node, and what is used at each instant."""

    free_N: IntArray
    usages: tuple[FloatArray, ...]

    @classmethod
    def over(cls, instants: Sequence[Instant]) -> Left:
        """Return what is left of several instants. A node of which more is held than there is has nothing free."""
        free_N = np.minimum.reduce([each.free_N for each in instants])
        return cls(free_N=np.maximum(free_N, 0), usages=tuple(each.usage_TQ for each in instants))


Fits = Callable[[Left], bool]
"""Says whether a gang fits into what is left."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Ends:
    """Ends of running gangs in order, their slots one after the other."""

    end_E: FloatArray
    first_E: IntArray
    nodes: IntArray
    counts: IntArray
    team_E: IntArray
    asked_EQ: FloatArray


@dataclass(slots=True, kw_only=True, eq=False)
class Timeline:
    """The plan as it grows. ``instants`` are in order of time; the first one is now."""

    now_s: float
    instants: list[Instant]
    running: dict[RunKey, Span]
    promised: dict[RunKey, Span] = field(default_factory=dict)
    version: int = 0
    _ends: _Ends | None = None
    _windows: dict[int, Left] = field(default_factory=dict)

    @classmethod
    def of(cls, *, now_s: float, whole_N: IntArray, num_teams: int, running: list[Span]) -> Timeline:
        """Return the plan in which what runs is all there is."""
        now = Instant(at_s=now_s, free_N=whole_N.copy(), usage_TQ=np.zeros((num_teams, 3)))
        for span in running:
            now.add(span, 1)
        return cls(now_s=now_s, instants=[now], running={each.key: each for each in running})

    @property
    def now(self) -> Instant:
        """What is free and used now, starts that were decided included."""
        return self.instants[0]

    def num_before(self, until_s: float) -> int:
        """Count the instants that a gang would see that starts now and runs until ``until_s``."""
        return bisect.bisect_left(self.instants, until_s, key=lambda each: each.at_s)

    def window(self, num_instants: int) -> Left:
        """Return what is left for a gang that sees the first instants: least free, most used. Not to be changed."""
        if num_instants not in self._windows:
            self._windows[num_instants] = Left.over(self.instants[:num_instants])
        return self._windows[num_instants]

    def start(self, span: Span, *, ends_s: float) -> None:
        """Let a gang start now. It is planned with until ``span.end_s``, and its slots return at ``ends_s``."""
        for instant in self.instants:
            if instant.at_s < span.end_s:
                instant.add(span, 1)
        span.end_s = ends_s
        self.running[span.key] = span
        self._changed()
        self._ends = None

    def promise(self, span: Span) -> None:
        """Keep room for a gang from a start on. One that is due has an instant of its own beside now."""
        instant = self.at(span.start_s)
        bisect.insort(self.instants, instant, key=lambda each: each.at_s)
        for each in self.instants[1:]:
            if span.start_s <= each.at_s < span.end_s:
                each.add(span, 1)
        self.promised[span.key] = span
        self._changed()

    def retract(self, key: RunKey) -> None:
        """Take back what was promised to a gang, if anything was."""
        span = self.promised.pop(key, None)
        if span is None:
            return
        for each in self.instants[1:]:
            if span.start_s <= each.at_s < span.end_s:
                each.add(span, -1)
        starts = {each.start_s for each in self.promised.values()}
        self.instants = [each for each in self.instants if each is self.now or each.at_s in starts]
        self._changed()

    def leave(self, key: RunKey, *, at_s: float) -> None:
        """Let a running gang leave sooner than it would have ended."""
        span = self.running[key]
        for instant in self.instants:
            if at_s <= instant.at_s < span.end_s:
                instant.add(span, -1)
        span.end_s = min(span.end_s, at_s)
        self._changed()
        self._ends = None

    def at(self, at_s: float, *, with_promised: bool = True) -> Instant:
        """Return what is free and used at a moment, before anything that starts then."""
        ends = self._sorted_ends()
        number = int(np.searchsorted(ends.end_E, at_s, side="right"))
        stop = int(ends.first_E[number])
        now = self.now
        freed_N = np.bincount(ends.nodes[:stop], weights=ends.counts[:stop], minlength=len(now.free_N))
        instant = Instant(at_s=at_s, free_N=now.free_N + freed_N.astype(np.int64), usage_TQ=now.usage_TQ.copy())
        np.subtract.at(instant.usage_TQ, ends.team_E[:number], ends.asked_EQ[:number])
        if with_promised:
            for span in self.promised.values():
                if span.start_s <= at_s < span.end_s:
                    instant.add(span, 1)
        return instant

    def within(self, start_s: float, until_s: float, *, held: Sequence[Span] = ()) -> Left:
        """Return what is left for a gang from ``start_s`` until ``until_s``, as if none of ``held`` ever ended."""
        later = [each for each in self.instants if start_s < each.at_s < until_s]
        return Left.over([_held_on(each, held) for each in (self.at(start_s), *later)])

    def earliest(self, fits: Fits, *, runs_for_s: float) -> tuple[float, Left] | None:
        """Return the first moment at which a gang fits for as long as it runs, and what is left for it then.

        None where it does not fit though all that is known has ended.
        """
        ends = self._sorted_ends().end_E
        promised = [each.end_s for each in self.promised.values() if math.isfinite(each.end_s)]
        moments = sorted({self.now_s, *ends[ends > self.now_s].tolist(), *promised})
        first = bisect.bisect_left(moments, True, key=lambda at_s: self._fits_unpromised(fits, at_s))
        looks = moments[first : first + MAX_LOOKS]
        for at_s in dict.fromkeys([*looks, *moments[-1:]]):
            left = self.within(at_s, at_s + runs_for_s)
            if fits(left):
                return at_s, left
        return None

    def _fits_unpromised(self, fits: Fits, at_s: float) -> bool:
        return fits(Left.over([self.at(at_s, with_promised=False)]))

    def _changed(self) -> None:
        self.version += 1
        self._windows = {}

    def _sorted_ends(self) -> _Ends:
        if self._ends is None:
            spans = sorted(self.running.values(), key=lambda each: each.end_s)
            self._ends = _Ends(
                end_E=np.array([each.end_s for each in spans]),
                first_E=np.concatenate([[0], np.cumsum([len(each.share[0]) for each in spans])]).astype(np.int64),
                nodes=np.concatenate([np.zeros(0, dtype=np.int64), *(each.share[0] for each in spans)]),
                counts=np.concatenate([np.zeros(0, dtype=np.int64), *(each.share[1] for each in spans)]),
                team_E=np.array([each.team for each in spans], dtype=np.int64),
                asked_EQ=np.array([each.asked_Q for each in spans]).reshape(-1, 3),
            )
        return self._ends


def _held_on(instant: Instant, held: Sequence[Span]) -> Instant:
    ended = [each for each in held if each.end_s <= instant.at_s]
    if not ended:
        return instant
    nodes, counts = (np.concatenate([each.share[part] for each in ended]) for part in (0, 1))
    held_N = np.bincount(nodes, weights=counts, minlength=len(instant.free_N)).astype(np.int64)
    usage_TQ = instant.usage_TQ.copy()
    np.add.at(usage_TQ, [each.team for each in ended], [each.asked_Q for each in ended])
    return Instant(at_s=instant.at_s, free_N=instant.free_N - held_N, usage_TQ=usage_TQ)
