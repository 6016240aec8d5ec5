from __future__ import annotations

import json

import pytest

from airflow_llmsched.clouds.aws import events, tags
from airflow_llmsched.clouds.aws.client import AwsClient
from airflow_llmsched.clouds.aws.options import AwsOptions, read_options
from airflow_llmsched.domain.lease import Lease, NoticeKind
from airflow_llmsched.effect_points import Side, listen
from airflow_llmsched.testing.cloud_contract import LEASE_S, lease_key, origin
from tests.support.aws_cloud import FAR_REGION, REGION, AwsCloudHarness, session
from tests.support.cloud_faults import CallKind, CloudFault

WARNING = "EC2 Spot Instance Interruption Warning"
HINT = "EC2 Instance Rebalance Recommendation"


@pytest.fixture
def client(harness: AwsCloudHarness) -> AwsClient:
    return AwsClient(session, endpoint_url=harness.address, clock=harness.clock)


def options(harness: AwsCloudHarness, **changes: str) -> AwsOptions:
    given = {"regions": [REGION], "image": "ami-1", "notice_queue_url": harness.queue_url, **changes}
    return read_options(given)


def rented(harness: AwsCloudHarness) -> Lease:
    return harness.cloud.acquire(
        harness.spot_offer(), key=lease_key(), origin=origin(), num_nodes=2, until_s=harness.now_s() + LEASE_S
    )


def num_waiting(harness: AwsCloudHarness) -> int:
    said = harness.sqs.get_queue_attributes(
        QueueUrl=harness.queue_url,
        AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
    )
    return sum(int(each) for each in said["Attributes"].values())


def tags_of(harness: AwsCloudHarness, lease: Lease) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in harness.backend.get_instance(str(lease.nodes[0].id)).get_tags()}


def test_what_is_announced_is_kept_where_every_process_sees_it(harness: AwsCloudHarness, client: AwsClient) -> None:
    lease = rented(harness)
    harness.announce(str(lease.nodes[0].id), WARNING, harness.now_s())
    harness.announce(str(lease.nodes[0].id), HINT, harness.now_s())
    events.keep(client, options(harness))
    assert num_waiting(harness) == 0
    assert {tags.INTERRUPTION, tags.REBALANCE} <= tags_of(harness, lease).keys()
    for cloud in (harness.reopen(), harness.reopen()):
        notices = [node.notice for node in cloud.leases([lease.id])[lease.id].nodes]
        assert [notice.kind for notice in notices if notice] == [NoticeKind.INTERRUPTION]


def test_a_process_that_dies_before_it_has_written_the_tag_leaves_the_message(
    harness: AwsCloudHarness, client: AwsClient
) -> None:
    lease = rented(harness)
    harness.announce(str(lease.nodes[0].id), WARNING, harness.now_s())

    def die(point: str, side: Side) -> None:
        if (point, side) == ("aws.notice.tag", Side.BEFORE):
            raise KeyboardInterrupt

    listen(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            events.keep(client, options(harness))
    finally:
        listen(None)
    assert num_waiting(harness) == 1


def test_a_tag_that_could_not_be_written_leaves_the_message_and_ends_no_look(
    harness: AwsCloudHarness, client: AwsClient, caplog: pytest.LogCaptureFixture
) -> None:
    lease = rented(harness)
    harness.announce(str(lease.nodes[0].id), WARNING, harness.now_s())
    harness.plan.order(CloudFault.FAILED, num_calls=10, kinds=frozenset({CallKind.CHANGE}))
    events.keep(client, options(harness))
    assert "InternalError" in caplog.text
    assert num_waiting(harness) == 1


def test_what_is_not_of_ours_is_passed_over_once_it_would_be_listed(
    harness: AwsCloudHarness, client: AwsClient
) -> None:
    harness.announce("i-00000000000000000", WARNING, harness.now_s())
    events.keep(client, options(harness))
    assert num_waiting(harness) == 1
    harness.announce("i-00000000000000001", WARNING, harness.now_s() - 3600.0)
    harness.announce("i-00000000000000002", "EC2 Instance State-change Notification", harness.now_s())
    harness.sqs.send_message(QueueUrl=harness.queue_url, MessageBody="nonsense")
    events.keep(client, options(harness))
    assert num_waiting(harness) == 1


def test_many_announcements_are_read_in_one_go(harness: AwsCloudHarness, client: AwsClient) -> None:
    lease = rented(harness)
    for _ in range(25):
        harness.announce(str(lease.nodes[1].id), HINT, harness.now_s())
    events.keep(client, options(harness))
    assert num_waiting(harness) == 0


def test_a_queue_that_can_not_be_read_is_said_and_ends_no_look(
    harness: AwsCloudHarness, caplog: pytest.LogCaptureFixture
) -> None:
    lease = rented(harness)
    harness.proxy.world.denied.add("ReceiveMessage")
    assert lease.id in harness.cloud.leases([lease.id])
    assert "UnauthorizedOperation" in caplog.text


def test_a_region_that_does_not_answer_keeps_no_announcement_of_another(
    harness: AwsCloudHarness, client: AwsClient
) -> None:
    lease = rented(harness)
    for region in (FAR_REGION, REGION):
        event = json.loads(harness.event(str(lease.nodes[0].id), WARNING, harness.now_s())) | {"region": region}
        harness.sqs.send_message(QueueUrl=harness.queue_url, MessageBody=json.dumps(event))
    harness.proxy.world.dark_regions = {FAR_REGION}
    events.keep(client, options(harness))
    assert tags.INTERRUPTION in tags_of(harness, lease)
    assert num_waiting(harness) == 1  # and comes again


def test_without_a_queue_nothing_is_asked(harness: AwsCloudHarness, client: AwsClient) -> None:
    before = harness.plan.num_calls
    events.keep(client, options(harness, notice_queue_url=""))
    assert harness.plan.num_calls == before


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/notices", "eu-central-1"),
        ("https://sqs.us-gov-west-1.amazonaws.com/1/q", "us-gov-west-1"),
        ("https://eu-west-1.queue.amazonaws.com/1/q", "eu-west-1"),
        ("http://127.0.0.1:4566/1/q", "us-east-1"),
    ],
)
def test_a_queue_is_asked_in_its_own_region(url: str, region: str) -> None:
    assert events.queue_region(url, default="us-east-1") == region
