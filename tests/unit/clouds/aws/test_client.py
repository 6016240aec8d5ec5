from __future__ import annotations

from datetime import UTC, datetime, timedelta

import boto3
import botocore.session
import pytest
from botocore.credentials import RefreshableCredentials

from airflow_llmsched.clouds.aws.client import WAITS_S, AwsClient, AwsError
from airflow_llmsched.clouds.aws.states import Reaction
from airflow_llmsched.errors import CouldNotLookError
from tests.support.aws_cloud import REGION, AwsCloudHarness, session
from tests.support.cloud_faults import CloudFault


@pytest.fixture
def client(harness: AwsCloudHarness) -> AwsClient:
    return AwsClient(session, endpoint_url=harness.address, clock=harness.clock)


@pytest.mark.parametrize("fault", list(CloudFault))
def test_a_call_that_goes_wrong_is_tried_again_after_growing_waits(
    harness: AwsCloudHarness, client: AwsClient, fault: CloudFault
) -> None:
    began_at_s = harness.now_s()
    harness.plan.order(fault, num_calls=len(WAITS_S))
    assert client.call("describe_regions", region=REGION)["Regions"]
    assert harness.now_s() - began_at_s == pytest.approx(sum(WAITS_S))


def test_a_call_that_is_only_ever_throttled_was_never_carried_out(harness: AwsCloudHarness, client: AwsClient) -> None:
    harness.plan.order(CloudFault.THROTTLED, num_calls=100)
    with pytest.raises(AwsError, match="RequestLimitExceeded") as caught:
        client.call("describe_regions", region=REGION)
    assert caught.value.meant is Reaction.AGAIN
    assert harness.plan.num_calls == len(WAITS_S) + 2  # and the queue's creation


def test_one_unanswered_try_leaves_the_outcome_unknown_whatever_follows(
    harness: AwsCloudHarness, client: AwsClient
) -> None:
    harness.plan.order(CloudFault.UNANSWERED, num_calls=1)
    harness.plan.order(CloudFault.THROTTLED, num_calls=100)
    with pytest.raises(AwsError) as caught:
        client.call("describe_regions", region=REGION)
    assert caught.value.meant is Reaction.UNKNOWN


def test_an_answer_that_is_not_aws_s_is_tried_again_and_says_nothing(
    harness: AwsCloudHarness, client: AwsClient
) -> None:
    harness.proxy.world.num_garbled = 2
    assert client.call("describe_regions", region=REGION)["Regions"]
    harness.proxy.world.num_garbled = 100
    with pytest.raises(AwsError) as caught:
        client.call("describe_regions", region=REGION)
    assert caught.value.meant is Reaction.UNKNOWN


def test_what_is_refused_for_good_is_asked_once(harness: AwsCloudHarness, client: AwsClient) -> None:
    harness.proxy.world.denied.add("DescribeRegions")
    before = harness.plan.num_calls
    with pytest.raises(AwsError, match="UnauthorizedOperation") as caught:
        client.call("describe_regions", region=REGION)
    assert caught.value.meant is Reaction.FIX
    assert harness.plan.num_calls == before + 1


def test_a_body_that_the_sdk_refuses_is_never_sent(harness: AwsCloudHarness, client: AwsClient) -> None:
    before = harness.plan.num_calls
    with pytest.raises(AwsError, match="ParamValidationError") as caught:
        client.call("describe_regions", region=REGION, Regions=["x"])
    assert caught.value.meant is Reaction.FIX
    assert harness.plan.num_calls == before


def test_a_look_that_fails_is_no_empty_list(harness: AwsCloudHarness, client: AwsClient) -> None:
    harness.go_dark(is_dark=True)
    with pytest.raises(CouldNotLookError, match="describe_instances"):
        client.rows("describe_instances", "Reservations", region=REGION)


def test_a_list_is_read_to_its_last_page(harness: AwsCloudHarness, client: AwsClient) -> None:
    for _ in range(3):
        harness.client("ec2").run_instances(ImageId="ami-0123456789abcdef0", MinCount=1, MaxCount=1)
    before = harness.plan.num_calls
    assert len(client.rows("describe_instances", "Reservations", region=REGION, MaxResults=1)) == 3
    assert harness.plan.num_calls - before >= 3


def test_a_secret_is_in_no_message(harness: AwsCloudHarness, client: AwsClient) -> None:
    harness.proxy.world.denied.add("DescribeRegions")
    with pytest.raises(AwsError) as caught:
        client.call("describe_regions", region=REGION)
    assert "S3CR3T" not in repr(caught.value) + str(caught.value)


def test_credentials_that_run_out_are_renewed_by_the_session_for_a_client_that_lives_on(
    harness: AwsCloudHarness,
) -> None:
    """A run of 60 days outlives every role's session: that of an Airflow connection is made like this one."""
    issued = []

    def issue() -> dict[str, str]:
        issued.append(f"AKIA{len(issued)}")
        # So soon to end that botocore asks for new ones before each call.
        ends = datetime.now(UTC) + timedelta(seconds=30)
        return {"access_key": issued[-1], "secret_key": "s", "token": "t", "expiry_time": ends.isoformat()}

    core = botocore.session.get_session()
    core._credentials = RefreshableCredentials.create_from_metadata(
        metadata=issue(), refresh_using=issue, method="sts-assume-role"
    )
    client = AwsClient(boto3.Session(botocore_session=core), endpoint_url=harness.address, clock=harness.clock)
    for _ in range(3):
        client.call("describe_regions", region=REGION)
    assert len(issued) >= 3
    assert harness.proxy.world.access_keys[-1] == issued[-1]
    assert len(set(harness.proxy.world.access_keys[-3:])) == 3


def test_without_a_session_boto3_looks_for_credentials_itself(
    harness: AwsCloudHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    client = AwsClient(endpoint_url=harness.address, clock=harness.clock)
    assert client.call("describe_regions", region=REGION)["Regions"]
    assert harness.proxy.world.access_keys[-1] == "AKIAENVIRONMENT"


def test_without_any_credentials_it_says_so_and_waits_for_none(
    harness: AwsCloudHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = botocore.session.get_session()
    core.get_component("credential_provider").providers = []
    client = AwsClient(boto3.Session(botocore_session=core), endpoint_url=harness.address, clock=harness.clock)
    with pytest.raises(AwsError, match="NoCredentials") as caught:
        client.call("describe_regions", region=REGION)
    assert caught.value.meant is Reaction.FIX


def test_a_bug_of_ours_is_not_taken_for_an_answer_of_aws_s(client: AwsClient) -> None:
    with pytest.raises(AttributeError):
        client.call("describe_unicorns", region=REGION)
