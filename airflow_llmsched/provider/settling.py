"""Holds a trigger's event back until Airflow knows that the worker which deferred the task has gone.

Airflow 3.3.2 fails a task that was resumed and runs again while the end of the worker that deferred it is still
unprocessed: it takes that end for the new worker's (apache/airflow#72716, open). A worker may linger for ``[workers]
min_heartbeat_interval`` after it deferred, so an event that comes at once must wait. Drop this when that is fixed.
"""

from __future__ import annotations

import asyncio
import time


async def settle(*, since_s: float, settle_s: float) -> None:
    """Return once ``settle_s`` seconds have passed since ``since_s``, a reading of ``time.monotonic()``."""
    await asyncio.sleep(max(0.0, since_s + settle_s - time.monotonic()))
