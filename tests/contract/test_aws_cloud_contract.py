"""The AWS adapter proves over HTTP, against moto behind a proxy, what every cloud must."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_llmsched.testing.cloud_contract import NoticingCloudContract, WordyCloudContract
from tests.support.aws_cloud import AwsCloudHarness


class TestAwsCloud(NoticingCloudContract, WordyCloudContract):
    @pytest.fixture
    def harness(self) -> Iterator[AwsCloudHarness]:
        made = AwsCloudHarness()
        yield made
        made.close()
