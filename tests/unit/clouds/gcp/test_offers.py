from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.clouds.gcp import offers
from airflow_llmsched.clouds.gcp.offers import Catalogue
from airflow_llmsched.domain.capacity import Offer, Requirement, ShapeNeed
from airflow_llmsched.domain.workload import CapacityType, CapacityWish
from tests.support.gcp_builders import AT_S
from tests.support.gcp_cloud import SHAPE, SPOT_ZONE, ZONE, machine_type
from tests.support.google_discovery import discovery

NEED = Requirement(by_shape={SHAPE: ShapeNeed(num_nodes=2, work_s=3600.0)})
CATALOGUE = Catalogue(machine_types=[machine_type(ZONE), machine_type(SPOT_ZONE), machine_type("asia-east1-a")])


def reservation(name: str = "mine", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "zone": f"https://www.googleapis.com/compute/v1/projects/p/zones/{ZONE}",
        "status": "READY",
        "specificReservationRequired": True,
        "specificReservation": {"count": "8", "inUseCount": "3", "instanceProperties": {"machineType": SHAPE}},
        **changes,
    }


def future(status: str = "APPROVED", **window: Any) -> dict[str, Any]:
    return {
        "name": "later",
        "zone": ZONE,
        "specificSkuProperties": {"totalCount": "16", "instanceProperties": {"machineType": SHAPE}},
        "timeWindow": {"startTime": "2025-07-01T00:00:00Z", **(window or {"endTime": "2025-07-08T00:00:00Z"})},
        "status": {"procurementStatus": status},
    }


def region(**left: float) -> dict[str, Any]:
    return {
        "name": "us-central1",
        "quotas": [{"metric": name, "limit": value + 8.0, "usage": 8.0} for name, value in left.items()],
    }


def made(catalogue: Catalogue = CATALOGUE, need: Requirement = NEED, *, queued: tuple[str, ...] = ()) -> list[Offer]:
    return offers.offers(catalogue, need, regions=["us-central1"], queued_shapes=queued, now_s=AT_S)


def only_reserved(catalogue: Catalogue) -> list[Offer]:
    return [each for each in made(catalogue) if each.pool.capacity_type is CapacityType.RESERVED]


def test_a_shape_is_offered_on_demand_and_spot_in_each_zone_that_has_it() -> None:
    found = {(each.pool.zone, each.pool.capacity_type) for each in made()}
    kinds = (CapacityType.ON_DEMAND, CapacityType.SPOT)
    assert found == {(zone, kind) for zone in (ZONE, SPOT_ZONE) for kind in kinds}


def test_no_price_is_made_up_and_jurisdiction_and_vendor_are_named() -> None:
    for each in made():
        assert math.isnan(each.usd_per_hour)
        assert (each.jurisdiction, each.vendor, each.priced_at_s) == ("US", "nvidia", AT_S)


@pytest.mark.parametrize(
    "wish",
    [
        CapacityWish(clouds=("aws",)),
        CapacityWish(regions=("europe-west4",)),
        CapacityWish(capacity_types=(CapacityType.RESERVED,)),
    ],
)
def test_a_wish_leaves_out_what_it_does_not_name(wish: CapacityWish) -> None:
    assert made(need=replace(NEED, wish=wish)) == []


def test_the_quota_that_is_left_limits_how_many_there_are_for_us() -> None:
    catalogue = replace(CATALOGUE, regions=[region(NVIDIA_H100_GPUS=31.0, PREEMPTIBLE_NVIDIA_H100_GPUS=-8.0)])
    counts = {each.pool.capacity_type: each.num_nodes for each in made(catalogue)}
    assert counts == {CapacityType.ON_DEMAND: 3, CapacityType.SPOT: 0}
    assert {each.num_nodes for each in made()} == {None}


def test_the_quotas_are_such_as_google_names() -> None:
    known = discovery("compute.v1").schemas["Quota"]["properties"]["metric"]["enum"]
    missing = {each for each in offers.QUOTA_METRIC.values() if f"PREEMPTIBLE_{each}" not in known}
    assert missing == set()


def test_a_reservation_is_offered_with_what_is_free_of_it_until_it_ends() -> None:
    (found,) = only_reserved(replace(CATALOGUE, reservations=[reservation(deleteAtTime="2025-07-08T00:00:00Z")]))
    assert (found.num_nodes, found.ends_at_s, found.vendor) == (5, 1_751_932_800.0, "nvidia")


def test_what_is_assured_counts_not_what_was_asked_for() -> None:
    less = reservation()
    less["specificReservation"]["assuredCount"] = "4"
    (found,) = only_reserved(replace(CATALOGUE, reservations=[less]))
    assert found.num_nodes == 1


@pytest.mark.parametrize("window", [{"endTime": "2025-07-08T00:00:00Z"}, {"duration": {"seconds": "604800"}}])
def test_a_future_reservation_has_a_start_and_an_end(window: dict[str, Any]) -> None:
    (found,) = only_reserved(replace(CATALOGUE, future_reservations=[future(**window)]))
    assert (found.num_nodes, found.starts_at_s, found.ends_at_s) == (16, 1_751_328_000.0, 1_751_932_800.0)


@pytest.mark.parametrize("status", ["DECLINED", "DRAFTING", "FAILED", "CANCELLED"])
def test_a_future_reservation_that_is_not_promised_is_not_offered(status: str) -> None:
    assert only_reserved(replace(CATALOGUE, future_reservations=[future(status)])) == []


def test_the_words_for_a_promise_are_googles() -> None:
    status = discovery("compute.v1").schemas["FutureReservationStatus"]["properties"]["procurementStatus"]
    assert set(status["enum"]) >= offers.PROMISED


@pytest.mark.parametrize(
    "changes",
    [{"status": "CREATING"}, {"specificReservationRequired": False}, {"specificReservation": {}}],
)
def test_a_reservation_that_cannot_be_named_is_left_alone(changes: dict[str, Any]) -> None:
    rows = [reservation(**changes)]
    assert only_reserved(replace(CATALOGUE, reservations=rows)) == []
    assert offers.reservation_for(rows, shape=SHAPE, num_nodes=1) is None


def test_the_first_reservation_by_name_with_room_is_taken() -> None:
    rows = [reservation("zz"), reservation("aa", deleteAtTime="2025-07-08T00:00:00Z")]
    found = offers.reservation_for(rows, shape=SHAPE, num_nodes=5)
    assert found is not None
    assert (found.name, found.is_bound) == ("aa", True)
    assert offers.reservation_for(rows, shape=SHAPE, num_nodes=6) is None
    assert offers.reservation_for(rows, shape="a2-highgpu-1g", num_nodes=1) is None


def test_a_queue_takes_its_time() -> None:
    start_up = {each.pool.capacity_type: each.start_up_s for each in made(queued=(SHAPE,))}
    assert start_up[CapacityType.ON_DEMAND] == offers.QUEUE_START_UP_S > start_up[CapacityType.SPOT]


def test_slices_of_tpus_are_offered_where_there_are_some() -> None:
    need = Requirement(by_shape={"v5litepod-16": ShapeNeed(num_nodes=2, work_s=1.0)})
    types = {"us-central1-a": [{"type": "v5litepod-16"}, {"type": "v5litepod-4"}], "asia-east1-c": [{"type": "v6e-8"}]}
    found = offers.tpu_offers(types, need, regions=["us-central1", "asia-east1"], now_s=AT_S)
    assert [(each.pool.zone, each.pool.shape, each.pool.capacity_type) for each in found] == [
        ("us-central1-a", "v5litepod-16", CapacityType.ON_DEMAND),
        ("us-central1-a", "v5litepod-16", CapacityType.SPOT),
    ]
    assert {each.vendor for each in found} == {"google"}
    assert offers.tpu_offers(types, need, regions=["asia-east1"], now_s=AT_S) == []
