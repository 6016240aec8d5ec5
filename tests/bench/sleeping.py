"""The reference: a trigger that only sleeps, as cheap as a trigger can be that looks at its clock that often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent


class SleepTrigger(BaseTrigger):
    """Sleeps ``poll_interval_s`` at a time until ``until_s`` (Unix seconds) is past."""

    def __init__(self, *, index: int, poll_interval_s: float, until_s: float) -> None:
        super().__init__()
        self.index = index
        self.poll_interval_s = poll_interval_s
        self.until_s = until_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and JSON-safe arguments."""
        arguments = {"index": self.index, "poll_interval_s": self.poll_interval_s, "until_s": self.until_s}
        return "tests.bench.sleeping.SleepTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event when the time has come."""
        while time.time() < self.until_s:
            await asyncio.sleep(self.poll_interval_s)
        yield TriggerEvent({"index": self.index})
