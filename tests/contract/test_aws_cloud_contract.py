"""The AWS adapter proves over HTTP, against moto behind a proxy, what every cloud must."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_llmsched.testing.cloud_contract import NoticingCloudContract, SpreadCloudContract, WordyCloudContract
from tests.support.aws_cloud import FAR_REGION, REGION, AwsCloudHarness


class TestAwsCloud(NoticingCloudContract, WordyCloudContract, SpreadCloudContract):
    @pytest.fixture
    def harness(self) -> Iterator[AwsCloudHarness]:
        made = AwsCloudHarness(regions=[REGION, FAR_REGION])
        yield made
        made.close()
