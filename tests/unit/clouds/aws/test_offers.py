from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import botocore.session
import pytest

from airflow_llmsched.clouds.aws import offers
from airflow_llmsched.clouds.aws.offers import Found
from airflow_llmsched.clouds.aws.shapes import Shape
from airflow_llmsched.domain.workload import CapacityType

P5 = Shape(name="p5.48xlarge", num_vcpus=192, num_accelerators=8, vendor="nvidia")
START_S = datetime(2026, 12, 1, tzinfo=UTC).timestamp()


def at(time_s: float) -> datetime:
    return datetime.fromtimestamp(time_s, UTC)


def found(**changes: Any) -> Found:
    fields: dict[str, Any] = {
        "region": "eu-central-1",
        "shape": P5,
        "zones": ["eu-central-1a", "eu-central-1b"],
        "on_demand_usd_per_hour": 98.32,
        "spot_usd_per_hour": {"eu-central-1b": 31.0},
        "num_on_demand": 2,
        "num_spot": 4,
    }
    return Found(**{**fields, **changes})


def product(*prices: dict[str, Any]) -> str:
    dimensions = {str(index): {"unit": "Hrs", **price} for index, price in enumerate(prices)}
    return json.dumps({"terms": {"OnDemand": {"term": {"priceDimensions": dimensions}}}})


def test_on_demand_is_offered_in_every_zone_and_spot_where_it_has_a_price() -> None:
    made = offers.offers(found(), now_s=5.0)
    assert [(each.pool.zone[-1], each.pool.capacity_type, each.usd_per_hour, each.num_nodes) for each in made] == [
        ("a", CapacityType.ON_DEMAND, 98.32, 2),
        ("b", CapacityType.ON_DEMAND, 98.32, 2),
        ("b", CapacityType.SPOT, 31.0, 4),
    ]
    assert {(each.jurisdiction, each.vendor, each.priced_at_s, each.source) for each in made} == {
        ("EU", "nvidia", 5.0, "aws")
    }


def test_spot_below_the_score_asked_for_is_left_out() -> None:
    scored = found(scores={"eu-central-1b": 3})
    assert len(offers.offers(scored, now_s=0.0, min_score=3)) == 3
    assert len(offers.offers(scored, now_s=0.0, min_score=4)) == 2
    assert len(offers.offers(found(scores={}), now_s=0.0, min_score=1)) == 2


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([product({"pricePerUnit": {"USD": "98.3200000000"}})], 98.32),
        ([product({"pricePerUnit": {"USD": "0.0000000000"}}, {"pricePerUnit": {"USD": "98.32"}})], 98.32),
        ([product({"pricePerUnit": {"USD": "98.32"}}), product({"pricePerUnit": {"USD": "99.00"}})], 99.0),
        ([product({"pricePerUnit": {"CNY": "700"}})], math.nan),
        ([product({"pricePerUnit": {"USD": "7"}, "unit": "Quantity"})], math.nan),
        (["{}"], math.nan),
        ([], math.nan),
    ],
)
def test_a_price_is_in_dollars_an_hour_or_it_is_not_known(rows: list[str], expected: float) -> None:
    assert offers.on_demand_usd_per_hour(rows) == pytest.approx(expected, nan_ok=True)


def test_of_a_pool_s_spot_prices_the_newest_counts() -> None:
    def row(zone: str, price: str, time_s: float) -> dict[str, Any]:
        return {"InstanceType": "p5", "AvailabilityZone": zone, "SpotPrice": price, "Timestamp": at(time_s)}

    rows = [row("a", "3.0", 20.0), row("a", "2.0", 10.0), row("b", "9.0", 5.0)]
    assert offers.spot_usd_per_hour(rows) == {"p5": {"a": 3.0, "b": 9.0}}


def test_zones_are_listed_once_by_shape() -> None:
    rows = [{"InstanceType": "p5", "Location": zone} for zone in ("b", "a", "b")]
    assert offers.zones(rows) == {"p5": ["a", "b"]}


def reservation(**changes: Any) -> dict[str, Any]:
    return {
        "CapacityReservationId": "cr-1",
        "AvailabilityZone": "eu-central-1a",
        "InstanceType": "p5.48xlarge",
        "State": "active",
        "AvailableInstanceCount": 3,
        "TotalInstanceCount": 4,
        "InstanceMatchCriteria": "open",
        "StartDate": at(START_S),
        **changes,
    }


def test_a_reservation_is_there_until_it_ends_and_one_to_come_from_its_start() -> None:
    (active,) = offers.held([reservation()])
    assert (active.num_free, active.is_active, active.ends_at_s, active.is_targeted) == (3, True, None, False)
    (later,) = offers.held([reservation(State="scheduled", InstanceMatchCriteria="targeted")])
    assert (later.num_free, later.is_active, later.starts_at_s, later.is_targeted) == (4, False, START_S, True)
    assert offers.held([reservation(State="expired"), reservation(State="payment-failed")]) == []


def test_a_block_ends_half_an_hour_early_and_costs_nothing_more() -> None:
    held = offers.held([reservation(ReservationType="capacity-block", EndDate=at(START_S + 86_400.0))])
    (made,) = [each for each in offers.offers(found(held=held), now_s=0.0) if each.ends_at_s is not None]
    assert (made.usd_per_hour, made.num_nodes, made.pool.capacity_type) == (0.0, 3, CapacityType.RESERVED)
    assert (made.starts_at_s, made.ends_at_s) == (START_S, START_S + 86_400.0 - 1800.0)


@pytest.mark.parametrize(("currency", "expected"), [("USD", 50.0), ("EUR", math.nan)])
def test_a_block_that_could_be_bought_has_its_fee_as_a_price(currency: str, expected: float) -> None:
    row = {
        "CapacityBlockOfferingId": "cb-1",
        "AvailabilityZone": "eu-central-1b",
        "InstanceCount": 4,
        "StartDate": at(START_S),
        "EndDate": at(START_S + 86_400.0),
        "UpfrontFee": "4800.0",
        "CurrencyCode": currency,
    }
    made = offers.offers(found(blocks=[row]), now_s=0.0)[-1]
    assert made.usd_per_hour == pytest.approx(expected, nan_ok=True)
    assert (made.num_nodes, made.starts_at_s) == (4, START_S)
    assert "cb-1" in made.source
    assert "bought" in made.source
    assert made.purchase is not None
    assert made.purchase.usd == pytest.approx(4800.0 if currency == "USD" else math.nan, nan_ok=True)
    assert made.purchase.what.startswith("capacity block cb-1 of 4 ")
    assert made.purchase.command == (
        "aws ec2 purchase-capacity-block --region eu-central-1 --capacity-block-offering-id cb-1 "
        "--instance-platform Linux/UNIX"
    )


def test_the_command_that_buys_a_block_says_what_ec2_has_to_be_told() -> None:
    call = botocore.session.get_session().get_service_model("ec2").operation_model("PurchaseCapacityBlock").input_shape
    assert set(call.required_members) == {"CapacityBlockOfferingId", "InstancePlatform"}
    assert offers.INSTANCE_PLATFORM in call.members["InstancePlatform"].enum


QUOTAS = [
    {"QuotaName": "Running On-Demand P instances", "Value": 768.0},
    {"QuotaName": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", "Value": 32.0},
    {"QuotaName": "All P4, P3 and P2 Spot Instance Requests", "Value": 960.0},
    {"QuotaName": "All P5 Spot Instance Requests", "Value": 192.0},
    {"QuotaName": "All G and VT Spot Instance Requests", "Value": 8.0},
    {"QuotaName": "EC2-VPC Elastic IPs", "Value": 5.0},
]


def running(kind: str, cores: int, *, is_spot: bool = False) -> dict[str, Any]:
    row: dict[str, Any] = {"InstanceType": kind, "CpuOptions": {"CoreCount": cores, "ThreadsPerCore": 2}}
    return {**row, "InstanceLifecycle": "spot"} if is_spot else row


def shape(name: str, num_vcpus: int) -> Shape:
    return Shape(name=name, num_vcpus=num_vcpus, num_accelerators=8, vendor="nvidia")


@pytest.mark.parametrize(
    ("wanted", "is_spot", "instances", "expected"),
    [
        (P5, False, [], 4),
        (P5, False, [running("p4d.24xlarge", 48), running("m5.large", 1)], 3),
        (P5, False, [running("p5.48xlarge", 96, is_spot=True)], 4),
        (P5, True, [], 1),
        (P5, True, [running("p4d.24xlarge", 48, is_spot=True)], 1),
        (P5, True, [running("p5.48xlarge", 96, is_spot=True)], 0),
        (shape("p5en.48xlarge", 192), True, [], 1),
        (shape("p4d.24xlarge", 96), True, [running("p4d.24xlarge", 48, is_spot=True)], 9),
        (shape("c7i.large", 2), False, [], 16),
        (shape("vt1.3xlarge", 12), True, [], 0),
        (shape("trn1.32xlarge", 128), False, [], None),
    ],
)
def test_head_room_is_what_the_quota_of_the_family_leaves(
    wanted: Shape, is_spot: bool, instances: list[dict[str, Any]], expected: int | None
) -> None:
    assert offers.head_room(wanted, is_spot=is_spot, quotas=QUOTAS, instances=instances) == expected


@pytest.mark.parametrize(
    ("region", "law"),
    [
        ("us-east-1", "US"),
        ("us-gov-west-1", "US"),
        ("eu-west-1", "EU"),
        ("eu-west-2", "GB"),
        ("eu-central-2", "CH"),
        ("ap-northeast-1", "JP"),
        ("ap-northeast-2", "KR"),
        ("ap-southeast-2", "AU"),
        ("xx-new-1", ""),
    ],
)
def test_a_region_lies_under_one_law(region: str, law: str) -> None:
    assert offers.jurisdiction(region) == law
