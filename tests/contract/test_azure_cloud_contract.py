"""Azure's adapter proves what every cloud must, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_llmsched.testing.cloud_contract import SpreadCloudContract, WordyCloudContract
from tests.support.azure_cloud import SUBNET, AzureCloudHarness
from tests.support.azure_server import FAR_REGION, REGION


class TestAzureCloud(WordyCloudContract, SpreadCloudContract):
    @pytest.fixture
    def harness(self) -> Iterator[AzureCloudHarness]:
        harness = AzureCloudHarness(subnets={REGION: SUBNET, FAR_REGION: SUBNET})
        yield harness
        harness.close()
        assert [
            each for each in harness.server.refusals if "InvalidRequestContent" in each or "InvalidApi" in each
        ] == []
