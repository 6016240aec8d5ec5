from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.mgmt.compute import ComputeManagementClient

from airflow_llmsched.clouds.azure import client as wire
from airflow_llmsched.clouds.azure.client import AzureClient, NoAnswerError, NoSuchListError
from airflow_llmsched.clouds.azure.states import Reaction, SetPhase
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.testing.cloud_contract import LEASE_S, lease_key, origin
from tests.support.azure_cloud import AnyToken, AzureCloudHarness
from tests.support.azure_server import GROUP_PATH, SUBSCRIPTION
from tests.support.cloud_faults import CloudFault

SETS = f"{GROUP_PATH}/providers/Microsoft.Compute/virtualMachineScaleSets"


@pytest.fixture
def house() -> Iterator[AzureCloudHarness]:
    house = AzureCloudHarness()
    yield house
    house.close()


@pytest.fixture
def client(house: AzureCloudHarness) -> AzureClient:
    return open_client(house)


def open_client(house: AzureCloudHarness, credentials: object = None) -> AzureClient:
    address = house.server.address
    return AzureClient(
        endpoint_url=address, prices_url=address, credentials=credentials or AnyToken(), clock=house.clock
    )


def rent(house: AzureCloudHarness, rental: int = 1) -> str:
    until_s = house.now_s() + LEASE_S
    key = lease_key(rental)
    house.cloud.acquire(house.offer(), key=key, origin=origin(), num_nodes=1, until_s=until_s)
    return key.name


def test_versions_are_those_of_the_models_that_bodies_are_checked_against() -> None:
    compute, network = (_operations(name) for name in ("compute", "network"))
    assert _version(compute, "virtual_machine_scale_sets_create_or_update") == wire.COMPUTE
    assert _version(compute, "virtual_machine_scale_set_vms_list") == wire.COMPUTE
    assert _version(compute, "capacity_reservations_get") == wire.COMPUTE
    assert _version(compute, "usage_list") == wire.COMPUTE
    assert _version(compute, "disks_delete") == wire.DISKS
    assert _version(compute, "resource_skus_list") == wire.SKUS
    assert _version(network, "network_interfaces_delete") == wire.NETWORK
    assert _version(network, "public_ip_addresses_list") == wire.NETWORK
    per_set = "network_interfaces_list_virtual_machine_scale_set_network_interfaces"
    assert _version(network, per_set) == wire.SET_NETWORK


def _operations(name: str) -> str:
    """Return the source of the SDK's calls: importing those of the network takes 300 MB."""
    spec = importlib.util.find_spec(f"azure.mgmt.{name}")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "operations" / "_operations.py").read_text()


def _version(source: str, call: str) -> str:
    found = re.search(rf'def build_{call}_request\(.*?"api-version", "([^"]+)"', source, re.DOTALL)
    assert found is not None, call
    return found[1]


def test_the_official_client_reads_what_the_adapter_made(house: AzureCloudHarness) -> None:
    name = rent(house)
    local = {"enforce_https": False}
    sdk = ComputeManagementClient(AnyToken(), SUBSCRIPTION, base_url=house.server.address, credential_scopes=["any"])
    made = sdk.virtual_machine_scale_sets.get("llmsched", name, **local)
    assert (made.name, made.sku.capacity, made.single_placement_group) == (name, 1, True)
    (machine,) = sdk.virtual_machine_scale_set_vms.list("llmsched", name, expand="instanceView", **local)
    assert machine.instance_view.statuses[-1].code == "PowerState/running"


def test_a_list_is_read_to_its_last_page(house: AzureCloudHarness, client: AzureClient) -> None:
    names = [rent(house, rental) for rental in range(1, 8)]
    assert [row["name"] for row in client.look_all(SETS, version=wire.COMPUTE)] == names
    assert house.server.calls[-3:] == [f"GET {SETS}"] * 3


def test_absent_is_told_from_a_group_that_does_not_exist(client: AzureClient) -> None:
    assert client.look(f"{SETS}/nothing", version=wire.COMPUTE) is None
    with pytest.raises(NoSuchListError):
        client.look_all(f"{SETS}/nothing/virtualMachines", version=wire.COMPUTE)
    with pytest.raises(CouldNotLookError, match="ResourceGroupNotFound"):
        client.look(SETS.replace("llmsched", "other"), version=wire.COMPUTE)
    with pytest.raises(CouldNotLookError, match="no reaction"):
        client.look(f"{GROUP_PATH}/providers/Microsoft.Web/sites/x", version=wire.COMPUTE)


@pytest.mark.parametrize("fault", list(CloudFault))
def test_a_look_that_fails_is_repeated_until_it_has_failed_often_enough(
    house: AzureCloudHarness, client: AzureClient, fault: CloudFault
) -> None:
    house.plan.order(fault, num_calls=wire.NUM_TRIES - 1)
    assert client.look_all(SETS, version=wire.COMPUTE) == []
    house.plan.order(fault, num_calls=wire.NUM_TRIES)
    with pytest.raises(CouldNotLookError, match=f"asked {wire.NUM_TRIES} times"):
        client.look_all(SETS, version=wire.COMPUTE)


def test_a_pause_is_as_long_as_azure_says_and_never_endless(house: AzureCloudHarness, client: AzureClient) -> None:
    def paused_s(num_tried: int, retry_after_s: float | None = None) -> float:
        before_s = house.now_s()
        client.pause(num_tried, retry_after_s)
        return house.now_s() - before_s

    assert [paused_s(number) for number in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert paused_s(0, 7.0) == 7.0
    assert paused_s(0, 86_400.0) == 30.0
    assert paused_s(0, -1.0) == pytest.approx(0.1)


def test_a_change_is_sent_once_and_its_fault_is_the_callers(house: AzureCloudHarness, client: AzureClient) -> None:
    house.plan.order(CloudFault.UNANSWERED, num_calls=1)
    before = house.plan.num_calls
    with pytest.raises(NoAnswerError):
        client.send("DELETE", f"{SETS}/x", version=wire.COMPUTE)
    assert house.plan.num_calls == before + 1
    house.plan.order(CloudFault.THROTTLED, num_calls=1)
    answer = client.send("DELETE", f"{SETS}/x", version=wire.COMPUTE)
    assert (answer.is_ok, answer.retry_after_s, answer.react()[0]) == (False, 2.0, Reaction.THROTTLED)


def test_a_token_goes_to_no_host_that_only_an_answer_named(client: AzureClient) -> None:
    with pytest.raises(CouldNotLookError, match="not followed"):
        client.operation("https://evil.example/operations/1")
    with pytest.raises(CouldNotLookError, match="not followed"):
        client.operation("http://127.0.0.1:1/operations/1")


def test_an_operation_goes_on_ends_or_is_forgotten(house: AzureCloudHarness, client: AzureClient) -> None:
    url = house.server._begin(house.now_s() + 10.0, {"code": "AllocationFailed", "message": "none"})
    assert client.operation(url) == (SetPhase.COMING, [])
    house.advance(10.0)
    seen = client.operation(url)
    assert seen is not None
    assert (seen[0], [fault.code for fault in seen[1]]) == (SetPhase.FAILED, ["AllocationFailed"])
    house.server.operations.clear()
    assert client.operation(url) is None


def test_a_token_is_asked_for_again_before_it_runs_out(house: AzureCloudHarness) -> None:
    class ShortToken(AnyToken):
        def get_token(self, *scopes: str, **options: object):
            return super().get_token(*scopes, **options)._replace(expires_on=int(time.time()) + 1)

    short, long = ShortToken(), AnyToken()
    for credentials in (short, long):
        one = open_client(house, credentials)
        for _ in range(3):
            one.look_all(SETS, version=wire.COMPUTE)
    assert (short.num_asked, long.num_asked) == (3, 1)


def test_credentials_that_give_no_token_are_no_empty_answer(house: AzureCloudHarness) -> None:
    class NoToken:
        def get_token(self, *_scopes: str, **_options: object):
            raise ClientAuthenticationError("the secret has expired")

    with pytest.raises(CouldNotLookError, match="the secret has expired"):
        open_client(house, NoToken()).look_all(SETS, version=wire.COMPUTE)


@pytest.mark.parametrize("url", ["http://management.azure.com", "ftp://x", "management.azure.com"])
def test_credentials_are_sent_over_https_only_but_on_this_machine(house: AzureCloudHarness, url: str) -> None:
    with pytest.raises(SpecError, match="https"):
        AzureClient(endpoint_url=url, prices_url=url, credentials=AnyToken(), clock=house.clock)


def test_prices_are_read_without_credentials(house: AzureCloudHarness) -> None:
    credentials = AnyToken()
    rows = open_client(house, credentials).prices("armSkuName eq 'Standard_ND96isr_H100_v5' and x eq 'eastus'")
    assert [row["retailPrice"] for row in rows] == [98.32, 39.33]
    assert credentials.num_asked == 0
