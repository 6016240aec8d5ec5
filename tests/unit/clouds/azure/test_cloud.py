from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from airflow_llmsched.clouds.azure.cloud import AzureCloud
from airflow_llmsched.domain.capacity import Pool, Requirement, ShapeNeed
from airflow_llmsched.domain.lease import LeaseId, LeaseState
from airflow_llmsched.domain.workload import CapacityType, CapacityWish
from airflow_llmsched.errors import (
    CapacityError,
    CouldNotLookError,
    InternalError,
    LlmschedError,
    PartlySeenError,
    SpecError,
)
from airflow_llmsched.ports import CloudFeature
from airflow_llmsched.testing.cloud_contract import LEASE_S, OTHER_RUN, RUN, lease_key, origin
from tests.support.azure_cloud import SUBNET, AnyToken, AzureCloudHarness
from tests.support.azure_server import GROUP, REGION, SHAPE, SUBSCRIPTION
from tests.support.source import ROOT

NEED = Requirement(by_shape={SHAPE: ShapeNeed(num_nodes=2, work_s=3600.0)})


@pytest.fixture
def house() -> Iterator[AzureCloudHarness]:
    house = AzureCloudHarness()
    yield house
    house.close()


def test_options_are_plain_and_credentials_and_clock_may_be_left_to_the_environment() -> None:
    cloud = AzureCloud(
        subscription_id=SUBSCRIPTION,
        resource_group=GROUP,
        subnets={REGION: SUBNET},
        image={"id": "/images/i"},
        ssh_public_key="ssh-ed25519 AAAA someone",
    )
    assert (cloud.name, cloud.features) == ("azure", {CloudFeature.TOPOLOGY})
    pool = Pool(cloud="azure", region=REGION, zone="", shape=SHAPE, capacity_type=CapacityType.SPOT)
    assert cloud.lease_id(pool, lease_key()) == f"{REGION}/{lease_key().name}"


def test_offers_come_in_every_way_of_renting_with_prices_and_what_the_quota_leaves(house: AzureCloudHarness) -> None:
    house.limit_quota(house.offer(), num_nodes=5)
    found = {(offer.pool.zone, offer.pool.capacity_type): offer for offer in house.cloud.offers(NEED)}
    assert {place: (offer.usd_per_hour, offer.num_nodes) for place, offer in found.items()} == {
        ("eastus-1", CapacityType.ON_DEMAND): (98.32, 5),
        ("eastus-2", CapacityType.ON_DEMAND): (98.32, 5),
        ("eastus-1", CapacityType.SPOT): (39.33, 5),
        ("eastus-2", CapacityType.SPOT): (39.33, 5),
        ("eastus-2", CapacityType.RESERVED): (98.32, 4),
    }


def test_spot_offers_say_how_often_they_are_lost_and_are_made_where_that_is_not_known(house: AzureCloudHarness) -> None:
    def losses() -> dict[CapacityType, float | None]:
        return {offer.pool.capacity_type: offer.loss_per_hour for offer in house.cloud.offers(NEED)}

    assert losses()[CapacityType.SPOT] == pytest.approx(0.078, abs=1e-3)
    house.server._query_graph = lambda **_: (403, {"error": {"code": "AuthorizationFailed", "message": "no"}}, {})
    assert losses() == dict.fromkeys(CapacityType)


@pytest.mark.parametrize(
    "wish",
    [CapacityWish(clouds=("aws",)), CapacityWish(regions=("westus",))],
)
def test_a_wish_for_elsewhere_costs_no_call(house: AzureCloudHarness, wish: CapacityWish) -> None:
    assert house.cloud.offers(replace(NEED, wish=wish)) == []
    assert house.plan.num_calls == 0


def test_a_price_list_that_does_not_answer_costs_the_prices_alone(house: AzureCloudHarness) -> None:
    house.server.dark_path = "/api/retail/prices"
    found = house.cloud.offers(NEED)
    assert {offer.pool.capacity_type for offer in found} == set(CapacityType)
    assert all(math.isnan(offer.usd_per_hour) for offer in found)


def test_disks_that_are_not_listed_hide_no_scale_set_and_are_named(house: AzureCloudHarness) -> None:
    lease = house.cloud.acquire(
        house.offer(), key=lease_key(), origin=origin(), num_nodes=1, until_s=house.now_s() + LEASE_S
    )
    house.server.dark_path = "Microsoft.Compute/disks"
    with pytest.raises(PartlySeenError, match="disks") as caught:
        house.cloud.find_all()
    assert ([each.id for each in caught.value.seen], caught.value.unseen) == ([lease.id], ("Microsoft.Compute/disks",))
    with pytest.raises(CouldNotLookError, match="disks"):  # what hangs on the machines may be left
        house.cloud.release(lease.id)
    house.server.dark_path = ""
    house.cloud.release(lease.id)
    assert house.billed() == frozenset()


def test_a_wish_for_spot_is_a_filter(house: AzureCloudHarness) -> None:
    found = house.cloud.offers(replace(NEED, wish=CapacityWish(capacity_types=(CapacityType.SPOT,))))
    assert {offer.pool.capacity_type for offer in found} == {CapacityType.SPOT}
    assert house.cloud.offers(Requirement(by_shape={"Standard_D2": NEED.by_shape[SHAPE]})) == []


def test_the_catalogue_is_read_once_in_an_hour(house: AzureCloudHarness) -> None:
    for _ in range(3):
        house.cloud.offers(NEED)
    reads = [call for call in house.server.calls if call.endswith("/skus")]
    assert len(reads) == 1
    house.advance(3601.0)
    house.cloud.offers(NEED)
    assert len([call for call in house.server.calls if call.endswith("/skus")]) == 2


def test_reserved_capacity_is_rented_from_its_group(house: AzureCloudHarness) -> None:
    pool = house.pool(CapacityType.RESERVED, "2")
    offer = replace(house.offer(), pool=pool)
    lease = house.cloud.acquire(offer, key=lease_key(), origin=origin(), num_nodes=2, until_s=house.now_s() + LEASE_S)
    assert (lease.state, lease.pool) == (LeaseState.ACTIVE, pool)


def test_a_request_that_cannot_be_rendered_makes_no_call(house: AzureCloudHarness) -> None:
    with pytest.raises(SpecError, match="1 to 100"):
        house.cloud.acquire(
            house.offer(), key=lease_key(), origin=origin(), num_nodes=101, until_s=house.now_s() + LEASE_S
        )
    assert house.plan.num_calls == 0


def test_many_leases_are_looked_at_by_one_list_and_two_calls_for_each_asked_for(house: AzureCloudHarness) -> None:
    ids = []
    for rental in (1, 2, 3):
        key = lease_key(rental)
        until_s = house.now_s() + LEASE_S
        ids.append(house.cloud.acquire(house.offer(), key=key, origin=origin(), num_nodes=1, until_s=until_s).id)
    house.server.calls.clear()
    assert set(house.cloud.leases(ids[:2])) == set(ids[:2])
    assert len(house.server.calls) == 1 + 2 * 2
    house.server.calls.clear()
    assert house.cloud.leases([]) == {}
    assert house.server.calls == []


def test_an_id_of_another_cloud_is_no_lease_of_ours(house: AzureCloudHarness) -> None:
    assert house.cloud.leases([LeaseId("us-east-1a/something")]) == {}
    with pytest.raises(InternalError, match="no lease of Azure"):
        house.cloud.release(LeaseId("us-east-1a/something"))


def test_leases_are_found_oldest_rental_first_as_numbers_go(house: AzureCloudHarness) -> None:
    for rental, run in ((11, RUN), (2, RUN), (1, OTHER_RUN)):
        key = lease_key(rental, run=run)
        until_s = house.now_s() + LEASE_S
        house.cloud.acquire(house.offer(), key=key, origin=origin(run), num_nodes=1, until_s=until_s)
    assert [lease.key.rental for lease in house.cloud.find(RUN)] == [2, 11]
    everything = [lease.id for lease in house.cloud.find_all()]
    assert everything == sorted(everything)
    assert len(everything) == 3


def test_nodes_hang_in_the_placement_group_that_azure_names(house: AzureCloudHarness) -> None:
    until_s = house.now_s() + LEASE_S
    lease = house.cloud.acquire(house.offer(), key=lease_key(), origin=origin(), num_nodes=2, until_s=until_s)
    tree = house.cloud.topology(lease)
    assert {node.path[2][:3] for node in tree.nodes} == {"pg-"}
    assert {node.num_slots for node in tree.nodes} == {8}


@pytest.mark.parametrize("seed", range(40))
def test_whatever_goes_wrong_one_release_later_nothing_is_left(house: AzureCloudHarness, seed: int) -> None:
    house.plan.randomly(0.25, seed=seed)
    house.server.leaves_behind = seed % 2 == 0
    house.server.hides_new = seed % 3 == 0
    if seed % 4 == 0:
        house.run_short(house.offer(), num_nodes=seed % 3)
    key = lease_key(seed + 1)
    for _ in range(2):
        with suppress(LlmschedError):
            until_s = house.now_s() + LEASE_S
            lease = house.reopen().acquire(house.offer(), key=key, origin=origin(), num_nodes=2, until_s=until_s)
            house.reopen().renew(lease, until_s=until_s + LEASE_S)
            house.reopen().release(lease.id)
    house.plan.randomly(0.0, seed=seed)
    house.advance(house.cloud.consistency_s)
    for found in house.reopen().find_all():
        assert found.expires_at_s <= house.now_s() + 2 * LEASE_S
        house.reopen().release(found.id)
    assert house.billed() == frozenset()


def test_credentials_are_never_in_what_is_raised(house: AzureCloudHarness) -> None:
    house.go_dark(is_dark=True)
    with pytest.raises(LlmschedError) as caught:
        house.cloud.find_all()
    assert "t0ken" not in repr(caught.value)
    assert AnyToken().get_token("x").token == "t0ken"


def test_the_role_in_the_docs_allows_exactly_what_is_called(house: AzureCloudHarness) -> None:
    house.server.leaves_behind = True
    house.run_short(house.offer(), num_nodes=3)
    house.cloud.offers(NEED)
    until_s = house.now_s() + LEASE_S
    lease = house.cloud.acquire(house.offer(), key=lease_key(), origin=origin(), num_nodes=2, until_s=until_s)
    house.cloud.renew(lease, until_s=until_s + LEASE_S)
    house.cloud.topology(lease)
    house.cloud.release(house.cloud.find_all()[0].id)
    house.server.leaves_behind = False
    with suppress(CapacityError):  # which is read from the set itself, as its operation is forgotten
        began = house.server._begin
        house.server._begin = lambda *wanted: began(*wanted).replace("/operations/", "/operations/99")
        house.cloud.acquire(house.offer(), key=lease_key(2), origin=origin(), num_nodes=5, until_s=until_s)
    called = {_action(call) for call in house.server.calls if "/providers/" in call}
    page = (ROOT / "docs" / "howto" / "rent-on-azure.md").read_text()
    allowed = set(re.findall(r"Microsoft\.\w+/[\w/]+/(?:read|write|delete|action)", page))
    needed_by_azure = {
        "Microsoft.Compute/capacityReservationGroups/deploy/action",
        "Microsoft.Compute/capacityReservationGroups/read",
        "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/instanceView/read",
        "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",
        "Microsoft.Network/virtualNetworks/subnets/join/action",
    }
    assert called == allowed - needed_by_azure
    assert needed_by_azure < allowed


def _action(call: str) -> str:
    """Return what a role must allow for a call: kinds without names, and what is done to the last of them."""
    method, _, path = call.partition(" ")
    provider, *rest = path.rpartition("/providers/")[2].split("/")
    kinds = [part for part in rest[::2] if part]
    verb = {"GET": "read", "POST": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"}[method]
    return "/".join([provider, *kinds, verb])
