"""Watches one gang from the triggerer: observes, renews the agents' lease, hands over. Never acts on a healthy gang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_llmsched.provider.executor import run_blocking

# Holds the kill of a gang alive: Airflow cancels on_kill about a second after it starts.
_KILLS: set[asyncio.Task[None]] = set()


class GangTrigger(BaseTrigger):
    """Yields one event, ``{"handover": {...}}`` or ``{"broken": reason}``, each with ``yielded_at_s``, and ends.

    Args:
        purpose: what the gang is for: ``train`` or ``evaluate`` (``provider.gang_watch.CANCEL``).
        settings: ``provider.gang_run.GangSettings`` in codec form.
        watch: ``control.poller.WatchState`` in codec form.
    """

    def __init__(self, *, purpose: str, settings: Mapping[str, Any], watch: Mapping[str, Any]) -> None:
        super().__init__()
        self.purpose = purpose
        self.settings = dict(settings)
        self.watch = dict(watch)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and JSON-safe arguments. Nothing secret is among them."""
        arguments = {"purpose": self.purpose, "settings": self.settings, "watch": self.watch}
        return "airflow_llmsched.provider.triggers.gang.GangTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch until there is something to hand over. An unforeseen error is handed over too, never raised.

        Airflow resumes a task whose trigger raised as a failure that runs none of our code, so the gang would live on.
        """
        from airflow_llmsched.provider.gang_watch import GangWatch, broken

        back_end = str(self.settings["engine"])
        watch: GangWatch | None = None
        while True:
            try:
                if watch is None:
                    watch = await run_blocking(back_end, GangWatch.open, self.settings, self.watch)
                wait_s, event = await run_blocking(back_end, watch.step)
            except Exception as error:
                self.log.exception("the watch of this gang broke; handing over")
                wait_s, event = 0.0, broken(error)
            if event is not None:
                yield TriggerEvent(event)
                return
            await asyncio.sleep(wait_s)

    async def on_kill(self) -> None:
        """End this generation because someone failed, cleared or ended the task: durable record first, then the stop.

        Airflow also calls this when it moves a trigger to another triggerer; the task is then still deferred, and
        nothing may be stopped.
        """
        if await self._still_deferred():
            self.log.info("trigger moved elsewhere: the gang goes on")
            return
        kill = asyncio.ensure_future(run_blocking(f"{self.settings['engine']}-kill", self._kill))
        _KILLS.add(kill)
        kill.add_done_callback(_KILLS.discard)
        await asyncio.shield(kill)

    def _kill(self) -> None:
        from airflow_llmsched.provider.gang_watch import cancel

        cancel(self.purpose, self.settings)

    async def _still_deferred(self) -> bool:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        ti = self.task_instance
        if ti is None:
            return False
        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
        )
        known = states.get(ti.run_id, {})
        keys = (ti.task_id, f"{ti.task_id}_{ti.map_index}")
        return any(str(known.get(key)) in ("deferred", "TaskInstanceState.DEFERRED") for key in keys)
