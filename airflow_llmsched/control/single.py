"""A gang without recovery, such as an evaluation: one at a time under its key, found again after a crash.

It keeps no journal: its only effect is the gang, which carries key, generation and attempt, so the engine's own list is
the record. What is not in it yet is a launch that somebody is about to make: that is noted first (``control.intents``).
Where its cluster has no scheduler it holds what it runs on (``control.arbiter_side``), and makes room when told to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.effects import STOP_POLL_S, STOP_SETTLE_S
from airflow_llmsched.control.faults import fault_of
from airflow_llmsched.control.fencing import Fences
from airflow_llmsched.control.intents import LaunchIntents
from airflow_llmsched.control.planning import retry_at_s
from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.domain.fleet import own_name
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec, GangStatus
from airflow_llmsched.domain.health import FailureClass, Fault
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import AbandonedError, CapacityError, CouldNotLookError, LaunchError, TurnError
from airflow_llmsched.ports import Clock, Engine, RunChannel

_PREPARE = EffectPoint("single.prepare_channel")
_SUBMIT = EffectPoint("single.submit")
_STOP = EffectPoint("single.stop")
_ABANDON = EffectPoint("single.abandon")

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Launches of such a gang, unless its settings say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSettings:
    """Limits of one such gang. ``max_attempts`` counts its launches; faults of the code are never tried again.

    It waits up to ``capacity_wait_s`` for what it needs, looking every ``capacity_poll_s`` at first. ``keeps_claim``:
    what it holds is for what follows it, and is given back by others.
    """

    key: RunKey
    generation: int
    max_attempts: int = MAX_ATTEMPTS
    grace_s: float = 10.0
    start_limit_s: float = 120.0
    hang_limit_s: float = 3600.0
    poll_interval_s: float = 2.0
    deadline_s: float | None = None
    lease_s: float | None = None
    capacity_wait_s: float = 3600.0
    capacity_poll_s: float = 5.0
    run_dir: str = ""
    keeps_claim: bool = False

    def channel_root_of(self, key: AttemptKey) -> str:
        """Return where the attempt's agents report."""
        return f"{self.run_dir.rstrip('/')}/channel/{key.name}"


class Holding(Protocol):
    """What such a gang holds of a cluster without a scheduler, and gives back; ``make_gang`` claims it."""

    ground: str
    key: RunKey
    number_of: Callable[[AttemptKey], int]

    def must_leave(self) -> str:
        """Return why the gang is to make room, empty: it is not."""

    def num_yields(self) -> int:
        """Return how often it has made room."""

    def give_back(self, key: AttemptKey) -> None:
        """Give back what this launch and those before it hold, with nothing of them alive. Raises ``StoreError``."""


class SingleRun:
    """Starts, adopts and concludes the gang of ``settings``; ``make_gang`` builds it for an attempt."""

    def __init__(
        self,
        settings: SingleSettings,
        *,
        engine: Engine,
        clock: Clock,
        make_gang: Callable[[AttemptKey], GangSpec],
        open_channel: Callable[[str], RunChannel],
        intents: LaunchIntents,
        holding: Holding | None = None,
    ) -> None:
        """``make_gang`` raises ``CapacityError`` where nothing is free now, ``TurnError`` where it waits in line.

        ``holding``: None where the engine's own scheduler says who runs where.
        """
        self._holding = holding
        self._settings = settings
        self._intents = intents
        self._engine = engine
        self._clock = clock
        self._make_gang = make_gang
        self._open_channel = open_channel
        self._fences = Fences(
            run=settings.key,
            lease_s=settings.lease_s,
            grace_s=settings.grace_s,
            engine=engine,
            open_channel=open_channel,
            channel_root_of=settings.channel_root_of,
            clock=clock,
        )

    def start(self) -> Outcome:
        """Adopt the generation's gang, take its result, or launch it. Older generations are stopped first.

        One that an earlier try stopped (its worker was told to end) is launched again. A generation that a clear has
        overtaken fails, and touches nothing. While nothing is free it is to be waited. Raises ``CouldNotLookError``
        when it is unknown what exists, ``LaunchError`` when the engine could not start it.
        """
        return self._settled(self._start())

    def _start(self) -> Outcome:
        generation = self._settings.generation
        seen = _look(self._engine, self._settings.key)
        newer = max((handle.key.generation for handle in seen), default=generation)
        if newer > generation:
            return self._superseded(newer)
        self._stop_through(generation - 1)
        mine = {handle: status for handle, status in seen.items() if handle.key.generation == generation}
        if not mine:
            return self._launch(attempt=1)
        newest = max(mine, key=lambda handle: handle.key.attempt)
        if not mine[newest].phase.ended:
            return self._watch(newest) if self._stays(newest) else self._launch(attempt=newest.key.attempt + 1)
        if mine[newest].phase is GangPhase.STOPPED:
            return self._launch(attempt=newest.key.attempt + 1)
        return self._conclude(newest, mine[newest])

    def handle(self, event: ev.AnyEvent) -> Outcome:
        """Act on what a watcher handed over."""
        return self._settled(self._handle(event))

    def _handle(self, event: ev.AnyEvent) -> Outcome:
        match event:
            case ev.GangEnded(key=key, status=status):
                return self._conclude(self._handle_of(key), status)
            case ev.FaultDetected(key=key, fault=fault):
                _stop(self._engine, self._handle_of(key), grace_s=self._settings.grace_s)
                return self._again(key, fault)
            case ev.DeadlineReached():
                self._stop_through(self._settings.generation)
                return Failed(reason="not done by its deadline")
            case _:
                return self._start()

    def _settled(self, outcome: Outcome) -> Outcome:
        """Give back what an ended gang held, unless a newer generation has it."""
        settings = self._settings
        if self._holding is None or isinstance(outcome, Watch) or settings.keeps_claim:
            return outcome
        give_back(self._engine, self._intents, self._holding, through_generation=settings.generation)
        return outcome

    def _stays(self, handle: GangHandle) -> bool:
        """Whether a live gang is to go on; one that is to make room is stopped."""
        words = "" if self._holding is None else self._holding.must_leave()
        if words:
            log.info("%s is stopped, and starts again at its turn: %s", handle.key.name, words)
            _stop(self._engine, handle, grace_s=self._settings.grace_s)
        return not words

    def _wait_until_gone(self) -> None:
        """Return once nothing of the gang is left: a place is given to somebody else only then.

        Raises ``CouldNotLookError`` when that cannot be seen in time.
        """
        give_up_at_s = self._clock.now_s() + self._settings.grace_s + STOP_SETTLE_S
        while alive := _alive(self._engine, self._settings.key):
            if self._clock.now_s() >= give_up_at_s:
                raise CouldNotLookError(f"gang {alive[0].key.name} is still alive although it was told to stop")
            self._clock.sleep(STOP_POLL_S)

    def _launch(self, *, attempt: int) -> Outcome:
        fence = self._fences.awaited()
        if fence is not None:
            wake_at_s = fence.until_s if fence.again_at_s is None else fence.again_at_s
            wait = WatchState(handle=None, wake_at_s=wake_at_s, deadline_s=self._settings.deadline_s)
            return Watch(state=wait)
        key = AttemptKey(run=self._settings.key, generation=self._settings.generation, attempt=attempt)
        since_s = self._intents.note(key, at_s=self._clock.now_s())
        # Of two generations at least one sees the other's note: each writes its own before it reads them all.
        newer = max(noted.generation for noted in self._intents.noted())
        if newer > key.generation:
            _abandon(self._engine, key)
            return self._superseded(newer)
        self._stop_through(key.generation - 1)
        if self._holding is not None:
            self._wait_until_gone()
        try:
            return self._watch(self._submit(key))
        except TurnError as error:
            return self._wait_for_turn(key, error)
        except CapacityError as error:
            return self._wait(key, since_s, str(error))
        except AbandonedError as error:
            return Failed(reason=f"ended by somebody else before it began: {error}")
        except LaunchError:
            _abandon(self._engine, key)  # where it came to a gang at all, that has ended
            raise

    def _superseded(self, newer: int) -> Failed:
        return Failed(reason=f"superseded: generation {newer} of {self._settings.key} goes on elsewhere")

    def _submit(self, key: AttemptKey) -> GangHandle:
        gang = self._make_gang(key)
        nodes = [own_name(node) for node in gang.placement.nodes]
        with _PREPARE:
            links = self._open_channel(gang.channel_root).prepare(nodes, at_s=self._clock.now_s())
        request = self._engine.render(replace(gang, channel_links=links))
        with _SUBMIT:
            return self._engine.submit(request, key=key)

    def _wait(self, key: AttemptKey, since_s: float, reason: str) -> Outcome:
        """Look again later, for the same attempt; or give it up, unless somebody else has just launched it."""
        settings, now_s = self._settings, self._clock.now_s()
        again_at_s = retry_at_s(
            waiting_since_s=since_s, now_s=now_s, wait_s=settings.capacity_wait_s, poll_s=settings.capacity_poll_s
        )
        if again_at_s is not None:
            return Watch(state=WatchState(handle=None, wake_at_s=again_at_s, deadline_s=settings.deadline_s))
        if not _abandon(self._engine, key):
            return self._start()
        return Failed(reason=f"waited {now_s - since_s:.0f} s for capacity: {reason}")

    def _wait_for_turn(self, key: AttemptKey, turn: TurnError) -> Outcome:
        """Come back when the queue calls, or by then; or give it up, as :meth:`_wait` does."""
        log.info("%s %s", key.name, turn)
        if turn.again_at_s is None:
            return Failed(reason=str(turn)) if _abandon(self._engine, key) else self._start()
        watch = WatchState(handle=None, wake_at_s=turn.again_at_s, deadline_s=self._settings.deadline_s)
        return Watch(state=self._heard(watch))

    def _heard(self, watch: WatchState) -> WatchState:
        """Have the queue call for the gang."""
        if self._holding is None:
            return watch
        return replace(watch, ground=self._holding.ground, claims_as=self._holding.key)

    def _watch(self, handle: GangHandle) -> Watch:
        settings = self._settings
        state = WatchState(
            handle=handle,
            channel_root=settings.channel_root_of(handle.key),
            launched_at_s=self._clock.now_s(),
            deadline_s=settings.deadline_s,
            start_limit_s=settings.start_limit_s,
            hang_limit_s=settings.hang_limit_s,
            poll_interval_s=settings.poll_interval_s,
            lease_s=settings.lease_s,
        )
        return Watch(state=self._heard(state))

    def _conclude(self, handle: GangHandle, status: GangStatus) -> Outcome:
        fault = fault_of(status, last_step=None, num_steps=None)
        if status.phase is GangPhase.SUCCEEDED and fault is None:
            return Succeeded(checkpoint=None, last_step=None, num_attempts=handle.key.attempt)
        return self._again(handle.key, fault)

    def _again(self, key: AttemptKey, fault: Fault | None) -> Outcome:
        reason = fault.summary if fault else "it ended without a reason"
        hopeless = fault is None or fault.failure_class is FailureClass.CODE
        num_yields = 0 if self._holding is None else self._holding.num_yields()
        max_attempts = self._settings.max_attempts + num_yields
        if hopeless or key.attempt >= max_attempts:
            return Failed(reason=f"launch {key.attempt} of {max_attempts}: {reason}", fault=fault)
        return self._launch(attempt=key.attempt + 1)

    def _stop_through(self, generation: int) -> None:
        settings = self._settings
        stop_all(self._engine, settings.key, self._intents, grace_s=settings.grace_s, through_generation=generation)

    def _handle_of(self, key: AttemptKey) -> GangHandle:
        for handle in self._engine.find(key.run):
            if handle.key == key:
                return handle
        raise CouldNotLookError(f"engine {self._engine.name} no longer knows {key.name}, which it had started")


def give_back(
    engine: Engine, intents: LaunchIntents, holding: Holding, *, through_generation: int | None = None
) -> None:
    """Give back what the launches noted in ``intents`` hold, or those up to a generation.

    Where one of them is alive, that is left to whoever finds it gone. Raises ``CouldNotLookError``, ``StoreError``.
    """
    noted = intents.noted()
    mine = [each for each in noted if through_generation is None or each.generation <= through_generation]
    if not mine:
        return
    alive = {handle.key for run in {each.run for each in mine} for handle in _alive(engine, run)}
    if any(through_generation is None or key.generation <= through_generation for key in alive):
        log.warning("%s: a gang of it is still alive: whoever finds it gone gives back what it holds", holding.key)
        return
    holding.give_back(max(mine, key=holding.number_of))


def stop_all(
    engine: Engine, key: RunKey, intents: LaunchIntents, *, grace_s: float, through_generation: int | None = None
) -> tuple[str, ...]:
    """Stop every live gang under ``key``, or those up to a generation; return their names. Idempotent.

    What is noted in ``intents`` but was never submitted is given up first: a worker that stands still just before its
    submit starts nothing when it goes on. Where the caller itself stands still, generations that begin meanwhile are
    not its to stop. Raises ``CouldNotLookError``, ``StoreError``.
    """
    noted = intents.noted()
    if through_generation is None:
        known = [each.generation for each in (*noted, *(handle.key for handle in engine.find(key)))]
        through_generation = max(known, default=None)
    for each in noted:
        if through_generation is None or each.generation <= through_generation:
            _abandon(engine, each)
    alive = [
        handle
        for handle, status in _look(engine, key).items()
        if not status.phase.ended and (through_generation is None or handle.key.generation <= through_generation)
    ]
    for handle in alive:
        _stop(engine, handle, grace_s=grace_s)
    return tuple(handle.key.name for handle in alive)


def _alive(engine: Engine, key: RunKey) -> list[GangHandle]:
    return [handle for handle, status in _look(engine, key).items() if not status.phase.ended]


@_ABANDON
def _abandon(engine: Engine, key: AttemptKey) -> bool:
    return engine.abandon(key)


@_STOP
def _stop(engine: Engine, handle: GangHandle, *, grace_s: float) -> None:
    engine.stop(handle, grace_s=grace_s)


def _look(engine: Engine, key: RunKey) -> dict[GangHandle, GangStatus]:
    handles = engine.find(key)
    return dict(engine.poll(handles)) if handles else {}
