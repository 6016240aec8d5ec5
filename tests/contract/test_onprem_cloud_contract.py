"""Machines of one's own prove what every cloud must, whatever keeps their reservations."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.objects.open import open_store
from airflow_llmsched.testing.cloud_contract import CloudContract
from tests.support import seaweed
from tests.support.onprem_cloud import OnPremCloudHarness
from tests.support.s3 import CLIENT_OPTIONS, CONFIG, make_bucket, s3_server


@pytest.fixture(scope="module")
def moto_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as address:
        make_bucket(address, "bucket")
        yield address


@pytest.fixture(scope="module")
def weed_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with seaweed.seaweed_server(tmp_path_factory.mktemp("weed")) as address:
        yield address


@contextmanager
def on_prem(uri: str, **options: Any) -> Iterator[OnPremCloudHarness]:
    harness = OnPremCloudHarness(open_store(uri, **options))
    try:
        yield harness
    finally:
        harness.close()


class TestFolder(CloudContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[OnPremCloudHarness]:
        with on_prem(str(tmp_path / "state")) as harness:
            yield harness


class TestMoto(CloudContract):
    @pytest.fixture
    def harness(self, moto_address: str) -> Iterator[OnPremCloudHarness]:
        config = CONFIG | {"aws_endpoint": moto_address}
        with on_prem(f"s3://bucket/{uuid.uuid4()}", config=config, client_options=CLIENT_OPTIONS) as harness:
            yield harness


class TestSeaweed(CloudContract):
    @pytest.fixture
    def harness(self, weed_address: str) -> Iterator[OnPremCloudHarness]:
        uri, config = f"s3://{seaweed.BUCKET}/{uuid.uuid4()}", seaweed.config(weed_address)
        with on_prem(uri, config=config, client_options=CLIENT_OPTIONS) as harness:
            yield harness
