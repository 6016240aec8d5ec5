from __future__ import annotations

import time

from airflow_llmsched.clock import SystemClock


def test_the_clock_tells_unix_seconds() -> None:
    before_s = time.time()
    told_s = SystemClock().now_s()
    assert before_s <= told_s <= time.time()


def test_sleeping_takes_at_least_as_long_as_asked() -> None:
    start_s = time.monotonic()
    SystemClock().sleep(0.05)
    assert time.monotonic() - start_s >= 0.05
