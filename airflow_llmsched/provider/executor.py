"""One bounded thread pool per back end for the blocking calls of triggers.

The event loop's default pool has a handful of threads shared by every trigger of the process: one hung call there
starves all of them. A pool of its own confines a hung back end to the triggers that use it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
THREADS_PER_BACK_END = 4

_pools: dict[str, ThreadPoolExecutor] = {}


async def run_blocking(back_end: str, call: Callable[..., T], *args: Any) -> T:
    """Run ``call(*args)`` on the pool of ``back_end`` and return its result. Call it from the loop's thread only."""
    pool = _pools.get(back_end)
    if pool is None:
        pool = ThreadPoolExecutor(THREADS_PER_BACK_END, thread_name_prefix=f"llmsched-{back_end}")
        _pools[back_end] = pool
    return await asyncio.get_running_loop().run_in_executor(pool, functools.partial(call, *args))
