"""A simulated cloud in real time, as the provider opens it by the name ``sim``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control import open_clouds
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.ports import Clock, Cloud
from airflow_llmsched.registry import AdapterGroup
from tests.support.sim_cloud import SimCloudHarness, sim_pool


def real_time_cloud() -> SimCloudHarness:
    """Return a cloud with two pools whose nodes are up, and listed, at once."""
    return SimCloudHarness(
        sim_pool("a", start_up_s=0.0),
        sim_pool("b", start_up_s=0.0, capacity_type=CapacityType.SPOT, usd_per_hour=12.0),
        clock=SystemClock(),
        consistency_s=0.0,
    )


@contextlib.contextmanager
def opened_by_the_provider(harness: SimCloudHarness) -> Iterator[SimCloudHarness]:
    """Have the provider open the cloud as ``sim``, which takes no options; others as ever."""
    load = open_clouds.load

    def adapter(*, clock: Clock) -> Cloud:
        return harness.cloud

    def load_either(group: AdapterGroup, name: str) -> Any:
        return adapter if name == "sim" else load(group, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_clouds, "load", load_either)
        yield harness
