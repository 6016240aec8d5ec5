"""What the blocking path and a trigger do about one gang: watch it here, subscribe it to the poller, end it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control import watching
from airflow_llmsched.control.events import Handover, ReviewDue, Woke
from airflow_llmsched.control.poller import KeepWatching, WatchState
from airflow_llmsched.errors import InternalError
from airflow_llmsched.ports import Engine, RunChannel
from airflow_llmsched.provider.channels import open_channel
from airflow_llmsched.provider.evaluation_run import stop_evaluation
from airflow_llmsched.provider.gang_run import GangSettings, open_driver
from airflow_llmsched.provider.handover import handed_over
from airflow_llmsched.provider.lease_watch import BackgroundPasses, Watched
from airflow_llmsched.provider.poller import Connection
from airflow_llmsched.provider.preflight_run import stop_preflight
from airflow_llmsched.provider.queue_watch import LOOK_EVERY_S, Listener, QueueLooks, listener_of
from airflow_llmsched.provider.run_engine import open_run_engine
from airflow_llmsched.provider.run_scope import RunScope

KILLED = "the task was failed, cleared or ended by a person"


class GangWatch:
    """One gang under watch of a blocking worker."""

    def __init__(
        self,
        engine: Engine,
        channel: RunChannel | None,
        state: WatchState,
        leases: Watched | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._state = state
        self._leases = None if leases is None else BackgroundPasses(leases)
        self._listener = listener
        self._queue = QueueLooks()

    @classmethod
    def open(cls, settings: Mapping[str, Any], watch: Mapping[str, Any]) -> GangWatch:
        """Open engine and channel from what a trigger would get."""
        state = codec.from_plain(WatchState, watch)
        channel = open_channel(state.channel_root) if state.channel_root else None
        engine = open_run_engine(settings["engine"], settings["engine_options"])
        return cls(engine, channel, state, watched_leases(settings, watch), queue_listener(settings, watch))

    def step(self) -> tuple[float, dict[str, Any] | None]:
        """Look once. Returns seconds until the next look, or the event to yield."""
        if self._leases is not None:
            self._leases.tend()
            if self._leases.alarm and self._heeds_alarms():
                watching.extend(self._channel, self._state, SystemClock())
                return 0.0, review_due(self._state, self._leases.alarm)
        self._state, verdict = watching.step(self._engine, self._channel, self._state, SystemClock())
        if not isinstance(verdict, KeepWatching):
            return 0.0, handed_over(verdict.event)
        if self._listener is None:
            return verdict.after_s, None
        if self._queue.make([self._listener]):
            watching.extend(self._channel, self._state, SystemClock())
            return 0.0, called()
        return min(verdict.after_s, LOOK_EVERY_S), None

    def _heeds_alarms(self) -> bool:
        after_s = self._state.alarm_after_s
        return self._state.handle is not None and after_s is not None and SystemClock().now_s() >= after_s


def review_due(state: WatchState, cause: str) -> dict[str, Any]:
    """Return the payload that has a gang reviewed because of ``cause``."""
    if state.handle is None:
        raise InternalError("there is no gang to review")
    return handed_over(ReviewDue(at_s=SystemClock().now_s(), key=state.handle.key, cause=cause))


def called() -> dict[str, Any]:
    """Return the payload that has a worker look after a run that the queue calls for."""
    return handed_over(Woke(at_s=SystemClock().now_s()))


def subscription(settings: Mapping[str, Any], watch: Mapping[str, Any]) -> tuple[Connection, WatchState]:
    """Return what to subscribe, and to whose poller, from a trigger's arguments. Call it on a thread."""
    codec.prepare(Handover)  # the event loop has no time for it
    connection = Connection.of(settings["engine"], settings["engine_options"])
    return connection, codec.from_plain(WatchState, watch)


def watched_leases(settings: Mapping[str, Any], watch: Mapping[str, Any]) -> Watched:
    """Return whose leases to keep, from a trigger's arguments."""
    state = codec.from_plain(WatchState, watch)
    return Watched(scope=codec.from_plain(RunScope, settings["scope"]), channel_root=state.channel_root)


def queue_listener(settings: Mapping[str, Any], watch: Mapping[str, Any]) -> Listener | None:
    """Return who listens to the queue, from a trigger's arguments; None: nobody."""
    return listener_of(codec.from_plain(RunScope, settings["scope"]), codec.from_plain(WatchState, watch))


def extend_lease(watch: Mapping[str, Any]) -> None:
    """Give a gang whose watch broke the time that a hand-over may take. Blocks; raises for what is no watch."""
    state = codec.from_plain(WatchState, watch)
    watching.extend(open_channel(state.channel_root) if state.channel_root else None, state, SystemClock())


def cancel(purpose: str, settings: Mapping[str, Any]) -> None:
    """End the generation's gang because a person ended its task. A newer try's or generation's gang is left alone."""
    CANCEL[purpose](codec.from_plain(GangSettings, settings))


def _cancel_training(settings: GangSettings) -> None:
    open_driver(settings).cancel(KILLED)


def _cancel_evaluation(settings: GangSettings) -> None:
    stop_evaluation(settings, through_generation=settings.generation)


def _cancel_preflight(settings: GangSettings) -> None:
    stop_preflight(settings, through_generation=settings.generation)


CANCEL = {"train": _cancel_training, "evaluate": _cancel_evaluation, "preflight": _cancel_preflight}
"""How a trigger ends its gang, by ``GangOperator.purpose``."""
