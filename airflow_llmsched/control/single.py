"""A gang without recovery, such as an evaluation: one at a time under its key, found again after a crash.

It keeps no journal: its only effect is the gang, which carries key, generation and attempt, so the engine's own list is
the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.faults import fault_of
from airflow_llmsched.control.fencing import Fences
from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangSpec, GangStatus
from airflow_llmsched.domain.health import FailureClass, Fault
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.ports import Clock, Engine, RunChannel

_PREPARE = EffectPoint("single.prepare_channel")
_SUBMIT = EffectPoint("single.submit")
_STOP = EffectPoint("single.stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSettings:
    """Limits of one such gang. ``max_attempts`` counts its launches; faults of the code are never tried again."""

    key: RunKey
    generation: int
    max_attempts: int = 3
    grace_s: float = 10.0
    start_limit_s: float = 120.0
    hang_limit_s: float = 3600.0
    poll_interval_s: float = 2.0
    deadline_s: float | None = None
    lease_s: float | None = None
    run_dir: str = ""

    def channel_root_of(self, key: AttemptKey) -> str:
        """Return where the attempt's agents report."""
        return f"{self.run_dir.rstrip('/')}/channel/{key.name}"


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
    ) -> None:
        self._settings = settings
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
        overtaken fails, and touches nothing. Raises ``CouldNotLookError`` when it is unknown what exists,
        ``CapacityError`` when nothing is free, ``LaunchError`` when the engine could not start it.
        """
        generation = self._settings.generation
        seen = _look(self._engine, self._settings.key)
        newer = max((handle.key.generation for handle in seen), default=generation)
        if newer > generation:
            return Failed(reason=f"superseded: generation {newer} of {self._settings.key} goes on elsewhere")
        mine = {handle: status for handle, status in seen.items() if handle.key.generation == generation}
        for handle in seen.keys() - mine.keys():
            _stop(self._engine, handle, grace_s=self._settings.grace_s)
        if not mine:
            return self._launch(attempt=1)
        newest = max(mine, key=lambda handle: handle.key.attempt)
        if not mine[newest].phase.ended:
            return self._watch(newest)
        if mine[newest].phase is GangPhase.STOPPED:
            return self._launch(attempt=newest.key.attempt + 1)
        return self._conclude(newest, mine[newest])

    def handle(self, event: ev.AnyEvent) -> Outcome:
        """Act on what a watcher handed over."""
        match event:
            case ev.GangEnded(key=key, status=status):
                return self._conclude(self._handle_of(key), status)
            case ev.FaultDetected(key=key, fault=fault):
                _stop(self._engine, self._handle_of(key), grace_s=self._settings.grace_s)
                return self._again(key, fault)
            case ev.DeadlineReached():
                stop_all(
                    self._engine,
                    self._settings.key,
                    grace_s=self._settings.grace_s,
                    through_generation=self._settings.generation,
                )
                return Failed(reason="not done by its deadline")
            case _:
                return self.start()

    def _launch(self, *, attempt: int) -> Outcome:
        fence = self._fences.awaited()
        if fence is not None:
            wait = WatchState(handle=None, wake_at_s=fence.until_s, deadline_s=self._settings.deadline_s)
            return Watch(state=wait)
        key = AttemptKey(run=self._settings.key, generation=self._settings.generation, attempt=attempt)
        gang = self._make_gang(key)
        with _PREPARE:
            links = self._open_channel(gang.channel_root).prepare(gang.placement.nodes, at_s=self._clock.now_s())
        request = self._engine.render(replace(gang, channel_links=links))
        with _SUBMIT:
            handle = self._engine.submit(request, key=key)
        return self._watch(handle)

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
        return Watch(state=state)

    def _conclude(self, handle: GangHandle, status: GangStatus) -> Outcome:
        fault = fault_of(status, last_step=None, num_steps=None)
        if status.phase is GangPhase.SUCCEEDED and fault is None:
            return Succeeded(checkpoint=None, last_step=None, num_attempts=handle.key.attempt)
        return self._again(handle.key, fault)

    def _again(self, key: AttemptKey, fault: Fault | None) -> Outcome:
        reason = fault.summary if fault else "it ended without a reason"
        hopeless = fault is None or fault.failure_class is FailureClass.CODE
        if hopeless or key.attempt >= self._settings.max_attempts:
            return Failed(reason=f"launch {key.attempt} of {self._settings.max_attempts}: {reason}", fault=fault)
        return self._launch(attempt=key.attempt + 1)

    def _handle_of(self, key: AttemptKey) -> GangHandle:
        for handle in self._engine.find(key.run):
            if handle.key == key:
                return handle
        raise CouldNotLookError(f"engine {self._engine.name} no longer knows {key.name}, which it had started")


def stop_all(engine: Engine, key: RunKey, *, grace_s: float, through_generation: int | None = None) -> tuple[str, ...]:
    """Stop every live gang under ``key``, or those up to a generation; return their names. Idempotent.

    Raises ``CouldNotLookError``.
    """
    alive = [
        handle
        for handle, status in _look(engine, key).items()
        if not status.phase.ended and (through_generation is None or handle.key.generation <= through_generation)
    ]
    for handle in alive:
        _stop(engine, handle, grace_s=grace_s)
    return tuple(handle.key.name for handle in alive)


@_STOP
def _stop(engine: Engine, handle: GangHandle, *, grace_s: float) -> None:
    engine.stop(handle, grace_s=grace_s)


def _look(engine: Engine, key: RunKey) -> dict[GangHandle, GangStatus]:
    handles = engine.find(key)
    return dict(engine.poll(handles)) if handles else {}
