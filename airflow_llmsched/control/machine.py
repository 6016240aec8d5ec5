"""The run as a state machine. Pure: no clock, no I/O; a run's state is the fold of its journal.

Every phase but the last three has its command, and performing it leads to an event that leaves the phase. So a worker
that dies between an effect and its record leaves a state from which the next worker repeats the effect, and every
command is safe to repeat.

    NEW > CLOSING > PLANNING > RESUMING > READY > LAUNCHING > WATCHING > FINISHING > SUCCEEDED
                    ^ ^  v WAITING                               v fault
                    | +-------------- ASSESSING < RECOVERING <---+
                    |   nothing left to train: FINISHING         v now and then
                    +------------------------------- MOVING < REVIEWING > WATCHING
                    +------------------------------- YIELDING < ordered
    deadline: ENDING > FAILING > FAILED          cancel, from anywhere: CANCELLING > CANCELLED
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.run_state import RunPhase, RunState
from airflow_llmsched.domain.checkpoint import CheckpointRef, SavedBy
from airflow_llmsched.domain.decision import Abort, Finish, Migrate
from airflow_llmsched.domain.gang import GangHandle, GangStatus
from airflow_llmsched.domain.health import Fault
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.progress import ProgressPoint
from airflow_llmsched.errors import InternalError
from airflow_llmsched.planner.policies.failure import FailureHistory

STORY_LENGTH = 40
PROGRESS_LENGTH = 12
"""Reviews that are remembered: a pace is that of the newest ones."""


def fold(run: RunKey, events: Iterable[ev.AnyEvent]) -> RunState:
    """Return the state that a journal's events lead to. Raises ``InternalError`` where they make no sense."""
    state = RunState(run=run)
    for event in events:
        state, _ = advance(state, event)
    return state


def advance(state: RunState, event: ev.AnyEvent) -> tuple[RunState, tuple[cmd.Command, ...]]:
    """Return the state after ``event`` and what is to be done now.

    Raises:
        InternalError: the event cannot happen in this phase; the message tells how the run came here.
    """
    allowed, handler = _HANDLERS[type(event)]
    if allowed is not None and state.phase not in allowed:
        raise _impossible(state, event)
    after = handler(state, event)
    line = f"{event.at_s:.3f} {event.kind}: {state.phase} -> {after.phase}"
    after = replace(after, story=(*state.story, line)[-STORY_LENGTH:])
    return after, commands(after)


def commands(state: RunState) -> tuple[cmd.Command, ...]:
    """Return what is to be done in this state: the same after a crash as before it."""
    build = _COMMANDS.get(state.phase)
    return (build(state),) if build else ()


def _opened(state: RunState, event: ev.Opened) -> RunState:
    if event.generation <= state.generation:
        raise _impossible(state, event)
    return RunState(
        run=state.run,
        phase=RunPhase.CLOSING,
        generation=event.generation,
        asked_generation=event.asked_generation,
        owner=event.owner,
        owner_since_s=event.since_s,
        unlaunched=state.unlaunched,
        line=state.line,
        unfenced=state.unfenced,
        story=state.story,
    )


def _resumed(state: RunState, event: ev.Resumed) -> RunState:
    return replace(state, owner=event.owner, owner_since_s=event.since_s)


def _reopened(state: RunState, event: ev.Reopened) -> RunState:
    return replace(
        state,
        phase=RunPhase.CLOSING,
        owner=event.owner,
        owner_since_s=event.since_s,
        history=FailureHistory(),
        excluded=(),
        fault=None,
        reason="",
        too_late=None,
        keep_plan=True,
        waiting_since_s=None,
        queued=None,
        released=False,
    )


def _unchanged(state: RunState, _event: Any) -> RunState:
    return state


def _others_stopped(state: RunState, _event: ev.OthersStopped) -> RunState:
    return replace(state, phase=RunPhase.PLANNING, unlaunched=None)


def _woke(state: RunState, event: ev.Woke) -> RunState:
    waiting_until_s = state.waiting_until_s
    if state.fence_until_s is not None and waiting_until_s is not None and event.at_s < waiting_until_s:
        return state
    is_fenced = state.fence_until_s is not None and event.at_s >= state.fence_until_s
    unfenced = () if is_fenced else state.unfenced
    return replace(state, phase=RunPhase.PLANNING, fence_until_s=None, unfenced=unfenced)


def _fence_awaited(state: RunState, event: ev.FenceAwaited) -> RunState:
    where = f" on {', '.join(event.nodes)}" if event.nodes else ""
    return replace(
        state,
        phase=RunPhase.WAITING,
        waiting_until_s=event.until_s if event.again_at_s is None else event.again_at_s,
        fence_until_s=event.until_s,
        reason=f"waits until ranks that may be alive{where}, unseen, have been ended by their own agents",
    )


def _plan_chosen(state: RunState, event: ev.PlanChosen) -> RunState:
    return replace(state, phase=RunPhase.RESUMING, plan=event.plan, keep_plan=True, queued=None)


def _plan_refused(state: RunState, event: ev.PlanRefused) -> RunState:
    return _wait_or_fail(state, at_s=event.at_s, until_s=event.retry_at_s, reason=event.reason)


def _queued(state: RunState, event: ev.Queued) -> RunState:
    until = "" if event.start_s is None else f"{datetime.fromtimestamp(event.start_s, UTC):%Y-%m-%d %H:%M} UTC"
    start = f"; {'starts by' if event.is_promised else 'expected to start at'} {until}" if until else ""
    return replace(
        state,
        phase=RunPhase.WAITING,
        waiting_since_s=None,  # a place in the queue has its own limit
        waiting_until_s=event.again_at_s,
        reason=f"{event.reason}{start}",
        keep_plan=False,
        queued=event,
    )


def _yield_ordered(state: RunState, event: ev.YieldOrdered) -> RunState:
    _require_current(state, event)
    return replace(state, phase=RunPhase.YIELDING, reason=f"makes room for run {event.to}, which goes first")


def _checkpoint_chosen(state: RunState, event: ev.CheckpointChosen) -> RunState:
    # What lies above the chosen one is given up: the newest that matters from now on is this one.
    newest = event.checkpoint or state.newest
    return replace(state, phase=RunPhase.READY, checkpoint=event.checkpoint, newest=newest)


def _checkpoint_missing(state: RunState, event: ev.CheckpointMissing) -> RunState:
    return _failing(state, reason=event.reason)


def _launch_intended(state: RunState, event: ev.LaunchIntended) -> RunState:
    if event.key != state.next_key:
        raise _impossible(state, event)
    step = state.checkpoint.step if state.checkpoint else 0
    return replace(
        state,
        phase=RunPhase.LAUNCHING,
        # At once, not when it is known to run: a worker may die in between, and the gang live.
        line=state.line.launched(
            SavedBy.of_key(event.key), step=step, own_folder=event.own_folder, root=event.checkpoint_root
        ),
        own_folder=event.own_folder,
        attempt=event.key.attempt,
        channel_root=event.channel_root,
        handle=None,
        launched_at_s=None,
        unlaunched=event.key,
    )


def _launched(state: RunState, event: ev.Launched | ev.Adopted) -> RunState:
    if event.handle.key != state.key:
        raise _impossible(state, event)
    return replace(
        state,
        phase=RunPhase.WATCHING,
        handle=event.handle,
        launched_at_s=event.at_s,
        gang_ended=False,
        review_at_s=None,
        unlaunched=None,
        history=state.history.launched(),
        fault=None,
        waiting_since_s=None,
    )


def _launch_refused(state: RunState, event: ev.LaunchRefused) -> RunState:
    state = replace(state, unlaunched=None)
    if event.fault is None:
        return _wait_or_fail(state, at_s=event.at_s, until_s=event.retry_at_s, reason=event.reason)
    history = state.history.launched().struck(event.fault)
    return replace(state, phase=RunPhase.ASSESSING, fault=event.fault, history=history, waiting_since_s=None)


def _gang_ended(state: RunState, event: ev.GangEnded) -> RunState:
    _require_current(state, event)
    state = _note_unconfirmed(state, event.status)
    state = replace(state, last_step=event.last_step if event.last_step is not None else state.last_step)
    if event.fault is None:
        return replace(state, phase=RunPhase.FINISHING, reason="")
    return _recovering(replace(state, gang_ended=True), event.fault)


def _fault_detected(state: RunState, event: ev.FaultDetected) -> RunState:
    _require_current(state, event)
    state = replace(state, last_step=event.last_step if event.last_step is not None else state.last_step)
    return _recovering(state, event.fault)


_TOO_LATE = {
    ev.DeadlineCause.TIME: ("deadline reached", "allow more time (budget.deadline) or more capacity"),
    ev.DeadlineCause.MONEY: (
        "budget used up",
        "allow more (budget.max_usd) and clear the run from its first task on",
    ),
    ev.DeadlineCause.PROJECTION: (
        "budget would not last, stopped",
        "allow more (llmsched budget, or budget.max_usd) and clear the task",
    ),
}


def _deadline_reached(state: RunState, event: ev.DeadlineReached) -> RunState:
    step = event.last_step if event.last_step is not None else state.last_step
    state = replace(state, last_step=step, too_late=event.cause)
    state = replace(state, reason=_too_late(state, event.cause))
    if event.words:
        state = replace(state, reason=f"{state.reason} ({event.words})")
    alive = state.handle is not None and state.phase in _HAS_GANG
    return replace(state, phase=RunPhase.ENDING if alive else RunPhase.FAILING)


def _too_late(state: RunState, cause: ev.DeadlineCause) -> str:
    """Return what a run has no more of, and how far it came: a step that was saved has been trained."""
    known = [state.last_step, state.newest.step if state.newest else None]
    step = max((each for each in known if each is not None), default=None)
    reached, advice = _TOO_LATE[cause]
    where = f"at step {step}" if step is not None else "before the first step"
    return f"{reached} {where}: {advice}"


def _stopped(state: RunState, event: ev.Stopped) -> RunState:
    _require_current(state, event)
    state = _note_unconfirmed(state, event.status)
    state = replace(state, last_step=event.last_step if event.last_step is not None else state.last_step, handle=None)
    if state.phase is RunPhase.CANCELLING:
        return state
    if event.completed and not state.gang_ended:  # how it ended was known before it was cleaned up
        return replace(state, phase=RunPhase.FINISHING, fault=None, reason="")
    if state.phase is RunPhase.RECOVERING:
        return replace(state, phase=RunPhase.ASSESSING)
    if state.phase in (RunPhase.MOVING, RunPhase.YIELDING):
        return replace(state, phase=RunPhase.PLANNING, keep_plan=False)
    reason = state.reason if state.too_late is None else _too_late(state, state.too_late)
    saved = f"the newest sound checkpoint is that of step {state.newest.step}" if state.newest else "nothing was saved"
    return _failing(state, reason=f"{reason}; {saved}")


def _review_due(state: RunState, event: ev.ReviewDue) -> RunState:
    _require_current(state, event)
    step = event.last_step if event.last_step is not None else state.last_step
    return replace(state, phase=RunPhase.REVIEWING, last_step=step, review_cause=event.cause)


def _reviewed(state: RunState, event: ev.Reviewed) -> RunState:
    _require_current(state, event)
    point = ProgressPoint(at_s=event.at_s, step=event.step, spent_usd=event.spent_usd)
    return replace(
        state,
        phase=RunPhase.WATCHING if event.keeps else RunPhase.MOVING,
        reason="" if event.keeps else event.reason,
        review_at_s=event.again_at_s,
        progress=(*state.progress, point)[-PROGRESS_LENGTH:],
        pace_ratio=state.pace_ratio if event.pace_ratio is None else event.pace_ratio,
        asks=event.asks,
    )


def _checkpoint_seen(state: RunState, event: ev.CheckpointSeen) -> RunState:
    newest = _newer(state.newest, event.checkpoint)
    if newest == state.newest:
        return state
    return replace(state, newest=newest, history=state.history.progressed())


def _decided(state: RunState, event: ev.Decided) -> RunState:
    decision = event.decision
    if isinstance(decision, Abort):
        return _failing(state, reason=decision.reason)
    if isinstance(decision, Finish):
        step = max(decision.step, state.last_step or 0)
        return replace(state, phase=RunPhase.FINISHING, fault=None, last_step=step, reason=decision.reason)
    if isinstance(decision, Migrate):
        excluded = tuple(dict.fromkeys((*state.excluded, *decision.excluded)))
        return replace(state, phase=RunPhase.PLANNING, keep_plan=False, excluded=excluded)
    return replace(state, phase=RunPhase.PLANNING, keep_plan=True)


def _cancel_requested(state: RunState, event: ev.CancelRequested) -> RunState:
    return replace(state, phase=RunPhase.CANCELLING, reason=event.reason)


def _run_succeeded(state: RunState, event: ev.RunSucceeded) -> RunState:
    step = event.last_step if event.last_step is not None else state.last_step
    return replace(
        state, phase=RunPhase.SUCCEEDED, checkpoint=event.checkpoint, last_step=step, handle=None, reason=event.note
    )


def _run_failed(state: RunState, event: ev.RunFailed) -> RunState:
    return replace(state, phase=RunPhase.FAILED, reason=event.reason, fault=event.fault, handle=None)


def _run_cancelled(state: RunState, _event: ev.RunCancelled) -> RunState:
    return replace(state, phase=RunPhase.CANCELLED, handle=None, unlaunched=None)


def _released(state: RunState, event: ev.Released) -> RunState:
    # Whoever set out before the teardown and had begun nothing by then is too late for good.
    since_s = max(event.started_at_s, state.owner_since_s or event.started_at_s)
    return replace(state, released=True, owner_since_s=since_s)


def _recovering(state: RunState, fault: Fault) -> RunState:
    return replace(state, phase=RunPhase.RECOVERING, fault=fault, history=state.history.struck(fault))


def _note_unconfirmed(state: RunState, status: GangStatus) -> RunState:
    if not status.unconfirmed_nodes or state.channel_root in state.unfenced:
        return state
    return replace(state, unfenced=(*state.unfenced, state.channel_root))


def _failing(state: RunState, *, reason: str) -> RunState:
    return replace(state, phase=RunPhase.FAILING, reason=reason)


def _wait_or_fail(state: RunState, *, at_s: float, until_s: float | None, reason: str) -> RunState:
    if until_s is None:
        return _failing(state, reason=reason)
    since_s = at_s if state.waiting_since_s is None else state.waiting_since_s
    return replace(
        state,
        phase=RunPhase.WAITING,
        waiting_since_s=since_s,
        waiting_until_s=until_s,
        reason=reason,
        keep_plan=False,
        queued=None,
    )


def _newer(known: CheckpointRef | None, found: CheckpointRef | None) -> CheckpointRef | None:
    if known is None or found is None:
        return found or known
    return found if found.step > known.step else known


def _require_current(
    state: RunState,
    event: (
        ev.GangEnded | ev.FaultDetected | ev.Stopped | ev.LookFailed | ev.ReviewDue | ev.Reviewed | ev.YieldOrdered
    ),
) -> None:
    if event.key != state.key:
        raise _impossible(state, event)


def _look_failed(state: RunState, event: ev.LookFailed) -> RunState:
    _require_current(state, event)
    return state


def _impossible(state: RunState, event: ev.AnyEvent) -> InternalError:
    story = "\n  ".join(state.story) or "nothing had happened"
    return InternalError(
        f"run {state.run}: {event.kind} cannot follow in phase {state.phase} of {state.key.name}. Report this with the "
        f"journal. How it came here:\n  {story}"
    )


def _plan_of(state: RunState) -> Plan:
    if state.plan is None:
        raise InternalError(f"run {state.run}: phase {state.phase} without a plan; story: {state.story}")
    return state.plan


def _fault_of(state: RunState) -> Fault:
    if state.fault is None:
        raise InternalError(f"run {state.run}: phase {state.phase} without a fault; story: {state.story}")
    return state.fault


def _handle_of(state: RunState) -> GangHandle:
    if state.handle is None:
        raise InternalError(f"run {state.run}: phase {state.phase} without a gang; story: {state.story}")
    return state.handle


def _choose_plan(state: RunState) -> cmd.Command:
    return cmd.ChoosePlan(
        keep=state.plan if state.keep_plan else None,
        excluded=state.excluded,
        first=state.plan is None,
        waiting_since_s=state.waiting_since_s,
        unfenced=state.unfenced,
        newest=state.newest,
        line=state.line,
        pace_ratio=state.pace_ratio,
    )


def _launch(state: RunState) -> cmd.Command:
    return cmd.Launch(
        key=state.key,
        channel_root=state.channel_root,
        plan=_plan_of(state),
        checkpoint=state.checkpoint,
        waiting_since_s=state.waiting_since_s,
        own_folder=state.own_folder,
        excluded=state.excluded,
    )


def _watch_gang(state: RunState) -> cmd.Command:
    return cmd.WatchGang(
        handle=_handle_of(state), channel_root=state.channel_root, launched_at_s=state.launched_at_s or 0.0
    )


def _review(state: RunState) -> cmd.Command:
    resumed_step = state.checkpoint.step if state.checkpoint else 0
    return cmd.Review(
        key=state.key,
        cause=state.review_cause,
        launched_at_s=state.launched_at_s or 0.0,
        resumed_step=resumed_step,
        last_step=max(resumed_step, state.last_step or 0),
        nodes=_plan_of(state).placement.nodes,
        line=state.line,
        progress=state.progress,
        pace_ratio=state.pace_ratio,
    )


def _stop_to_recover(state: RunState) -> cmd.Command:
    return cmd.StopGang(
        handle=_handle_of(state),
        channel_root=state.channel_root,
        reason=_fault_of(state).summary,
        save_first=False,
    )


def _stop_and_save(state: RunState) -> cmd.Command:
    return cmd.StopGang(
        handle=_handle_of(state),
        channel_root=state.channel_root,
        reason=state.reason,
        save_first=True,
        line=state.line,
    )


def _assess(state: RunState) -> cmd.Command:
    return cmd.Assess(fault=_fault_of(state), history=state.history, newest=state.newest, line=state.line)


def _finish(state: RunState) -> cmd.Command:
    return cmd.FinishRun(last_step=state.last_step, line=state.line, note=state.reason)


def _cancel_run(state: RunState) -> cmd.Command:
    return cmd.CancelRun(reason=state.reason, through=state.key, unlaunched=state.unlaunched)


_COMMANDS: Mapping[RunPhase, Callable[[RunState], cmd.Command]] = {
    RunPhase.CLOSING: lambda state: cmd.StopOthers(through=state.key, unlaunched=state.unlaunched),
    RunPhase.PLANNING: _choose_plan,
    RunPhase.WAITING: lambda state: cmd.WaitForCapacity(until_s=state.waiting_until_s or 0.0),
    RunPhase.RESUMING: lambda state: cmd.ChooseCheckpoint(plan=_plan_of(state), newest=state.newest, line=state.line),
    RunPhase.READY: lambda state: cmd.RecordIntent(key=state.next_key, plan=_plan_of(state)),
    RunPhase.LAUNCHING: _launch,
    RunPhase.WATCHING: _watch_gang,
    RunPhase.RECOVERING: _stop_to_recover,
    RunPhase.ASSESSING: _assess,
    RunPhase.REVIEWING: _review,
    RunPhase.MOVING: _stop_and_save,
    RunPhase.YIELDING: _stop_and_save,
    RunPhase.ENDING: _stop_and_save,
    RunPhase.FINISHING: _finish,
    RunPhase.FAILING: lambda state: cmd.FailRun(reason=state.reason, fault=state.fault),
    RunPhase.CANCELLING: _cancel_run,
}

_HAS_GANG = frozenset({RunPhase.WATCHING, RunPhase.REVIEWING, RunPhase.RECOVERING})
_ANY = None
_OPEN = frozenset(phase for phase in RunPhase if not phase.terminal) - {RunPhase.NEW}
_BEFORE_LAUNCH = frozenset({RunPhase.CLOSING, RunPhase.PLANNING, RunPhase.WAITING, RunPhase.RESUMING, RunPhase.READY})

_HANDLERS: Mapping[type[Any], tuple[frozenset[RunPhase] | None, Callable[[RunState, Any], RunState]]] = {
    ev.Opened: (_ANY, _opened),
    ev.Resumed: (_OPEN, _resumed),
    ev.Reopened: (frozenset({RunPhase.FAILED}), _reopened),
    ev.SpanNoted: (_ANY, _unchanged),
    ev.OthersStopped: (frozenset({RunPhase.CLOSING}), _others_stopped),
    ev.PlanChosen: (frozenset({RunPhase.PLANNING}), _plan_chosen),
    ev.PlanRefused: (frozenset({RunPhase.PLANNING}), _plan_refused),
    ev.Queued: (frozenset({RunPhase.PLANNING}), _queued),
    ev.YieldOrdered: (frozenset({RunPhase.WATCHING}), _yield_ordered),
    ev.Woke: (frozenset({RunPhase.WAITING}), _woke),
    ev.FenceAwaited: (frozenset({RunPhase.PLANNING}), _fence_awaited),
    ev.CheckpointChosen: (frozenset({RunPhase.RESUMING}), _checkpoint_chosen),
    ev.CheckpointMissing: (frozenset({RunPhase.RESUMING}), _checkpoint_missing),
    ev.LaunchIntended: (frozenset({RunPhase.READY}), _launch_intended),
    ev.Launched: (frozenset({RunPhase.LAUNCHING}), _launched),
    ev.Adopted: (frozenset({RunPhase.LAUNCHING}), _launched),
    ev.LaunchRefused: (frozenset({RunPhase.LAUNCHING}), _launch_refused),
    ev.HandedOver: (_OPEN, _unchanged),
    ev.NoticeReceived: (_OPEN, _unchanged),
    ev.GangEnded: (frozenset({RunPhase.WATCHING}), _gang_ended),
    ev.FaultDetected: (frozenset({RunPhase.WATCHING}), _fault_detected),
    ev.LookFailed: (frozenset({RunPhase.WATCHING}), _look_failed),
    ev.ReviewDue: (frozenset({RunPhase.WATCHING}), _review_due),
    ev.Reviewed: (frozenset({RunPhase.REVIEWING}), _reviewed),
    ev.DeadlineReached: (_BEFORE_LAUNCH | _HAS_GANG, _deadline_reached),
    ev.Stopped: (
        frozenset({RunPhase.RECOVERING, RunPhase.MOVING, RunPhase.YIELDING, RunPhase.ENDING, RunPhase.CANCELLING}),
        _stopped,
    ),
    ev.CheckpointSeen: (_OPEN, _checkpoint_seen),
    ev.Decided: (frozenset({RunPhase.ASSESSING}), _decided),
    ev.CancelRequested: (_OPEN, _cancel_requested),
    ev.RunSucceeded: (frozenset({RunPhase.FINISHING}), _run_succeeded),
    ev.RunFailed: (frozenset({RunPhase.FAILING}), _run_failed),
    ev.RunCancelled: (frozenset({RunPhase.CANCELLING}), _run_cancelled),
    ev.Released: (_ANY, _released),
}
