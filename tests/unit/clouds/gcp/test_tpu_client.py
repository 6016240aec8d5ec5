from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.auth.credentials import AnonymousCredentials

from airflow_llmsched.clouds.gcp import record
from airflow_llmsched.clouds.gcp.tpu_client import TpuClient
from airflow_llmsched.clouds.gcp.transport import RefusedError
from airflow_llmsched.testing.cloud_contract import lease_key
from tests.support.gcp_cloud import TPU, ZONE, TpuHarness
from tests.support.gcp_fixtures import rent
from tests.support.gcp_world import PROJECT


@pytest.fixture
def harness() -> Iterator[TpuHarness]:
    harness = TpuHarness()
    yield harness
    harness.close()


@pytest.fixture
def client(harness: TpuHarness) -> TpuClient:
    return TpuClient(
        project=PROJECT, endpoint_url=harness.server.address, credentials=AnonymousCredentials(), clock=harness.clock
    )


def test_what_there_is_is_listed_by_zone_and_found_by_name(harness: TpuHarness, client: TpuClient) -> None:
    lease = rent(harness)
    place = record.parse_id(lease.id)
    harness.advance(120.0)
    assert [each["name"].rpartition("/")[2] for each in client.queued(ZONE)] == [lease_key().name]
    assert len(client.slices(ZONE)) == 2
    assert client.queued("us-central1-c") == client.slices("us-central1-c") == []
    request, first = client.queued_one(place), client.slice_one(place, f"{place.name}-0")
    assert request is not None
    assert first is not None
    assert first["queuedResource"] == request["name"]
    assert client.slice_one(place, f"{place.name}-7") is None


def test_kinds_of_slices_are_listed(harness: TpuHarness, client: TpuClient) -> None:
    assert TPU in [each["type"] for each in client.accelerator_types(ZONE)]


def test_a_request_is_made_once(harness: TpuHarness, client: TpuClient) -> None:
    lease = rent(harness, num_nodes=1)
    place = record.parse_id(lease.id)
    request = client.queued_one(place)
    assert request is not None
    body = {key: request[key] for key in ("tpu", "queueingPolicy")}
    assert client.operation(client.create_queued(place, body))["done"]
    assert len(client.queued(ZONE)) == 1


def test_a_request_that_is_withdrawn_takes_its_slices_along(harness: TpuHarness, client: TpuClient) -> None:
    rent(harness)
    harness.advance(120.0)
    (request,) = client.queued(ZONE)
    client.delete_queued(request["name"])
    harness.advance(60.0)
    assert client.slices(ZONE) == []
    with pytest.raises(RefusedError, match="NOT_FOUND"):
        client.delete_queued(request["name"])


def test_a_slice_is_labelled_and_deleted_alone(harness: TpuHarness, client: TpuClient) -> None:
    rent(harness)
    harness.advance(120.0)
    first, second = client.slices(ZONE)
    client.label_slice(first["name"], {"labels": {"a": "b"}})
    client.delete_slice(second["name"])
    harness.advance(60.0)
    (left,) = client.slices(ZONE)
    assert (left["name"], left["labels"]) == (first["name"], {"a": "b"})
