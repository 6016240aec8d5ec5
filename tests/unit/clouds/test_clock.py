from __future__ import annotations

import time

from airflow_llmsched.clouds.clock import MachineClock


def test_it_is_the_machines_clock_and_sleeping_takes_time() -> None:
    clock = MachineClock()
    before_s = time.time()
    clock.sleep(0.01)
    assert before_s + 0.01 <= clock.now_s() <= time.time()
