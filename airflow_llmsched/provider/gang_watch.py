"""The blocking half of the gang trigger: what it runs on its thread pool."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.control import watching
from airflow_llmsched.control.clock import SystemClock
from airflow_llmsched.control.events import Handover
from airflow_llmsched.control.poller import KeepWatching, WatchState
from airflow_llmsched.ports import Engine, RunChannel
from airflow_llmsched.provider.channels import open_channel
from airflow_llmsched.provider.engine import open_engine
from airflow_llmsched.provider.evaluation_run import stop_evaluation
from airflow_llmsched.provider.gang_run import GangSettings, open_driver

KILLED = "the task was failed, cleared or ended by a person"


class GangWatch:
    """One gang under watch. Not shared between threads at once: a trigger awaits each step before the next."""

    def __init__(self, engine: Engine, channel: RunChannel | None, state: WatchState) -> None:
        self._engine = engine
        self._channel = channel
        self._state = state

    @classmethod
    def open(cls, settings: Mapping[str, Any], watch: Mapping[str, Any]) -> GangWatch:
        """Open engine and channel from a trigger's arguments."""
        state = codec.from_plain(WatchState, watch)
        channel = open_channel(state.channel_root) if state.channel_root else None
        return cls(open_engine(settings["engine"], settings["engine_options"]), channel, state)

    def step(self) -> tuple[float, dict[str, Any] | None]:
        """Look once. Returns seconds until the next look, or the event to yield."""
        self._state, verdict = watching.step(self._engine, self._channel, self._state, SystemClock())
        if isinstance(verdict, KeepWatching):
            return verdict.after_s, None
        return 0.0, handed_over(verdict.event)


def handed_over(event: Any) -> dict[str, Any]:
    """Return the payload of a trigger's event, or of the blocking path's."""
    return {"handover": codec.to_plain(event, Handover), "yielded_at_s": time.time()}


def cancel(purpose: str, settings: Mapping[str, Any]) -> None:
    """End the generation's gang because a person ended its task. A newer try's or generation's gang is left alone."""
    CANCEL[purpose](codec.from_plain(GangSettings, settings))


def _cancel_training(settings: GangSettings) -> None:
    open_driver(settings).cancel(KILLED)


def _cancel_evaluation(settings: GangSettings) -> None:
    stop_evaluation(settings, through_generation=settings.generation)


CANCEL = {"train": _cancel_training, "evaluate": _cancel_evaluation}
"""How a trigger ends its gang, by ``GangOperator.purpose``."""
