"""Looking at a gang: the one piece of I/O that triggers and blocking workers share around the pure poller."""

from __future__ import annotations

import contextlib

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.poller import HandOver, KeepWatching, Observation, PollVerdict, WatchState, observe
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport
from airflow_llmsched.errors import TransientError
from airflow_llmsched.ports import Clock, Engine, RunChannel


def look(engine: Engine, channel: RunChannel | None, watch: WatchState, clock: Clock) -> Observation:
    """Poll the gang, read what its agents wrote, and renew their lease. A failed look is an observation too.

    The engine is asked first: what the ranks wrote before the end it reports is then sure to be read.
    """
    if watch.handle is None or channel is None:
        return Observation(at_s=clock.now_s())
    try:
        status = engine.poll([watch.handle])[watch.handle]
        reports, cursor = _read(channel, watch.cursor, to_the_end=status.phase.ended)
        if not status.phase.ended:
            channel.tend(cursor, at_s=clock.now_s())
            if watch.lease_s is not None:
                channel.renew(until_s=clock.now_s() + watch.lease_s)
    except TransientError as error:
        return Observation(at_s=clock.now_s(), error=str(error))
    return Observation(at_s=clock.now_s(), status=status, reports=reports, cursor=cursor)


def _read(
    channel: RunChannel, cursor: ChannelCursor, *, to_the_end: bool
) -> tuple[tuple[NodeReport, ...], ChannelCursor]:
    """Read once, or until nothing new comes: one read is bounded, and an ended gang's last step must be among them."""
    found: list[NodeReport] = []
    while True:
        reports, further = channel.read(cursor)
        found += reports
        if not to_the_end or further == cursor:
            return tuple(found), further
        cursor = further


def step(engine: Engine, channel: RunChannel | None, watch: WatchState, clock: Clock) -> tuple[WatchState, PollVerdict]:
    """Look once and conclude. Before a hand-over the lease is extended by the time the hand-over may take.

    Not that of a gang that has ended or is at fault: nobody wants it to live on, and a successor may have to wait for
    the end of its lease.
    """
    watch, verdict = observe(watch, look(engine, channel, watch, clock))
    if isinstance(verdict, HandOver) and watch.lease_s is not None and channel is not None:
        if isinstance(verdict.event, ev.GangEnded | ev.FaultDetected):
            return watch, verdict
        with contextlib.suppress(TransientError):  # the lease as it stands is the best that can be had
            channel.extend(until_s=clock.now_s() + watch.lease_s + watch.handoff_limit_s)
    return watch, verdict


def watch(
    engine: Engine, channel: RunChannel | None, state: WatchState, clock: Clock
) -> ev.GangEnded | ev.FaultDetected | ev.LookFailed | ev.DeadlineReached | ev.Woke:
    """Block until there is something to hand over, and return it."""
    while True:
        state, verdict = step(engine, channel, state, clock)
        if isinstance(verdict, KeepWatching):
            clock.sleep(verdict.after_s)
        else:
            return verdict.event
