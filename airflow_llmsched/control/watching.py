"""Looking at gangs: the I/O that triggers and blocking workers share around the pure poller.

A look has two halves, so that many watches can share the first: what the engine says (``ask``), and what the gang's
agents wrote (``see``). ``conclude`` draws the verdict.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.poller import (
    HandOver,
    KeepWatching,
    Observation,
    PollVerdict,
    WatchState,
    observe,
    wants_reports,
)
from airflow_llmsched.domain.gang import GangHandle, GangStatus
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import TransientError
from airflow_llmsched.ports import Clock, Engine, RunChannel

_RENEW = EffectPoint("watch.renew")
_EXTEND = EffectPoint("watch.extend")
_TEND = EffectPoint("watch.tend")

RENEWED_BELOW_RATIO = 1 / 2
"""A lease is written again once less than this share of it is left: most looks then write nothing.

Replacing a file is by far the dearest part of a look (0.3 ms of CPU on ext4, which flushes it). What is always left, a
minute of the default lease, outlasts a triggerer's death until another takes its triggers over.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Nobody could look at a gang, and why."""

    reason: str


Told = GangStatus | Unseen | Exception
"""What came of asking for one gang. An exception is a fault of ours or of the adapter, and that gang's alone."""


def ask(engine: Engine, handles: Sequence[GangHandle]) -> Mapping[GangHandle, Told]:
    """Ask the engine for all handles by one call. Never raises.

    A call that fails for an unforeseen reason is made again for either half, and so on, until the gang that breaks it
    is found: one gang must not end the watches of all others. Those still undecided after 2 * log2(n) more calls count
    as unseen this time.
    """
    told: dict[GangHandle, Told] = {}
    groups = [list(handles)] if handles else []
    calls_left = 1 + 2 * math.ceil(math.log2(max(1, len(handles))))
    reason = ""
    while groups:
        group = groups.pop()
        if calls_left == 0:
            told.update(dict.fromkeys(group, Unseen(reason=f"asking for it together with others failed: {reason}")))
            continue
        calls_left -= 1
        try:
            seen = engine.poll(group)
        except TransientError as error:
            told.update(dict.fromkeys(group, Unseen(reason=str(error))))
        except Exception as error:  # noqa: BLE001  (raised, or handed over, by whoever watches that gang)
            reason = f"{type(error).__name__}: {error}"
            if len(group) == 1:
                told[group[0]] = error
            else:
                middle = len(group) // 2
                groups += [group[middle:], group[:middle]]
        else:
            told.update({handle: seen.get(handle, _SILENCE) for handle in group})
    return told


_SILENCE = Unseen(reason="the engine said nothing about the gang")


def see(channel: RunChannel | None, watch: WatchState, told: Told | None, clock: Clock) -> Observation:
    """Read what the agents wrote and renew their lease, each where it is time. A failed look is an observation too.

    ``told`` is what the engine said before: what the ranks wrote before the end it reports is then sure to be read. It
    is None without a gang. The lease is renewed even when the engine cannot be asked: its silence must not end a gang
    whose watcher is well. Raises ``told`` when it is an exception.
    """
    if isinstance(told, Exception):
        raise told
    if watch.handle is None or channel is None or told is None:
        return Observation(at_s=clock.now_s())
    lease_until_s = None
    try:
        if isinstance(told, Unseen):
            lease_until_s = _renew(channel, watch, clock, needed=True)  # the next answer may take as long as it likes
            return Observation(at_s=clock.now_s(), error=told.reason, lease_until_s=lease_until_s)
        if not told.phase.ended:
            lease_until_s = _renew(channel, watch, clock)
        if not told.phase.ended and not wants_reports(watch, at_s=clock.now_s()):
            return Observation(at_s=clock.now_s(), status=told, lease_until_s=lease_until_s)
        reports, cursor = channel.latest(watch.cursor)
        if not told.phase.ended:
            with _TEND:
                channel.tend(cursor, at_s=clock.now_s())
    except TransientError as error:
        return Observation(at_s=clock.now_s(), error=str(error), lease_until_s=lease_until_s)
    return Observation(
        at_s=clock.now_s(), status=told, reports=tuple(reports), cursor=cursor, lease_until_s=lease_until_s
    )


def _renew(channel: RunChannel, watch: WatchState, clock: Clock, *, needed: bool = False) -> float | None:
    """Return until when the lease was renewed, or None when it had no need of it. ``needed``: it always has."""
    if watch.lease_s is None:
        return None
    now_s = clock.now_s()
    # More than the whole is left when the clock was set back: until when the agents think is then unknown.
    if watch.lease_until_s is not None and not needed:
        left_ratio = (watch.lease_until_s - now_s) / watch.lease_s
        if RENEWED_BELOW_RATIO <= left_ratio <= 1.0:
            return None
    until_s = now_s + watch.lease_s
    with _RENEW:
        channel.renew(until_s=until_s)
    return until_s


def conclude(
    channel: RunChannel | None, watch: WatchState, told: Told | None, clock: Clock
) -> tuple[WatchState, PollVerdict]:
    """See the agents' side and judge. Before a hand-over the lease is extended by the time the hand-over may take.

    Not that of a gang that has ended or is at fault: nobody wants it to live on, and a successor may have to wait for
    the end of its lease.
    """
    watch, verdict = observe(watch, see(channel, watch, told, clock))
    if isinstance(verdict, HandOver) and not isinstance(verdict.event, ev.GangEnded | ev.FaultDetected):
        extend(channel, watch, clock)
    return watch, verdict


def extend(channel: RunChannel | None, watch: WatchState, clock: Clock) -> None:
    """Let agents keep their ranks for as long as a hand-over may take. Silent when it cannot be written.

    Without a gang there is none to keep: the channel is then of one that is over, and may be waited out.
    """
    if watch.lease_s is None or channel is None or watch.handle is None:
        return
    with contextlib.suppress(TransientError), _EXTEND:  # the lease as it stands is the best that can be had
        channel.extend(until_s=clock.now_s() + watch.lease_s + watch.handoff_limit_s)


def look(engine: Engine, channel: RunChannel | None, watch: WatchState, clock: Clock) -> Observation:
    """Both halves for one gang."""
    return see(channel, watch, _ask_for(engine, channel, watch), clock)


def step(engine: Engine, channel: RunChannel | None, watch: WatchState, clock: Clock) -> tuple[WatchState, PollVerdict]:
    """Look at one gang once, and conclude."""
    return conclude(channel, watch, _ask_for(engine, channel, watch), clock)


def _ask_for(engine: Engine, channel: RunChannel | None, watch: WatchState) -> Told | None:
    if watch.handle is None or channel is None:
        return None
    return ask(engine, [watch.handle])[watch.handle]


def watch(
    engine: Engine,
    channel: RunChannel | None,
    state: WatchState,
    clock: Clock,
    *,
    summoned: Callable[[WatchState], str] = lambda _watch: "",
) -> ev.AnyHandover:
    """Block until there is something to hand over, and return it.

    ``summoned`` says why somebody is to look after the run before its time (``control.arbiter_watch``); empty: nobody.
    """
    while True:
        state, verdict = step(engine, channel, state, clock)
        if not isinstance(verdict, KeepWatching):
            return verdict.event
        if summoned(state):
            extend(channel, state, clock)
            return ev.Woke(at_s=clock.now_s())
        clock.sleep(min(verdict.after_s, state.poll_interval_s) if state.ground else verdict.after_s)
