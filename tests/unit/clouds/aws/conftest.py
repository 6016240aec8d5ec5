from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.aws_cloud import AwsCloudHarness


@pytest.fixture
def harness() -> Iterator[AwsCloudHarness]:
    """An empty account. A fault of the stand-in's own fails the test."""
    made = AwsCloudHarness()
    yield made
    made.close()
