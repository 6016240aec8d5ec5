"""Waiting on a condition with a deadline, instead of sleeping for luck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], limit_s: float, *, poll_s: float = 0.02) -> T:
    """Return the first true value of ``condition``; raise ``AssertionError`` when there is none within ``limit_s``."""
    deadline_s = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"still {value!r} after {limit_s} s")
        time.sleep(poll_s)
    return value
