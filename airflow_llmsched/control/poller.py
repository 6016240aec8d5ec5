"""What a watcher concludes from one look at a gang. Pure, and the same for triggers and blocking workers.

Only looks that fail in a row count against the limit; a gang that runs for ever is no error. Progress is judged by
each node's own clock (how old its ranks' last sign is in its own report), so that skewed clocks neither hide a hang nor
make one. A gang in which no program has ever used the agent is never taken for hung: its silence means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.faults import fault_of
from airflow_llmsched.domain.fleet import own_name
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangStatus
from airflow_llmsched.domain.health import Fault, FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport, RankProgress

MAX_BACKOFF_S = 60.0
READS_PER_HANG_LIMIT = 5
LOOKS_PER_LEASE = 4
"""Looks are never further apart than this share of a lease: its renewal, at half of it, hangs on them."""

_AWAY_POLLS = 3
"""Poll intervals between two looks after which nothing is concluded from how much time has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StalestRank:
    """The rank that is furthest behind: lowest step, then oldest sign."""

    rank: int
    node: NodeId
    step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """All a watcher knows, JSON-safe through ``codec``: a trigger's arguments. Times are Unix seconds.

    Without a ``handle`` there is no gang: the watcher only waits until ``wake_at_s``. ``num_steps`` is how many steps a
    complete run has. ``max_look_errors`` failed looks in a row are borne; the next hands over. ``lease_until_s`` is how
    long this watcher last renewed the lease for, and ``read_at_s`` when it last read what the agents wrote; each None
    before it ever did. At ``review_at_s`` somebody is to say whether the gang is to go on where it is; at
    once, if something happens to what it has rented, but not before ``alarm_after_s`` (None: not for that). ``ground``
    names the claims (``control.arbiter_ground``) that may call for a hand-over before its time; empty: none.
    ``claims_as`` is the key that they know the gang by; None: its run's.
    """

    handle: GangHandle | None
    channel_root: str = ""
    launched_at_s: float = 0.0
    wake_at_s: float | None = None
    deadline_s: float | None = None
    deadline_cause: ev.DeadlineCause = ev.DeadlineCause.TIME
    start_limit_s: float = 120.0
    hang_limit_s: float = 300.0
    poll_interval_s: float = 2.0
    lease_s: float | None = None
    lease_until_s: float | None = None
    handoff_limit_s: float = 600.0
    max_look_errors: int = 5
    num_steps: int | None = None
    review_at_s: float | None = None
    alarm_after_s: float | None = None
    ground: str = ""
    claims_as: RunKey | None = None
    cursor: ChannelCursor = field(default_factory=lambda: ChannelCursor(positions={}))
    num_look_errors: int = 0
    looked_at_s: float | None = None
    running_since_s: float | None = None
    last_progress_s: float | None = None
    read_at_s: float | None = None
    last_step: int | None = None
    stalest: StalestRank | None = None
    has_spoken: bool = False
    notices: tuple[ev.NoticeReceived, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look. ``status`` is None without a gang, or when ``error`` says why nobody could look.

    ``reports`` are the newest of each node, if it wrote any; ``cursor`` is None unless they were looked for, and
    ``lease_until_s`` unless the lease was renewed.
    """

    at_s: float
    status: GangStatus | None = None
    reports: tuple[NodeReport, ...] = ()
    cursor: ChannelCursor | None = None
    error: str | None = None
    lease_until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepWatching:
    """Nothing to act on. Look again after ``after_s``."""

    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """A worker must act on ``event``; the watcher is done."""

    event: ev.AnyHandover


PollVerdict = KeepWatching | HandOver


def wants_reports(watch: WatchState, *, at_s: float) -> bool:
    """Whether a look at a live gang has to read what its agents wrote.

    Only hangs are judged by it, so once in a fifth of the hang limit is enough while all is well: most looks then read
    nothing. A gang that was still for half its limit is read at every look, so none is called hung for old news; and
    so is one whose deadline is reached, for the last step it made.
    """
    if watch.read_at_s is None or watch.last_progress_s is None:
        return True
    if any(due_s is not None and at_s >= due_s for due_s in (watch.deadline_s, watch.review_at_s)):
        return True
    return not _is_fresh(watch, watch.read_at_s, at_s=at_s) or at_s - watch.last_progress_s > watch.hang_limit_s / 2


def observe(watch: WatchState, seen: Observation) -> tuple[WatchState, PollVerdict]:
    """Return what is known after ``seen``, and whether to go on watching."""
    handle = watch.handle
    if handle is None:
        return watch, _wait(watch, seen)
    if seen.error is not None or seen.status is None:
        watch = replace(watch, num_look_errors=watch.num_look_errors + 1, lease_until_s=_lease_until_s(watch, seen))
        return watch, _blind(watch, handle.key, seen)
    was_away = not seen.reports and _was_away(watch, seen.at_s)
    watch = _learn(watch, seen, seen.status)
    return watch, _judge(watch, handle.key, seen.at_s, seen.status, was_away=was_away)


def _wait(watch: WatchState, seen: Observation) -> PollVerdict:
    if watch.deadline_s is not None and seen.at_s >= watch.deadline_s:
        return HandOver(event=_too_late(watch, seen.at_s))
    wake_at_s = seen.at_s if watch.wake_at_s is None else watch.wake_at_s
    if seen.at_s >= wake_at_s:
        return HandOver(event=ev.Woke(at_s=seen.at_s))
    until_s = wake_at_s if watch.deadline_s is None else min(wake_at_s, watch.deadline_s)
    return KeepWatching(after_s=until_s - seen.at_s)


def _blind(watch: WatchState, key: AttemptKey, seen: Observation) -> PollVerdict:
    if watch.deadline_s is not None and seen.at_s >= watch.deadline_s:
        return HandOver(event=_too_late(watch, seen.at_s))
    if watch.num_look_errors > watch.max_look_errors:
        reason = seen.error or "the engine said nothing about the gang"
        return HandOver(event=ev.LookFailed(at_s=seen.at_s, key=key, num_errors=watch.num_look_errors, reason=reason))
    # float ** int overflows only beyond 2**1023; the exponent stays below max_look_errors
    after_s = max(watch.poll_interval_s, min(MAX_BACKOFF_S, watch.poll_interval_s * 2.0**watch.num_look_errors))
    return _until_next(watch, seen.at_s, after_s)


def _learn(watch: WatchState, seen: Observation, status: GangStatus) -> WatchState:
    running = watch.running_since_s
    if running is None and status.phase is GangPhase.RUNNING:
        # A watcher that starts late (moved, restarted) must not give a still gang its whole limit again.
        running = seen.at_s if status.started_at_s is None else min(seen.at_s, status.started_at_s)
    if running is not None:
        running = min(running, seen.at_s)  # later than now: from before the clock was set back
    if _nothing_new(watch, seen, status, running):
        return watch
    newest = _newest_by_node(seen.reports)
    ranks = [(report, rank) for report in newest.values() for rank in report.ranks]
    steps = [step.step for report in seen.reports for step in report.steps]
    steps += [rank.step for _, rank in ranks if rank.step is not None]
    last_step = max(steps, default=watch.last_step) if watch.last_step is None else max([*steps, watch.last_step])
    ages_s = [report.at_s - rank.heartbeat_s for report, rank in ranks]
    signs_s = [seen.at_s - max(0.0, min(ages_s))] if ages_s else []
    known_s = [each for each in (watch.last_progress_s, running) if each is not None]
    return replace(
        watch,
        num_look_errors=0,
        looked_at_s=seen.at_s,
        cursor=seen.cursor or watch.cursor,
        read_at_s=watch.read_at_s if seen.cursor is None else seen.at_s,
        lease_until_s=_lease_until_s(watch, seen),
        running_since_s=running,
        last_progress_s=min(seen.at_s, max([*signs_s, *known_s])) if signs_s or known_s else None,
        last_step=last_step,
        stalest=_stalest(ranks, status, has_stepped=last_step is not None) or watch.stalest,
        has_spoken=watch.has_spoken or any(rank.speaks for _, rank in ranks),
        notices=_notices(watch, seen.at_s, status),
    )


def _was_away(watch: WatchState, at_s: float) -> bool:
    """Whether much time has passed since the last look: the watcher stood still, or its clock was set forward.

    A look that then brings no report says nothing: the next one, a poll interval later, tells.
    """
    if watch.looked_at_s is None:
        return False
    return at_s - watch.looked_at_s > max(_AWAY_POLLS * watch.poll_interval_s, watch.hang_limit_s / 2)


def _nothing_new(watch: WatchState, seen: Observation, status: GangStatus, running_since_s: float | None) -> bool:
    """Whether a look changes nothing worth a copy of the state: the usual case, and copying is what costs most.

    ``looked_at_s`` may then be as old as the last look that read, far within what counts as having been away.
    """
    if watch.looked_at_s is None or not _is_fresh(watch, watch.looked_at_s, at_s=seen.at_s):
        return False
    return (
        seen.cursor is None
        and not seen.reports
        and seen.lease_until_s is None
        and watch.num_look_errors == 0
        and running_since_s == watch.running_since_s
        and not status.noticed
    )


def _is_fresh(watch: WatchState, then_s: float, *, at_s: float) -> bool:
    """Less than no time has passed when the clock was set back: what is known is then from an unknown time ago."""
    return 0.0 <= at_s - then_s < watch.hang_limit_s / READS_PER_HANG_LIMIT


def _lease_until_s(watch: WatchState, seen: Observation) -> float | None:
    return watch.lease_until_s if seen.lease_until_s is None else seen.lease_until_s


def _judge(watch: WatchState, key: AttemptKey, at_s: float, status: GangStatus, *, was_away: bool) -> PollVerdict:
    if status.phase.ended:
        fault = fault_of(status, last_step=watch.last_step, num_steps=watch.num_steps)
        return HandOver(
            event=ev.GangEnded(
                at_s=at_s, key=key, status=status, fault=fault, last_step=watch.last_step, notices=watch.notices
            )
        )
    if watch.deadline_s is not None and at_s >= watch.deadline_s:
        return HandOver(event=_too_late(watch, at_s))
    fault = _beyond_help(at_s, status)
    if fault is None and not was_away:
        fault = _too_slow_to_start(watch, at_s, status) or _hung(watch, at_s)
    if fault is not None:
        return HandOver(
            event=ev.FaultDetected(at_s=at_s, key=key, fault=fault, last_step=watch.last_step, notices=watch.notices)
        )
    if watch.review_at_s is not None and at_s >= watch.review_at_s:
        return HandOver(event=ev.ReviewDue(at_s=at_s, key=key, cause="it is time", last_step=watch.last_step))
    return _until_next(watch, at_s, watch.poll_interval_s)


def _too_late(watch: WatchState, at_s: float) -> ev.DeadlineReached:
    return ev.DeadlineReached(at_s=at_s, last_step=watch.last_step, cause=watch.deadline_cause)


def _until_next(watch: WatchState, at_s: float, after_s: float) -> KeepWatching:
    """Look again after ``after_s``, or as much sooner as the lease, the deadline or the next review wants it."""
    if watch.lease_s is not None:
        after_s = min(after_s, watch.lease_s / LOOKS_PER_LEASE)
    due_s = [each - at_s for each in (watch.deadline_s, watch.review_at_s) if each is not None and each > at_s]
    if watch.deadline_s is not None and watch.deadline_s <= at_s:
        due_s.append(0.0)
    return KeepWatching(after_s=min([after_s, *due_s]))


def _beyond_help(at_s: float, status: GangStatus) -> Fault | None:
    """Return the engine's word that a live gang must be ended from outside."""
    if status.fault is None:
        return None
    node = next((node.node for node in status.nodes if node.reason), None)
    return Fault(kind=status.fault, summary=status.reason, at_s=at_s, node=node)


def _too_slow_to_start(watch: WatchState, at_s: float, status: GangStatus) -> Fault | None:
    waited_s = at_s - max(watch.launched_at_s, status.queued_until_s or 0.0)
    if watch.running_since_s is not None or waited_s <= watch.start_limit_s:
        return None
    waiting = [node.node for node in status.nodes if node.phase is not GangPhase.RUNNING]
    return Fault(
        kind=FaultKind.START_TIMEOUT,
        summary=f"gang not running {waited_s:.0f} s after its launch (limit {watch.start_limit_s:.0f} s); "
        f"not started on: {', '.join(waiting) or 'unknown'}; {status.reason or 'the engine gives no reason'}",
        at_s=at_s,
        node=waiting[0] if len(waiting) == 1 else None,
    )


def _hung(watch: WatchState, at_s: float) -> Fault | None:
    stalest = watch.stalest
    if not watch.has_spoken or stalest is None or watch.running_since_s is None or watch.last_progress_s is None:
        return None
    idle_s = at_s - watch.last_progress_s
    if idle_s <= watch.hang_limit_s:
        return None
    done = "before its first step" if stalest.step is None else f"after step {stalest.step}"
    return Fault(
        kind=FaultKind.HUNG,
        summary=f"no rank made progress for {idle_s:.1f} s (limit {watch.hang_limit_s:.1f} s); "
        f"rank {stalest.rank} on {stalest.node} is furthest behind, {done}",
        at_s=at_s,
        node=stalest.node,
        rank=stalest.rank,
    )


def _newest_by_node(reports: tuple[NodeReport, ...]) -> dict[NodeId, NodeReport]:
    newest: dict[NodeId, NodeReport] = {}
    for report in reports:
        if report.node not in newest or report.seq > newest[report.node].seq:
            newest[report.node] = report
    return newest


def _stalest(
    ranks: list[tuple[NodeReport, RankProgress]], status: GangStatus, *, has_stepped: bool
) -> StalestRank | None:
    if has_stepped:
        # Whoever is silent though the gang takes steps is not late: it leaves the reporting to others.
        ranks = [(report, rank) for report, rank in ranks if rank.speaks]
    if not ranks:
        return None
    report, rank = min(
        ranks,
        key=lambda pair: (
            -1 if pair[1].step is None else pair[1].step,
            pair[1].heartbeat_s - pair[0].at_s,
            pair[1].rank,
        ),
    )
    names = {own_name(each.node): each.node for each in status.nodes}  # what a fleet calls its clusters' nodes
    return StalestRank(rank=rank.rank, node=names.get(report.node, report.node), step=rank.step)


def _notices(watch: WatchState, at_s: float, status: GangStatus) -> tuple[ev.NoticeReceived, ...]:
    known = {notice.node for notice in watch.notices}
    fresh = tuple(
        ev.NoticeReceived(at_s=at_s, node=node.node, deadline_s=node.notice_deadline_s)
        for node in status.noticed
        if node.notice_deadline_s is not None and node.node not in known
    )
    return watch.notices + fresh
