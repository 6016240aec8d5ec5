from __future__ import annotations

import pytest

from airflow_llmsched.clouds.aws import creating
from airflow_llmsched.clouds.aws.client import AwsClient, AwsError
from airflow_llmsched.clouds.aws.creating import Answer
from airflow_llmsched.clouds.aws.render import Rental
from airflow_llmsched.clouds.aws.states import Reaction
from airflow_llmsched.effect_points import Side, listen
from airflow_llmsched.errors import AbandonedError
from airflow_llmsched.testing.cloud_contract import LEASE_S, lease_key, origin
from tests.support.aws_cloud import AwsCloudHarness, session

WINDOW_S = 60.0


@pytest.fixture
def client(harness: AwsCloudHarness) -> AwsClient:
    return AwsClient(session, endpoint_url=harness.address, clock=harness.clock)


def rental(harness: AwsCloudHarness, *, until_s: float | None = None) -> Rental:
    return harness.rental(
        harness.offer(),
        key=lease_key(),
        origin=origin(),
        num_nodes=2,
        until_s=harness.now_s() + LEASE_S if until_s is None else until_s,
    )


def create(client: AwsClient, made: Rental, *, until_s: float | None = None) -> Answer:
    until_s = client.clock.now_s() + LEASE_S if until_s is None else until_s
    return creating.create(client, made, until_s=until_s, consistency_s=WINDOW_S)


def created(harness: AwsCloudHarness) -> list[str]:
    return [action for action in harness.proxy.world.calls if action.startswith("Create") and action != "CreateQueue"]


def test_the_template_is_created_before_the_group_and_both_before_the_fleet(
    harness: AwsCloudHarness, client: AwsClient
) -> None:
    answer = create(client, rental(harness))
    assert created(harness) == ["CreateLaunchTemplate", "CreatePlacementGroup", "CreateFleet"]
    assert len(answer.instance_ids) == 2
    assert answer.errors == ()


def test_what_is_there_already_is_taken_as_it_is(harness: AwsCloudHarness, client: AwsClient) -> None:
    made = rental(harness)
    first = create(client, made)
    billed = harness.billed()
    assert set(create(client, made).instance_ids) == set(first.instance_ids)
    assert harness.billed() == billed


def test_nothing_billed_is_created_for_a_time_that_passes_in_between(
    harness: AwsCloudHarness, client: AwsClient
) -> None:
    def dawdle(point: str, side: Side) -> None:
        if (point, side) == ("aws.template.create", Side.AFTER):
            harness.advance(LEASE_S)

    listen(dawdle)
    try:
        with pytest.raises(AbandonedError, match="to end before it began"):
            create(client, rental(harness), until_s=harness.now_s() + LEASE_S)
    finally:
        listen(None)
    assert harness.billed() == frozenset()
    assert "CreateFleet" not in created(harness)


def test_a_template_that_a_release_deletes_in_between_stops_the_fleet(
    harness: AwsCloudHarness, client: AwsClient
) -> None:
    """The late duplicate: whoever was still about to rent finds its template gone."""

    def release(point: str, side: Side) -> None:
        if (point, side) == ("aws.placement_group.create", Side.AFTER):
            listen(None)
            harness.reopen().release(harness.cloud.lease_id(harness.offer().pool, lease_key()))

    listen(release)
    try:
        with pytest.raises(AwsError) as caught:
            create(client, rental(harness))
    finally:
        listen(None)
    assert caught.value.meant is Reaction.GONE
    assert harness.billed() == frozenset()


def test_an_answer_says_its_errors_once_each() -> None:
    row = {"ErrorCode": "UnfulfillableCapacity", "ErrorMessage": "none there"}
    answer = Answer(instance_ids=(), errors=(row, row))
    assert answer.codes == ["UnfulfillableCapacity"] * 2
    assert answer.said == "UnfulfillableCapacity: none there"
    assert Answer(instance_ids=(), errors=()).said == "EC2 gave no reason"


def test_a_fleet_waits_until_its_group_can_be_launched_into(harness: AwsCloudHarness, client: AwsClient) -> None:
    create(client, rental(harness))
    calls = harness.proxy.world.calls
    assert "DescribePlacementGroups" in calls[calls.index("CreatePlacementGroup") : calls.index("CreateFleet")]
