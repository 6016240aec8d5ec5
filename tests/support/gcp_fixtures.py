"""Fixtures over a Google Cloud of one's own; import those you need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.testing.cloud_contract import LEASE_S, lease_key, origin
from tests.support.gcp_cloud import GcpCloudHarness


@pytest.fixture
def harness() -> Iterator[GcpCloudHarness]:
    harness = GcpCloudHarness()
    yield harness
    harness.close()


def rent(
    harness: GcpCloudHarness,
    rental: int = 1,
    *,
    num_nodes: int = 2,
    offer: Offer | None = None,
    lease_s: float = LEASE_S,
) -> Lease:
    return harness.cloud.acquire(
        offer or harness.offer(),
        key=lease_key(rental),
        origin=origin(),
        num_nodes=num_nodes,
        until_s=harness.now_s() + lease_s,
    )
