"""Waits until a complete checkpoint is on storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_llmsched.provider.executor import run_blocking


class CheckpointTrigger(BaseTrigger):
    """Fires once a complete checkpoint of at least ``min_step`` is below ``path``.

    Args:
        path: one checkpoint root (a string) or several. Named as in ``CheckpointSensor``, like ``format`` and
            ``min_step``: that lets Airflow render the sensor's templates when a task begins in the triggerer.
        format: name of a checkpoint format, e.g. ``dcp``.
        min_step: lowest step that counts.
        poll_interval_s: seconds between looks.
        after_step: fire for a step above this one only.
    """

    def __init__(
        self,
        *,
        path: str | Sequence[str],
        format: str = "dcp",  # noqa: A002 - the term the user knows
        min_step: int | str = 0,
        poll_interval_s: float = 30.0,
        after_step: int | None = None,
    ) -> None:
        super().__init__()
        self.path = path if isinstance(path, str) else list(path)
        self.format = format
        self.min_step = min_step
        self.poll_interval_s = poll_interval_s
        self.after_step = after_step

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and JSON-safe arguments."""
        return (
            "airflow_llmsched.provider.triggers.checkpoint.CheckpointTrigger",
            {
                "path": self.path,
                "format": self.format,
                "min_step": self.min_step,
                "poll_interval_s": self.poll_interval_s,
                "after_step": self.after_step,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield ``{"checkpoint": {...}}``, the newest complete one. Storage that cannot be read is looked at again."""
        floor = int(self.min_step) if self.after_step is None else max(int(self.min_step), self.after_step + 1)
        while True:
            found = await run_blocking("checkpoint", _newest_complete, self.path, self.format, floor)
            if found is not None:
                yield TriggerEvent({"checkpoint": found})
                return
            await asyncio.sleep(self.poll_interval_s)


def _newest_complete(*arguments: Any) -> dict[str, Any] | None:
    """Runs on the pool, imports included: they take longer than the event loop may stand still."""
    from airflow_llmsched.provider.checkpoints import newest_complete

    return newest_complete(*arguments)
