"""Watches one gang from the triggerer: observes, renews the agents' lease, hands over. Never acts on a healthy gang."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_llmsched.provider.executor import run_blocking
from airflow_llmsched.provider.settling import settle

if TYPE_CHECKING:
    from airflow_llmsched.control.poller import WatchState
    from airflow_llmsched.provider.lease_watch import LeaseAlarm, Watched
    from airflow_llmsched.provider.poller import Connection, SharedPoller
    from airflow_llmsched.provider.queue_watch import Listener, QueueCall

log = logging.getLogger(__name__)

GOES_ON = frozenset({"deferred", "scheduled", "queued", "running", "restarting", "up_for_retry", "up_for_reschedule"})
"""States in which a worker or another triggerer has the task, or will have it: the gang is theirs to keep or stop."""

# Keeps what on_kill began alive: Airflow may cancel on_kill itself about a second after it starts.
_ENDINGS: set[asyncio.Task[None]] = set()


class GangTrigger(BaseTrigger):
    """Yields one event, ``{"handover": {...}}`` or ``{"broken": reason}``, each with ``yielded_at_s``, and ends.

    Args:
        purpose: what the gang is for: ``train`` or ``evaluate`` (``provider.gang_watch.CANCEL``).
        settings: ``provider.gang_run.GangSettings`` in codec form.
        watch: ``control.poller.WatchState`` in codec form.
        settle_s: the event comes no sooner than this many seconds after the watch began (``provider.settling``).
    """

    def __init__(
        self, *, purpose: str, settings: Mapping[str, Any], watch: Mapping[str, Any], settle_s: float = 0.0
    ) -> None:
        super().__init__()
        self.purpose = purpose
        self.settings = dict(settings)
        self.watch = dict(watch)
        self.settle_s = settle_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and JSON-safe arguments. Nothing secret is among them."""
        arguments = {
            "purpose": self.purpose,
            "settings": self.settings,
            "watch": self.watch,
            "settle_s": self.settle_s,
        }
        return "airflow_llmsched.provider.triggers.gang.GangTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch until there is something to hand over. An unforeseen error is handed over too, never raised.

        Airflow resumes a task whose trigger raised as a failure that runs none of our code, so the gang would live on.
        """
        started_s = time.monotonic()
        try:
            shared_poller, connection, watch = await run_blocking("subscribe", self._subscription)
            watching_leases, watched = await run_blocking("subscribe", self._leases)
            listening, listener = await run_blocking("subscribe", self._queue)
            with watching_leases(watched) as alarm, listening(listener) as call:
                event = await self._first(shared_poller(connection).watch(watch), alarm, call, watch)
        except Exception as error:
            self.log.exception("the watch of this gang broke; handing over")
            with contextlib.suppress(Exception):  # whatever broke the watch may break this
                await run_blocking(f"{self._back_end}-extend", self._extend)
            event = broken(error)
        await settle(since_s=started_s, settle_s=self.settle_s)
        yield TriggerEvent(event)

    async def _first(
        self,
        watching: Coroutine[Any, Any, dict[str, Any]],
        alarm: LeaseAlarm,
        call: QueueCall | None,
        watch: WatchState,
    ) -> dict[str, Any]:
        """Return what comes first: the end of the watch, trouble with what the run has rented, or the queue's call."""
        watched = asyncio.ensure_future(watching)
        rung = call_come = None
        if watch.handle is not None and watch.alarm_after_s is not None:
            rung = asyncio.ensure_future(alarm.wait(not_before_s=watch.alarm_after_s))
        if call is not None:
            call_come = asyncio.ensure_future(call.wait())
        others = [each for each in (rung, call_come) if each is not None]
        try:
            await asyncio.wait({watched, *others}, return_when=asyncio.FIRST_COMPLETED)
            if watched.done():
                return watched.result()
            if rung is not None and rung.done():
                return await run_blocking(f"{self._back_end}-extend", self._reviewed, watch, rung.result())
            return await run_blocking(f"{self._back_end}-extend", self._called)
        finally:
            for each in (watched, *others):
                each.cancel()

    async def on_kill(self) -> None:
        """End this generation because someone failed, cleared or ended the task: durable record first, then the stop.

        Airflow also calls this when it moves a trigger to another triggerer. The task is then still deferred, or the
        other has handed it over already and it is on its way to a worker: nothing may be stopped. A task that was
        cleared looks the same once it is scheduled again; its new try stops the old gang itself, before it launches
        another. When the task's state cannot be read, nothing is stopped either: the agents' lease is no longer
        renewed, and ends them.
        """
        ending = asyncio.ensure_future(self._end())
        _ENDINGS.add(ending)
        ending.add_done_callback(_ended)
        await asyncio.shield(ending)

    async def _end(self) -> None:
        state = await self._task_goes_on()
        if state is not None:
            self.log.info("the task is %s, so that others have it: the gang goes on", state)
            return
        await run_blocking(f"{self._back_end}-kill", self._kill)

    @property
    def _back_end(self) -> str:
        return str(self.settings.get("engine"))

    # These run on a thread: what they import takes longer than the event loop may stand still.
    def _subscription(self) -> tuple[Callable[[Connection], SharedPoller], Connection, WatchState]:
        from airflow_llmsched.provider.gang_watch import subscription
        from airflow_llmsched.provider.poller import shared_poller

        return shared_poller, *subscription(self.settings, self.watch)

    def _leases(self) -> tuple[Callable[[Watched], AbstractContextManager[LeaseAlarm]], Watched]:
        from airflow_llmsched.provider.gang_watch import watched_leases
        from airflow_llmsched.provider.lease_watch import watching_leases

        return watching_leases, watched_leases(self.settings, self.watch)

    def _reviewed(self, watch: WatchState, cause: str) -> dict[str, Any]:
        from airflow_llmsched.provider.gang_watch import extend_lease, review_due

        extend_lease(self.watch)
        return review_due(watch, cause)

    def _queue(self) -> tuple[Callable[[Listener | None], AbstractContextManager[QueueCall | None]], Listener | None]:
        from airflow_llmsched.provider.gang_watch import queue_listener
        from airflow_llmsched.provider.queue_watch import listening

        return listening, queue_listener(self.settings, self.watch)

    def _called(self) -> dict[str, Any]:
        from airflow_llmsched.provider.gang_watch import called, extend_lease

        extend_lease(self.watch)
        return called()

    def _extend(self) -> None:
        from airflow_llmsched.provider.gang_watch import extend_lease

        extend_lease(self.watch)

    def _kill(self) -> None:
        from airflow_llmsched.provider.gang_watch import cancel

        cancel(self.purpose, self.settings)

    async def _task_goes_on(self) -> str | None:
        """Return the state of a task that someone else goes on with, else None."""
        from asgiref.sync import sync_to_async

        ti = self.task_instance
        if ti is None:
            return None
        states = await sync_to_async(_task_states)(ti)
        known = states.get(ti.run_id, {})
        found = {known.get(key) for key in (ti.task_id, f"{ti.task_id}_{ti.map_index}")}
        return next((str(state) for state in found if state in GOES_ON), None)


def _task_states(ti: Any) -> Mapping[str, Any]:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # too slow an import for the event loop

    return RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
    )


def broken(error: Exception) -> dict[str, Any]:
    """Return the payload that tells the worker that watching itself failed."""
    return {"broken": f"{type(error).__name__}: {error}", "yielded_at_s": time.time()}


def _ended(ending: asyncio.Task[None]) -> None:
    _ENDINGS.discard(ending)
    if not ending.cancelled() and ending.exception() is not None:
        log.error("a gang whose task was ended may still be alive: release stops it", exc_info=ending.exception())
