"""The market is asked over HTTP; what moto lacks is held against botocore's own model by ``Stubber``."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.stub import ANY, Stubber

from airflow_llmsched.clouds.aws.client import AwsClient
from airflow_llmsched.clouds.aws.market import PRICING_REGION, Market
from airflow_llmsched.clouds.aws.options import read_options
from airflow_llmsched.domain.capacity import Requirement, ShapeNeed
from airflow_llmsched.domain.workload import CapacityType, CapacityWish
from airflow_llmsched.errors import CapacityError, CouldNotLookError, SpecError
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.aws_cloud import FAR_REGION, REGION, SHAPE, AwsCloudHarness, aws_offer, session


def market(harness: AwsCloudHarness, **options: Any) -> Market:
    client = AwsClient(session, endpoint_url=harness.address, clock=harness.clock)
    return Market(client, read_options({"regions": [REGION], "image": "ami-1", **options}))


def need(*shapes: str, **wish: Any) -> Requirement:
    by_shape = {name: ShapeNeed(num_nodes=2, work_s=3600.0) for name in shapes or (SHAPE,)}
    return Requirement(by_shape=by_shape, wish=CapacityWish(**wish))


def test_prices_quotas_and_zones_come_together(harness: AwsCloudHarness) -> None:
    world = harness.proxy.world
    world.on_demand_usd[SHAPE] = "32.7726000000"
    world.quotas = {"Running On-Demand P instances": 400.0, "All P4, P3 and P2 Spot Instance Requests": 96.0}
    made = market(harness).offers(need())
    on_demand = [each for each in made if each.pool.capacity_type is CapacityType.ON_DEMAND]
    spot = [each for each in made if each.pool.capacity_type is CapacityType.SPOT]
    assert {(each.usd_per_hour, each.num_nodes) for each in on_demand} == {(32.7726, 4)}
    assert {each.num_nodes for each in spot} == {1}
    assert all(each.usd_per_hour > 0 for each in spot)
    assert {each.pool.zone for each in on_demand} >= {"us-east-1a", "us-east-1b"}


def test_an_offer_whose_price_is_not_known_has_none(harness: AwsCloudHarness) -> None:
    made = market(harness).offers(need(capacity_types=(CapacityType.ON_DEMAND,)))
    assert made
    assert all(math.isnan(each.usd_per_hour) for each in made)


@pytest.mark.parametrize(
    "wish",
    [
        {"regions": ("eu-west-1",)},
        {"clouds": ("gcp",)},
        {"jurisdictions": ("EU",)},
        {"vendors": ("amd",)},
        {"capacity_types": (CapacityType.RESERVED,)},
    ],
)
def test_what_the_wish_excludes_is_not_offered(harness: AwsCloudHarness, wish: dict[str, Any]) -> None:
    assert market(harness).offers(need(**wish)) == []


def test_a_region_that_the_wish_excludes_is_not_even_asked(harness: AwsCloudHarness) -> None:
    before = harness.plan.num_calls
    market(harness).offers(need(jurisdictions=("EU",)))
    assert harness.plan.num_calls == before


def test_a_shape_that_aws_does_not_have_is_not_offered(harness: AwsCloudHarness) -> None:
    assert market(harness).offers(need("a3-highgpu-8g")) == []
    made = market(harness).offers(need("a3-highgpu-8g", SHAPE))
    assert {each.pool.shape for each in made} == {SHAPE}
    with pytest.raises(SpecError, match="a3-highgpu-8g"):
        market(harness).shape(REGION, "a3-highgpu-8g")


@pytest.mark.parametrize("action", ["GetProducts", "ListServiceQuotas", "DescribeCapacityReservations"])
def test_what_the_account_may_not_ask_is_not_known_and_stops_nothing(
    harness: AwsCloudHarness, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness.proxy.world.denied.add(action)
    assert market(harness).offers(need())
    assert "UnauthorizedOperation" in caplog.text


def test_a_price_list_that_does_not_answer_costs_its_prices_alone_and_is_asked_once(harness: AwsCloudHarness) -> None:
    """It answers for all regions from one of them."""
    harness.proxy.world.dark_regions = {PRICING_REGION}
    west = market(harness, regions=[FAR_REGION])
    shapes = (SHAPE, "g4dn.12xlarge")
    for _ in range(2):
        harness.proxy.world.calls.clear()
        made = west.offers(need(*shapes, capacity_types=(CapacityType.ON_DEMAND,)))
        assert {each.pool.shape for each in made} == set(shapes)
        assert all(math.isnan(each.usd_per_hour) for each in made)
        assert harness.proxy.world.calls.count("GetProducts") == 5  # tries of one call


@pytest.mark.parametrize("action", ["DescribeInstanceTypeOfferings", "DescribeSpotPriceHistory"])
def test_what_offers_are_made_of_must_be_told(harness: AwsCloudHarness, action: str) -> None:
    harness.proxy.world.denied.add(action)
    with pytest.raises(CouldNotLookError):
        market(harness).offers(need())


def test_spot_pools_below_the_score_are_left_out_by_the_account_s_own_zone_names(harness: AwsCloudHarness) -> None:
    zones = {
        row["ZoneName"]: row["ZoneId"]
        for row in harness.client("ec2").describe_availability_zones()["AvailabilityZones"]
    }
    harness.proxy.world.scores = {zones["us-east-1a"]: 9, zones["us-east-1b"]: 2}
    made = market(harness, min_placement_score=5).offers(need(capacity_types=(CapacityType.SPOT,)))
    assert {each.pool.zone for each in made} == {"us-east-1a"}


def held(each: str, num_free: int, **changes: Any) -> dict[str, Any]:
    return {
        "capacityReservationId": each,
        "availabilityZone": "us-east-1a",
        "instanceType": SHAPE,
        "state": "active",
        "availableInstanceCount": num_free,
        "totalInstanceCount": num_free,
        "instanceMatchCriteria": "targeted",
        **changes,
    }


def test_the_smallest_reservation_with_room_is_rented_in(harness: AwsCloudHarness) -> None:
    pool = aws_offer(capacity_type=CapacityType.RESERVED).pool
    harness.proxy.world.reservations = [
        held("cr-big", 8),
        held("cr-small", 3),
        held("cr-elsewhere", 4, availabilityZone="us-east-1c"),
        held("cr-open", 4, instanceMatchCriteria="open"),
        held("cr-later", 4, state="scheduled"),
    ]
    assert market(harness).reservation(pool, num_nodes=2).id == "cr-small"
    assert market(harness).reservation(pool, num_nodes=5).id == "cr-big"
    assert market(harness, reservation_ids=["cr-open"]).reservation(pool, num_nodes=2).id == "cr-open"
    with pytest.raises(CapacityError, match="9 nodes"):
        market(harness).reservation(pool, num_nodes=9)


def test_reservations_are_offered_and_blocks_to_buy_only_when_asked_for(harness: AwsCloudHarness) -> None:
    world = harness.proxy.world
    world.reservations = [held("cr-1", 3)]
    world.blocks = [
        {
            "capacityBlockOfferingId": "cb-1",
            "instanceType": SHAPE,
            "availabilityZone": "us-east-1b",
            "instanceCount": 2,
            "startDate": "2026-12-01T11:30:00Z",
            "endDate": "2026-12-02T11:30:00Z",
            "upfrontFee": "480.0",
            "currencyCode": "USD",
        }
    ]
    wanted = need(capacity_types=(CapacityType.RESERVED,))
    assert [each.num_nodes for each in market(harness).offers(wanted)] == [3]
    both = market(harness, capacity_block_hours=24).offers(wanted)
    assert [(each.num_nodes, each.pool.zone) for each in both] == [(3, "us-east-1a"), (2, "us-east-1b")]
    assert both[1].usd_per_hour == pytest.approx(10.0)


def test_a_zone_s_subnet_is_the_one_named_or_its_default(harness: AwsCloudHarness) -> None:
    pool = aws_offer("us-east-1b").pool
    assert market(harness, subnets={"us-east-1b": "subnet-x"}).subnet(pool) == "subnet-x"
    (default,) = list(harness.backend.subnets["us-east-1b"].values())
    assert market(harness).subnet(pool) == default.id
    with pytest.raises(SpecError, match="us-east-1z"):
        market(harness).subnet(aws_offer("us-east-1z").pool)


# Verbs that moto lacks: both directions against botocore's model of them.

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def stubbed(service: str, region: str = REGION) -> tuple[AwsClient, Stubber]:
    client = AwsClient(session, clock=VirtualClock())
    return client, Stubber(client._client(service, region))


def test_scores_are_asked_for_one_zone_at_a_time() -> None:
    client, stubber = stubbed("ec2")
    asked = {
        "InstanceTypes": [SHAPE],
        "TargetCapacity": 4,
        "SingleAvailabilityZone": True,
        "RegionNames": [REGION],
    }
    row = {"Region": REGION, "AvailabilityZoneId": "use1-az1", "Score": 7}
    stubber.add_response("get_spot_placement_scores", {"SpotPlacementScores": [row]}, asked)
    zones = {"AvailabilityZones": [{"ZoneId": "use1-az1", "ZoneName": "us-east-1c"}]}
    stubber.add_response("describe_availability_zones", zones, {})
    made = Market(client, read_options({"regions": [REGION], "image": "ami-1", "min_placement_score": 1}))
    with stubber:
        assert made._scores(REGION, SHAPE, 4) == {"us-east-1c": 7}
        stubber.assert_no_pending_responses()


def test_blocks_are_asked_for_by_number_and_hours() -> None:
    client, stubber = stubbed("ec2")
    asked = {"InstanceType": SHAPE, "InstanceCount": 4, "CapacityDurationHours": 48}
    row = {
        "CapacityBlockOfferingId": "cb-1",
        "StartDate": NOW,
        "EndDate": NOW,
        "UpfrontFee": "1",
        "CurrencyCode": "USD",
    }
    stubber.add_response("describe_capacity_block_offerings", {"CapacityBlockOfferings": [row]}, asked)
    made = Market(client, read_options({"regions": [REGION], "image": "ami-1", "capacity_block_hours": 48}))
    with stubber:
        assert made._blocks(REGION, SHAPE, 4) == [row]


def test_the_price_list_is_asked_where_it_is_kept() -> None:
    client, stubber = stubbed("pricing", PRICING_REGION)
    stubber.add_response(
        "get_products", {"FormatVersion": "aws_v1", "PriceList": []}, {"ServiceCode": "AmazonEC2", "Filters": ANY}
    )
    made = Market(client, read_options({"regions": ["eu-west-1"], "image": "ami-1"}))
    with stubber:
        assert math.isnan(made._price("eu-west-1", SHAPE))
        stubber.assert_no_pending_responses()


def test_quotas_are_ec2_s() -> None:
    client, stubber = stubbed("service-quotas")
    row = {"QuotaName": "Running On-Demand P instances", "Value": 96.0}
    stubber.add_response("list_service_quotas", {"Quotas": [row], "NextToken": "more"}, {"ServiceCode": "ec2"})
    stubber.add_response("list_service_quotas", {"Quotas": []}, {"ServiceCode": "ec2", "NextToken": "more"})
    with stubber:
        assert client.rows(
            "list_service_quotas", "Quotas", region=REGION, service="service-quotas", ServiceCode="ec2"
        ) == [row]
