from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from airflow_llmsched.clouds.gcp.catalogue import MAX_AGE_S
from airflow_llmsched.domain.capacity import Offer, Requirement, ShapeNeed
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import CouldNotLookError
from tests.support.gcp_cloud import PROJECT, SHAPE, SPOT_ZONE, TPU, ZONE, GcpCloudHarness, TpuHarness, machine_type
from tests.support.gcp_skus import COMPUTE, a3_list

NEED = Requirement(by_shape={SHAPE: ShapeNeed(num_nodes=1, work_s=1.0)})
READ = "cloudbilling.services.skus.list"


@pytest.fixture
def harness() -> Iterator[GcpCloudHarness]:
    harness = GcpCloudHarness(list_prices=True)
    harness.world.shelf.skus = {COMPUTE: a3_list()}
    yield harness
    harness.close()


def by_kind(offers: list[Offer]) -> dict[CapacityType, list[float]]:
    return {
        kind: [each.usd_per_hour for each in offers if each.pool.capacity_type is kind]
        for kind in (CapacityType.ON_DEMAND, CapacityType.SPOT)
    }


def test_every_zone_has_its_regions_price(harness: GcpCloudHarness) -> None:
    offers = list(harness.cloud.offers(NEED))
    assert {each.pool.zone for each in offers} == {ZONE, SPOT_ZONE}
    assert by_kind(offers) == {
        CapacityType.ON_DEMAND: [pytest.approx(208 * 0.03 + 1872 * 0.003 + 8 * 9.8)] * 2,
        CapacityType.SPOT: [pytest.approx(208 * 0.01 + 1872 * 0.001 + 8 * 2.5)] * 2,
    }
    assert {(each.source, each.priced_at_s) for each in offers} == {("Cloud Billing Catalog", harness.now_s())}


def test_the_list_is_read_to_its_end_and_not_again_until_it_is_old(harness: GcpCloudHarness) -> None:
    harness.cloud.offers(NEED)
    assert harness.server.calls.count(READ) == 4, "three pages of one service, one of the other"
    harness.cloud.offers(NEED)
    assert harness.server.calls.count(READ) == 4
    harness.advance(MAX_AGE_S)
    harness.cloud.offers(NEED)
    assert harness.server.calls.count(READ) == 8


def test_what_the_list_has_no_words_for_stays_without_a_price(harness: GcpCloudHarness) -> None:
    harness.world.shelf.machine_types.append(machine_type(ZONE, "z9-highgpu-8g"))
    need = Requirement(by_shape={"z9-highgpu-8g": ShapeNeed(num_nodes=1, work_s=1.0)})
    assert all(math.isnan(each.usd_per_hour) for each in harness.cloud.offers(need))


def test_reserved_capacity_has_the_price_that_was_agreed_which_the_list_does_not_know(
    harness: GcpCloudHarness,
) -> None:
    harness.world.shelf.reservations = [
        {
            "name": "block-7",
            "zone": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}",
            "status": "READY",
            "specificReservationRequired": True,
            "specificReservation": {"count": "8", "instanceProperties": {"machineType": SHAPE}},
        }
    ]
    (found,) = [each for each in harness.cloud.offers(NEED) if each.pool.capacity_type is CapacityType.RESERVED]
    assert math.isnan(found.usd_per_hour)


def test_what_is_queued_for_has_a_rate_that_the_list_does_not_tell_apart(harness: GcpCloudHarness) -> None:
    offers = by_kind(list(harness.reopen(queued_shapes=[SHAPE]).offers(NEED)))
    assert all(math.isnan(each) for each in offers[CapacityType.ON_DEMAND])
    assert not any(math.isnan(each) for each in offers[CapacityType.SPOT])


def test_slices_of_tpus_are_priced_by_the_chip() -> None:
    harness = TpuHarness()
    try:
        harness.world.shelf.skus = {COMPUTE: a3_list()}
        need = Requirement(by_shape={TPU: ShapeNeed(num_nodes=1, work_s=1.0)})
        assert all(math.isnan(each.usd_per_hour) for each in harness.cloud.offers(need))
        offers = list(harness.reopen(list_prices=True).offers(need))
        assert by_kind(offers)[CapacityType.ON_DEMAND] == [pytest.approx(16 * 1.2)] * 2
    finally:
        harness.close()


def test_a_list_that_cannot_be_read_is_not_an_empty_one(harness: GcpCloudHarness) -> None:
    harness.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError):
        harness.cloud.offers(NEED)


def test_a_price_list_that_does_not_answer_costs_the_prices_alone(harness: GcpCloudHarness) -> None:
    harness.server.dark_path = "/services/"
    found = harness.cloud.offers(NEED)
    assert found
    assert all(math.isnan(each.usd_per_hour) for each in found)
    harness.server.dark_path = ""
    assert any(not math.isnan(each.usd_per_hour) for each in harness.cloud.offers(NEED))
