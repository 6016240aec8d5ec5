"""Calls made as simultaneously as threads can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow_llmsched.testing.engine_contract import outcome_of


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make all calls at the same moment; return what each returned, or the error of ours that it raised."""
    ready = threading.Barrier(len(calls))

    def make(call: Callable[[], Any]) -> Any:
        ready.wait()
        return outcome_of(call)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(make, calls))
