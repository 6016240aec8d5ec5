"""One bounded set of threads per back end for the blocking calls of triggers.

The event loop's default pool has a handful of threads shared by every trigger of the process: one hung call there
starves all of them. Threads of its own confine a hung back end to the triggers that use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_llmsched.provider.threads import DaemonThreads

T = TypeVar("T")
THREADS_PER_BACK_END = 4

_threads: dict[str, DaemonThreads] = {}


async def run_blocking(back_end: str, call: Callable[..., T], *args: Any) -> T:
    """Run ``call(*args)`` on a thread of ``back_end`` and return its result. Call it from the loop's thread only."""
    threads = _threads.get(back_end)
    if threads is None:
        threads = _threads[back_end] = DaemonThreads(THREADS_PER_BACK_END, name=f"llmsched-{back_end}")
    return await asyncio.wrap_future(threads.submit(call, *args))
