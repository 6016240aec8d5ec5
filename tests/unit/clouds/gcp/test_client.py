from __future__ import annotations

import pytest
from google.auth.credentials import AnonymousCredentials

from airflow_llmsched.clouds.gcp import record
from airflow_llmsched.clouds.gcp.client import MAX_FILTERED, ComputeClient
from airflow_llmsched.testing.cloud_contract import lease_key
from tests.support.gcp_cloud import ZONE, GcpCloudHarness
from tests.support.gcp_fixtures import harness, rent
from tests.support.gcp_world import PROJECT

__all__ = ["harness"]  # a fixture is used by its name


@pytest.fixture
def client(harness: GcpCloudHarness) -> ComputeClient:
    return ComputeClient(
        project=PROJECT, endpoint_url=harness.server.address, credentials=AnonymousCredentials(), clock=harness.clock
    )


def test_machines_are_listed_by_label_over_all_pages(harness: GcpCloudHarness, client: ComputeClient) -> None:
    names = [rent(harness, 1, num_nodes=4).key.name, rent(harness, 2, num_nodes=3).key.name]
    assert len(client.machines(label=record.LEASE_LABEL)) == 7
    assert len(client.machines(label=record.LEASE_LABEL, values=names[:1], zone=ZONE)) == 4
    many = [*names, *(f"ls-none-g1-r{index}" for index in range(MAX_FILTERED))]
    assert len(client.machines(label=record.LEASE_LABEL, values=many)) == 7


def test_everything_is_listed_by_one_call_for_all_zones(harness: GcpCloudHarness, client: ComputeClient) -> None:
    rent(harness, 1, num_nodes=2)
    harness.server.calls.clear()
    assert len(client.disks(label=record.LEASE_LABEL)) == 2
    assert [each["name"] for each in client.policies(names="ls-.*")] == [lease_key().name]
    assert client.policies(names="other-.*") == []
    assert harness.server.calls == ["disks.aggregatedList", *["resourcePolicies.aggregatedList"] * 2]


def test_a_machine_is_found_by_name_though_it_is_not_listed(harness: GcpCloudHarness, client: ComputeClient) -> None:
    rent(harness, 1, num_nodes=1)
    place = record.parse_id(harness.cloud.lease_id(harness.offer().pool, lease_key()))
    for thing in harness.world.things["instances"].values():
        thing.listed_at_s = harness.now_s() + 60.0
    name = record.node_name(place, 0)
    assert client.machines(label=record.LEASE_LABEL) == []
    found = client.machine(place, name)
    assert found is not None
    assert found["name"] == name
    assert client.machine(place, "absent") is None


def test_an_operation_is_found_by_the_request_that_began_it(harness: GcpCloudHarness, client: ComputeClient) -> None:
    rent(harness, 1, num_nodes=1)
    place = record.parse_id(harness.cloud.lease_id(harness.offer().pool, lease_key()))
    (found,) = client.operations_of(ZONE, place.request_id("machines"))
    assert found["operationType"] == "bulkInsert"
    assert client.operation(found)["status"] == "DONE"
    assert client.operations_of(ZONE, place.request_id("request")) == []
