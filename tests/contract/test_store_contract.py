"""Every object store of ours passes the same contract: a folder, memory, and a real S3 endpoint."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_llmsched.objects.open import open_store
from airflow_llmsched.ports import ObjectStore
from airflow_llmsched.testing.store_contract import ObjectStoreContract
from tests.support.s3 import CLIENT_OPTIONS, CONFIG, make_bucket, s3_server


@pytest.fixture(scope="module")
def s3_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as address:
        make_bucket(address, "bucket")
        yield address


class TestFolder(ObjectStoreContract):
    @pytest.fixture
    def open_empty(self, tmp_path: Path) -> Callable[[], ObjectStore]:
        numbers = itertools.count()
        return lambda: open_store(str(tmp_path / f"store {next(numbers)}"))


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def open_empty(self) -> Callable[[], ObjectStore]:
        return lambda: open_store("memory://")


class TestS3(ObjectStoreContract):
    num_property_examples = 10

    @pytest.fixture
    def open_empty(self, s3_address: str) -> Callable[[], ObjectStore]:
        config = CONFIG | {"aws_endpoint": s3_address}
        return lambda: open_store(f"s3://bucket/{uuid.uuid4()}", config=config, client_options=CLIENT_OPTIONS)
