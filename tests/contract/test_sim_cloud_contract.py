"""The simulated cloud proves what every cloud must."""

from __future__ import annotations

import pytest

from airflow_llmsched.testing.cloud_contract import NoticingCloudContract
from tests.support.sim_cloud import SimCloudHarness


class TestSimCloud(NoticingCloudContract):
    @pytest.fixture
    def harness(self) -> SimCloudHarness:
        return SimCloudHarness()
