"""Drives a run: rebuilds its state from the journal, performs what the machine asks, and records what came of it.

Events are recorded before the next effect and before anyone is told, so that a worker may die anywhere. Workers that
race are told apart by the journal: whoever loses an append reads again and goes on from there, and gives back what it
started.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from airflow_llmsched.checkpoints.copying import copy_checkpoint
from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control import events as ev
from airflow_llmsched.control import history
from airflow_llmsched.control.arbiter import Arbitration
from airflow_llmsched.control.bringing import CopyCheckpoint
from airflow_llmsched.control.capacity import CapacityChooser
from airflow_llmsched.control.context import Failed, Outcome, RunContext, Succeeded, Watch
from airflow_llmsched.control.effects import Effects
from airflow_llmsched.control.fencing import CLOCK_SKEW_S
from airflow_llmsched.control.journal import Journal, JournalRaceError, RunSummary
from airflow_llmsched.control.machine import commands
from airflow_llmsched.control.planning import Planner
from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.control.rented_nodes import TermsOf
from airflow_llmsched.control.run_state import RunPhase, RunState
from airflow_llmsched.control.session import Session
from airflow_llmsched.control.spending import Spend, launch_spend, used_up_at_s
from airflow_llmsched.control.watching import watch
from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.domain.ledger import Span
from airflow_llmsched.domain.topology import NO_TERMS
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import CouldNotLookError, StoreError, TransientError
from airflow_llmsched.ports import CheckpointFormat, Clock, Engine, RunChannel

T = TypeVar("T")

_CANCEL = EffectPoint("run.cancel_record")
_RELEASE = EffectPoint("run.release_record")
_YIELD = EffectPoint("run.yield_record")

MAX_RACES = 20
"""Appends a driver may lose in one call. Each loss means that another worker moved the run on, so more is a fault."""


ALARM_PAUSE_S = 60.0
"""From one review to the next, whatever happens to what is rented."""


class MovedOnError(TransientError):
    """Judge the run again: it was to be ended as it had been seen, and it is not like that any more."""


_OWNS_GANG = frozenset(
    {
        RunPhase.LAUNCHING,
        RunPhase.WATCHING,
        RunPhase.REVIEWING,
        RunPhase.MOVING,
        RunPhase.YIELDING,
        RunPhase.RECOVERING,
        RunPhase.ENDING,
    }
)
_EFFECTFUL = (cmd.StopOthers, cmd.Launch, cmd.Review, cmd.StopGang, cmd.CancelRun)


class RunDriver:
    """Acts for one run in one worker. Every public method may raise ``TransientError``: then try the task again."""

    def __init__(
        self,
        *,
        context: RunContext,
        journal: Journal,
        engine: Engine,
        planner: Planner,
        checkpoints: CheckpointFormat,
        open_channel: Callable[[str], RunChannel],
        clock: Clock,
        rented: Callable[[], Spend] = Spend,
        leases: Callable[[], Sequence[Lease]] = tuple,
        terms_of: TermsOf = lambda _: NO_TERMS,
        capacity: CapacityChooser | None = None,
        allowance: Callable[[], float | None] = lambda: None,
        copy: CopyCheckpoint = copy_checkpoint,
        arbiter: Arbitration | None = None,
    ) -> None:
        """``rented`` tells what was paid for what the run has rented; it is asked only where the run has a budget.

        ``leases`` are those that run: where the engine has their nodes, the run uses no others, at the terms that
        ``terms_of`` tells. ``capacity`` chooses them, None if nobody does so while the run goes on. ``allowance`` tells
        what somebody allowed to spend instead of the spec's budget, None where nobody did. ``copy`` brings a checkpoint
        to another cluster's storage.
        ``arbiter`` shares the engine's nodes among runs, None where the engine does that itself.
        """
        self._arbiter = arbiter
        self._allowance = allowance
        self._chooses = capacity is not None
        self._context = context
        self._rented = rented
        self._journal = journal
        self._clock = clock
        self._submitted: GangHandle | None = None
        self._effects = Effects(
            context=context,
            engine=engine,
            planner=planner,
            checkpoints=checkpoints,
            open_channel=open_channel,
            clock=clock,
            leases=leases,
            terms_of=terms_of,
            capacity=capacity,
            copy=copy,
            arbiter=arbiter,
        )

    def start(self) -> Outcome:
        """Begin, or go on with, the generation; act until something must be watched or the run is over.

        A generation that succeeded is not trained again. One that failed is tried again with whole budgets. A larger
        ``context.generation``, or a cancelled one, starts a new generation, which first stops what is left of the old.
        A cancel that a worker recorded and did not live to finish is finished first. A worker that stood still while a
        later one began is superseded.
        """
        since_s = self._context.owner_since_s
        since_s = self._clock.now_s() if since_s is None else since_s
        if not self._attempt(lambda session: self._begin(session, since_s)):
            run = self._journal.run_key
            return Failed(reason=f"superseded: run {run} was begun or torn down after this worker had set out for it")
        return self._attempt(self._drive)

    def handle(
        self,
        event: ev.AnyHandover,
        *,
        yielded_at_s: float | None = None,
    ) -> Outcome:
        """Act on what a watcher handed over. ``yielded_at_s`` is when a trigger yielded it (None: no hand-over).

        An event that the journal has moved past is ignored, so that handling one twice is harmless.

        Raises:
            CouldNotLookError: the watcher could not see the gang. It goes on; the task's next try watches again.
        """
        self._attempt(lambda session: self._take_up(session, event, yielded_at_s))
        if isinstance(event, ev.LookFailed):
            raise CouldNotLookError(
                f"gang {event.key.name} could not be seen in {event.num_errors} looks in a row: {event.reason}. It has "
                "not been stopped; the next try of this task watches it again"
            )
        return self._attempt(self._drive)

    def cancel(self, reason: str) -> bool:
        """End this owner's generation: a durable record first, then the stop. Returns whether there was one to end."""
        if not self._attempt(lambda session: self._request_cancel(session, reason)):
            return False
        self._attempt(lambda session: self._finish_cancel(session, []))
        return True

    def release(
        self, reason: str = "teardown", *, num_records: int | None = None, since_s: float | None = None
    ) -> tuple[str, ...]:
        """End the run whoever owns it, and stop whatever lives under its key. Returns what was stopped.

        Reads only the journal and the engine. Idempotent: the second time finds nothing to do. It records that it was
        here even for a run that nobody has begun: a worker that stood still all the while then begins nothing.
        With ``num_records`` it ends only what a caller judged who had read that many records: if the run has moved on
        since, nothing is recorded or stopped, and gangs launched since are left alone. ``since_s`` is when the caller
        set out (Unix seconds; default: now).

        Raises:
            MovedOnError: the journal has more records than ``num_records``, or the run was begun anew after this
                teardown had set out, which stood still meanwhile.
        """
        started_at_s = self._clock.now_s() if since_s is None else since_s
        through = self._attempt(lambda session: self._end_for_release(session, reason, num_records, started_at_s))
        names: list[str] = []
        self._attempt(lambda session: self._finish_cancel(session, names))
        stopped = tuple(dict.fromkeys((*names, *self._effects.stop_live(through=through))))
        self._attempt(self._free_what_is_over)
        judged = num_records is not None
        self._attempt(lambda session: self._record_release(session, started_at_s, stopped, judged=judged))
        return stopped

    def state(self) -> RunState:
        """Return the run's state as the journal has it."""
        return Session(self._journal).state

    def attempts(self) -> tuple[AttemptRecord, ...]:
        """Return every launch of the run, oldest first."""
        return history.attempts(self._journal.read())

    def spans(self) -> tuple[Span, ...]:
        """Return the stretches that control and operators measured."""
        return history.spans(self._journal.run_key, self._journal.read())

    def _attempt(self, act: Callable[[Session], T]) -> T:
        """Run ``act`` on a fresh session, again whenever another worker's append came first."""
        words = ""
        for _ in range(MAX_RACES):
            session = Session(self._journal)
            self._give_back(session.state)
            try:
                result = act(session)
            except JournalRaceError as error:
                words = str(error)
                continue
            self._summarize(session.state)
            return result
        raise JournalRaceError(
            f"run {self._journal.run_key}: {MAX_RACES} appends in a row came second; try again later ({words})"
        )

    def _begin(self, session: Session, since_s: float) -> bool:
        """Open, take on or reopen the run; return False when this worker has stood still for too long to do so."""
        asked, owner = self._context.generation, self._context.owner
        if asked < session.state.asked_generation:
            return True  # which the outcome is about to say
        if self._stood_still(session.state, since_s):
            return False
        self._finish_cancel(session, [])
        state, now_s = session.state, self._clock.now_s()
        if state.phase in (RunPhase.NEW, RunPhase.CANCELLED) or asked > state.asked_generation:
            generation = max(asked, state.generation + 1)
            session.record(
                ev.Opened(at_s=now_s, generation=generation, asked_generation=asked, owner=owner, since_s=since_s)
            )
        elif state.phase is RunPhase.FAILED:
            session.record(ev.Reopened(at_s=now_s, owner=owner, since_s=since_s))
        elif not state.phase.terminal:
            session.record(ev.Resumed(at_s=now_s, owner=owner, since_s=since_s))
            session.flush()
            self._effects.stop_live(through=state.key, keep=state.key if state.phase in _OWNS_GANG else None)
        session.flush()
        return True

    def _take_up(
        self,
        session: Session,
        event: ev.AnyHandover,
        yielded_at_s: float | None,
    ) -> None:
        if not _concerns(session.state, event):
            return
        if isinstance(event, ev.DeadlineReached) and event.cause is ev.DeadlineCause.MONEY:
            raised_usd = self._allowance()
            if raised_usd is not None and not self._is_spent(session):
                return  # somebody allowed more since the watch began: it begins anew
        if yielded_at_s is not None:
            session.record(ev.HandedOver(at_s=self._clock.now_s(), yielded_at_s=yielded_at_s))
        if isinstance(event, ev.GangEnded | ev.FaultDetected):
            session.record(*event.notices)
        session.record(event)
        session.flush()

    def _request_cancel(self, session: Session, reason: str) -> bool:
        state, context = session.state, self._context
        if state.phase is RunPhase.NEW or state.phase.terminal:
            return False
        if context.generation != state.asked_generation or self._superseded(state):
            return False
        if state.phase is not RunPhase.CANCELLING:
            session.record(ev.CancelRequested(at_s=self._clock.now_s(), reason=reason))
            with _CANCEL:
                session.flush()
        return True

    def _end_for_release(
        self, session: Session, reason: str, num_records: int | None, started_at_s: float
    ) -> AttemptKey | None:
        """Return the last attempt there is to stop; None, for all that can be found, when the journal knows none."""
        if num_records is not None and session.num_records != num_records:
            raise MovedOnError(f"run {session.state.run} has moved on since it was judged: judge it again")
        phase = session.state.phase
        if not phase.terminal and (session.state.owner_since_s or 0.0) > started_at_s + CLOCK_SKEW_S:
            raise MovedOnError(
                f"run {session.state.run} was begun anew after this teardown had set out, which must have stood still: "
                "it is left alone. Clear the teardown to end it all the same"
            )
        if phase not in (RunPhase.NEW, RunPhase.CANCELLING) and not phase.terminal:
            session.record(ev.CancelRequested(at_s=self._clock.now_s(), reason=reason))
            with _CANCEL:
                session.flush()
        return None if phase is RunPhase.NEW and num_records is None else session.state.key

    def _finish_cancel(self, session: Session, stopped: list[str]) -> None:
        """Perform a recorded cancel, and nothing else: by now another worker may have opened a new generation.

        Adds what it stopped to ``stopped``, also where somebody else is the first to record that.
        """
        if session.state.phase is not RunPhase.CANCELLING:
            return
        (command,) = commands(session.state)
        events = self._effects.perform(self._informed(command, session))
        stopped += [name for event in events if isinstance(event, ev.RunCancelled) for name in event.stopped]
        session.record(*events)
        session.flush()

    def _free_what_is_over(self, session: Session) -> None:
        """Give back what the run holds, also if it ended before or never began: a late worker then claims nothing."""
        if session.state.phase is RunPhase.NEW or session.state.phase.terminal:
            self._effects.free(num_records=session.num_records)

    def _record_release(self, session: Session, started_at_s: float, stopped: Sequence[str], *, judged: bool) -> None:
        state = session.state
        is_new = started_at_s > (state.owner_since_s or 0.0) + CLOCK_SKEW_S  # somebody may have set out since the last
        if state.released and not stopped and (judged or not is_new):
            return
        if state.phase is RunPhase.NEW and judged:
            return  # the reaper found a gang without a journal: that run begins nothing any more
        if state.phase is not RunPhase.NEW and not state.phase.terminal:
            return  # someone has gone on with the run meanwhile: it is not released
        if any(isinstance(event, ev.Released) and event.at_s >= started_at_s for event in self._journal.read()):
            return  # by another teardown at the same time, which stopped the same gangs
        session.record(ev.Released(at_s=self._clock.now_s(), started_at_s=started_at_s, stopped=tuple(stopped)))
        with _RELEASE:
            session.flush()

    def _drive(self, session: Session) -> Outcome:
        while True:
            outcome = self._outcome(session)
            if outcome is not None:
                session.flush()
                return outcome
            if session.state.phase is RunPhase.PLANNING and self._is_spent(session):
                step = session.state.last_step
                session.record(
                    ev.DeadlineReached(at_s=self._clock.now_s(), last_step=step, cause=ev.DeadlineCause.MONEY)
                )
                continue
            for command in commands(session.state):
                if isinstance(command, _EFFECTFUL) or (self._arbiter and isinstance(command, cmd.ChoosePlan)):
                    session.flush()
                events = self._effects.perform(self._informed(command, session))
                self._submitted = next((each.handle for each in events if isinstance(each, ev.Launched)), None)
                session.record(*events)
                if isinstance(command, cmd.Launch):
                    session.flush()  # other effects are cheap to find done; a launch must be known at once

    def _informed(self, command: cmd.Command, session: Session) -> cmd.Command:
        """Add what the machine does not know: how much was read, and to a review what the run has cost and may cost."""
        if isinstance(command, cmd.ChoosePlan | cmd.FinishRun | cmd.FailRun | cmd.CancelRun):
            return replace(command, num_records=session.num_records)
        if not isinstance(command, cmd.Review):
            return command
        return replace(command, spend=self._spend(session), max_usd=self._max_usd())

    def _give_back(self, state: RunState) -> None:
        """Stop what this driver submitted if the journal, read again, shows that the run went on without it."""
        handle, self._submitted = self._submitted, None
        if handle is None or (state.key == handle.key and state.phase in (RunPhase.LAUNCHING, RunPhase.WATCHING)):
            return
        self._effects.stop(handle)

    def _outcome(self, session: Session) -> Outcome | None:
        state = session.state
        if self._superseded(state):
            return Failed(reason=f"superseded: generation {state.generation} of run {state.run} goes on elsewhere")
        if state.phase is RunPhase.SUCCEEDED:
            return Succeeded(
                checkpoint=state.checkpoint, last_step=state.last_step, num_attempts=state.attempt, note=state.reason
            )
        if state.phase is RunPhase.FAILED:
            return Failed(reason=state.reason, fault=state.fault)
        if state.phase is RunPhase.CANCELLED:
            return Failed(reason=f"cancelled: {state.reason}", cancelled=True)
        if state.phase not in (RunPhase.WATCHING, RunPhase.WAITING) or self._obeys(session):
            return None
        return Watch(state=self._watch_state(session))

    def _obeys(self, session: Session) -> bool:
        """Record an order to leave, where there is one: what follows from it is then this run's own doing."""
        if self._arbiter is None or session.state.phase is not RunPhase.WATCHING:
            return False
        order = self._arbiter.order(session.state.key)
        if order is None:
            return False
        session.record(order)
        with _YIELD:
            session.flush()
        return True

    def _superseded(self, state: RunState) -> bool:
        """Whether a later try or a clear has taken the run over from this worker."""
        context = self._context
        taken = bool(context.owner and state.owner and context.owner != state.owner) and not state.phase.terminal
        return taken or context.generation < state.asked_generation

    def _stood_still(self, state: RunState, since_s: float) -> bool:
        """Whether another worker, or a teardown, set out later than clocks may differ, and was first all the same."""
        later_s = state.owner_since_s
        return state.owner != self._context.owner and later_s is not None and later_s > since_s + CLOCK_SKEW_S

    def _watch_state(self, session: Session) -> WatchState:
        state = session.state
        deadline_s, cause = self._deadline(session)
        context, launcher = self._context, self._context.workload.launcher
        return WatchState(
            handle=state.handle,
            channel_root=state.channel_root,
            launched_at_s=state.launched_at_s or 0.0,
            wake_at_s=state.waiting_until_s if state.phase is RunPhase.WAITING else None,
            deadline_s=deadline_s,
            deadline_cause=cause,
            # The engine enforces the limit and knows better which rank is late; this is the backstop.
            start_limit_s=launcher.start_limit_s + launcher.grace_s,
            hang_limit_s=launcher.hang_limit_s,
            poll_interval_s=context.poll_interval_s,
            lease_s=context.lease_s,
            handoff_limit_s=context.handoff_limit_s,
            max_look_errors=context.max_look_errors,
            num_steps=context.num_steps,
            review_at_s=self._review_at_s(state),
            alarm_after_s=self._alarm_after_s(state),
            ground=self._heard_ground(state),
        )

    def _heard_ground(self, state: RunState) -> str:
        """Return the claims that may call for the run; none while it waits for something that no claim changes."""
        if self._arbiter is None:
            return ""
        in_queue = state.queued is not None and state.fence_until_s is None
        return self._arbiter.ground if in_queue or state.phase is RunPhase.WATCHING else ""

    def _review_at_s(self, state: RunState) -> float | None:
        every_s = self._context.review_every_s
        if every_s is None or state.phase is not RunPhase.WATCHING:
            return None
        return (state.launched_at_s or 0.0) + every_s if state.review_at_s is None else state.review_at_s

    def _alarm_after_s(self, state: RunState) -> float | None:
        """Return from when on trouble with what is rented calls for a review; a review has heard of all before it."""
        if not self._chooses or state.phase is not RunPhase.WATCHING:
            return None
        reviewed_at_s = state.progress[-1].at_s if state.progress else 0.0
        return max(state.launched_at_s or 0.0, reviewed_at_s) + ALARM_PAUSE_S

    def _is_spent(self, session: Session) -> bool:
        """Whether the budget is used up, so that another launch would only overdraw it."""
        max_usd = self._max_usd()
        return max_usd is not None and self._spend(session).usd >= max_usd * (1 - _ROUNDING)

    def _max_usd(self) -> float | None:
        """Return what the run may cost: the spec's budget, unless somebody has allowed something else since."""
        allowed_usd = self._allowance()
        return self._context.workload.budget.max_usd if allowed_usd is None else allowed_usd

    def _spend(self, session: Session) -> Spend:
        """Return what the run has cost: its launches, or what it has rented, whichever is more."""
        launches = launch_spend(history.attempts(session.events()), now_s=self._clock.now_s())
        return max(launches, self._rented(), key=lambda spend: spend.usd)

    def _deadline(self, session: Session) -> tuple[float | None, ev.DeadlineCause]:
        """Return when the run must end, and for want of what."""
        time_s, max_usd = self._context.deadline_s, self._max_usd()
        if max_usd is not None:
            now_s, launches = self._clock.now_s(), history.attempts(session.events())
            ends_s = [
                used_up_at_s(launches, max_usd=max_usd, now_s=now_s),
                self._rented().used_up_at_s(max_usd=max_usd, now_s=now_s),
            ]
            money_s = min((each for each in ends_s if each is not None), default=None)
            if money_s is not None and (time_s is None or money_s < time_s):
                return money_s, ev.DeadlineCause.MONEY
        return time_s, ev.DeadlineCause.TIME

    def _summarize(self, state: RunState) -> None:
        if state.phase is RunPhase.NEW:
            return
        summary = RunSummary(
            run_key=state.run,
            phase=state.phase,
            generation=state.generation,
            attempt=state.attempt,
            updated_at_s=self._clock.now_s(),
            dag_id=self._context.dag_id,
            run_id=self._context.run_id,
            workload=self._context.workload.name,
            last_step=state.last_step,
            checkpoint_step=state.newest.step if state.newest else None,
            world_size=state.plan.layout.world_size if state.plan else None,
            released=state.released,
            reason=state.reason,
            asks="" if state.phase.terminal else state.asks,
        )
        with contextlib.suppress(StoreError):  # a list that is one step behind must not end a run
            self._journal.write_summary(summary)


def run_blocking(
    driver: RunDriver,
    *,
    engine: Engine,
    open_channel: Callable[[str], RunChannel],
    clock: Clock,
    summoned: Callable[[WatchState], str] = lambda _watch: "",
) -> Succeeded | Failed:
    """Drive a run to its end in this process: the same steps, events and errors as through triggers."""
    outcome = driver.start()
    while isinstance(outcome, Watch):
        channel = open_channel(outcome.state.channel_root) if outcome.state.handle else None
        outcome = driver.handle(watch(engine, channel, outcome.state, clock, summoned=summoned))
    return outcome


def _concerns(state: RunState, event: ev.AnyHandover) -> bool:
    if isinstance(event, ev.Woke):
        return state.phase is RunPhase.WAITING
    if isinstance(event, ev.DeadlineReached):
        return state.phase in (RunPhase.WAITING, RunPhase.WATCHING)
    return state.phase is RunPhase.WATCHING and event.key == state.key


_ROUNDING = 1e-9
"""Relative: a sum is used up at the very moment for which that was worked out."""
