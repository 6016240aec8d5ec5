from __future__ import annotations

import asyncio
import time

import pytest

from airflow_llmsched.provider.settling import settle


@pytest.mark.parametrize(("age_s", "expected_s"), [(0.0, 0.3), (0.2, 0.1), (5.0, 0.0)])
def test_an_event_waits_for_what_is_left_of_the_time(age_s, expected_s):
    started_s = time.monotonic()
    asyncio.run(settle(since_s=started_s - age_s, settle_s=0.3))
    assert time.monotonic() - started_s >= expected_s
    assert expected_s > 0 or time.monotonic() - started_s < 4.0
