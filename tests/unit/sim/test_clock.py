"""Virtual time."""

from __future__ import annotations

import pytest

from airflow_llmsched.errors import InternalError
from airflow_llmsched.sim.clock import VirtualClock


def test_time_passes_only_by_sleeping() -> None:
    clock = VirtualClock(100.0)
    assert clock.now_s() == clock.now_s() == 100.0
    clock.sleep(86400.0)
    assert clock.now_s() == 86500.0


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(InternalError):
        VirtualClock().sleep(-1.0)
