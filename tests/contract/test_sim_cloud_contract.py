"""The simulated cloud proves what every cloud must."""

from __future__ import annotations

import pytest

from airflow_llmsched.testing.cloud_contract import NoticingCloudContract, SpreadCloudContract
from tests.support.sim_cloud import SimCloudHarness, spread_pools


class TestSimCloud(NoticingCloudContract, SpreadCloudContract):
    @pytest.fixture
    def harness(self) -> SimCloudHarness:
        return SimCloudHarness(*spread_pools())
