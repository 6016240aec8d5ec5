from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from airflow_llmsched.clouds.azure import offers
from airflow_llmsched.domain.capacity import Offer
from airflow_llmsched.domain.workload import CapacityType
from tests.support.azure_server import FAMILY, REGION, RESERVATION, SHAPE, SKU, price

NOW_S = 1_790_000_000.0
PRICES = [price(98.32), price(39.33, spot=True)]


def sku(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(SKU) | changes


def usage(name: str, limit: int, used: int = 0) -> dict[str, Any]:
    return {"name": {"value": name}, "limit": limit, "currentValue": used}


def offered(
    *,
    skus: list[dict[str, Any]] | None = None,
    usages: list[dict[str, Any]] | None = None,
    prices: list[dict[str, Any]] | None = None,
    reservations: list[dict[str, Any]] | None = None,
    evictions: list[dict[str, str]] | None = None,
) -> dict[tuple[str, CapacityType], Offer]:
    found = offers.offers(
        offers.sizes(skus or [sku()], region=REGION),
        shapes=[SHAPE],
        usages=usages or [],
        prices=offers.price_rows(PRICES if prices is None else prices, now_s=NOW_S),
        reservations=reservations or [],
        losses=offers.losses_per_hour(evictions or []),
        now_s=NOW_S,
    )
    return {(offer.pool.zone, offer.pool.capacity_type): offer for offer in found}


def test_each_zone_is_a_pool_of_its_own_in_each_way_of_renting() -> None:
    found = offered()
    assert set(found) == {
        (f"{REGION}-{zone}", capacity_type)
        for zone in ("1", "2")
        for capacity_type in (CapacityType.ON_DEMAND, CapacityType.SPOT)
    }
    offer = found["eastus-1", CapacityType.ON_DEMAND]
    assert (offer.usd_per_hour, offer.priced_at_s) == (98.32, NOW_S)
    assert (offer.jurisdiction, offer.vendor) == ("US", "nvidia")


def test_spot_has_the_spot_price_and_its_own_region_only() -> None:
    """Field case I2."""
    elsewhere = price(0.18, spot=True, armRegionName="westus")
    assert offered(prices=[*PRICES, elsewhere])["eastus-1", CapacityType.SPOT].usd_per_hour == 39.33


def test_a_size_that_is_not_sold_by_zone_is_offered_in_the_region() -> None:
    assert ("", CapacityType.SPOT) in offered(skus=[sku(locationInfo=[{"location": "EastUS", "zones": []}])])


def test_what_the_subscription_may_not_use_is_not_offered() -> None:
    location = {"type": "Location", "values": [REGION], "reasonCode": "NotAvailableForSubscription"}
    zone = {"type": "Zone", "restrictionInfo": {"zones": ["1"]}, "reasonCode": "NotAvailableForSubscription"}
    assert offered(skus=[sku(restrictions=[location])]) == {}
    assert {each for each, _ in offered(skus=[sku(restrictions=[zone])])} == {"eastus-2"}
    both = zone | {"restrictionInfo": {"zones": ["1", "2"]}}
    assert offered(skus=[sku(restrictions=[both])]) == {}
    assert offered(skus=[sku(resourceType="disks")]) == offered(skus=[sku(locationInfo=[])]) == {}


def test_a_size_that_is_never_sold_as_spot_is_not_offered_as_spot() -> None:
    regular = sku(capabilities=[{"name": "vCPUs", "value": "96"}])
    assert {capacity_type for _, capacity_type in offered(skus=[regular])} == {CapacityType.ON_DEMAND}


@pytest.mark.parametrize(
    ("usages", "on_demand", "spot"),
    [
        ([], None, None),
        ([usage("cores", 1000), usage(FAMILY.upper(), 400, used=100)], 3, None),
        ([usage("cores", 200, used=20), usage(FAMILY, 960)], 1, None),
        ([usage("lowPriorityCores", 960)], None, 10),
        ([usage("cores", 100, used=200)], 0, None),
    ],
)
def test_the_quota_says_how_many_nodes_there_are_for_us(usages, on_demand, spot) -> None:
    found = offered(usages=usages)
    assert found["eastus-1", CapacityType.ON_DEMAND].num_nodes == on_demand
    assert found["eastus-1", CapacityType.SPOT].num_nodes == spot


def test_a_reservation_is_offered_where_it_is_with_what_of_it_is_unused() -> None:
    used = {"utilizationInfo": {"currentCapacity": 5, "virtualMachinesAllocated": [{"id": "a"}, {"id": "b"}]}}
    found = offered(reservations=[RESERVATION | {"properties": {"instanceView": used}}])
    offer = found["eastus-2", CapacityType.RESERVED]
    assert (offer.num_nodes, offer.usd_per_hour) == (3, 98.32)
    other = RESERVATION | {"sku": {"name": "Standard_D2", "capacity": 9}}
    assert {each for _, each in offered(reservations=[other])} == {CapacityType.ON_DEMAND, CapacityType.SPOT}


def test_an_offer_without_a_price_has_none() -> None:
    assert all(math.isnan(offer.usd_per_hour) for offer in offered(prices=[]).values())


@pytest.mark.parametrize(
    "other",
    [
        price(150.0, productName="Virtual Machines NDsrH100v5 Series Windows"),
        price(20.0, skuName=f"{SHAPE} Low Priority"),
        price(60.0, type="Reservation"),
        price(60.0, productName="NDsrH100v5 Series Cloud Services"),
        price(60.0, unitOfMeasure="1 Month"),
        price(60.0, tierMinimumUnits=100.0),
        price(60.0, effectiveStartDate="2099-01-01T00:00:00Z"),
        price(60.0, effectiveStartDate="some day"),
        price(60.0, currencyCode="EUR"),
        price(60.0, currencyCode=""),
        price(0.0),
    ],
)
def test_what_is_not_the_price_of_a_linux_machine_by_the_hour_today_is_not_taken_for_it(other) -> None:
    assert offered(prices=[other, *PRICES])["eastus-1", CapacityType.ON_DEMAND].usd_per_hour == 98.32


def test_the_price_list_is_asked_for_the_shapes_in_one_region_with_quotes_quoted() -> None:
    asked = offers.price_filter(["b", "a'; drop"], region="eastus")
    assert asked.endswith("and armRegionName eq 'eastus' and (armSkuName eq 'a''; drop' or armSkuName eq 'b')")


@pytest.mark.parametrize(
    ("rate", "share"),
    [("0-5", 0.025), ("5-10", 0.075), ("15-20", 0.175), ("20+", 0.2), ("", None), ("rarely", None), ("0-100", None)],
)
def test_spot_is_lost_as_often_as_azure_counts_evictions_and_nothing_else_is(rate: str, share: float | None) -> None:
    found = offered(evictions=[{"name": SHAPE.upper(), "rate": rate}])
    expected = None if share is None else pytest.approx(-math.log(1 - share))
    assert found["eastus-1", CapacityType.SPOT].loss_per_hour == expected
    assert found["eastus-1", CapacityType.ON_DEMAND].loss_per_hour is None


def test_the_resource_graph_is_asked_for_the_shapes_in_one_region_with_quotes_escaped() -> None:
    asked = offers.eviction_query(["b", "a') | x \\"], region="eastus")
    assert "sku.name in~ ('a\\') | x \\\\', 'b') and location =~ 'eastus' |" in asked
