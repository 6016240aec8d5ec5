"""What only EC2 does; what every cloud must do is proved by the contract."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

from airflow_llmsched.clouds.aws.cloud import MAX_FILTER_VALUES, AwsCloud
from airflow_llmsched.clouds.aws.options import AwsOptions
from airflow_llmsched.domain.lease import Lease, LeasedNodeState, LeaseState, NoticeKind
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.effect_points import Side, listen
from airflow_llmsched.errors import (
    AbandonedError,
    CapacityError,
    CouldNotLookError,
    InternalError,
    QuotaError,
    SpecError,
    TransientError,
)
from airflow_llmsched.testing.cloud_contract import LEASE_S, RUN, lease_key, origin
from tests.support.aws_cloud import REGION, SHAPE, AwsCloudHarness, aws_offer
from tests.support.cloud_faults import CallKind, CloudFault
from tests.support.source import ROOT


def acquire(harness: AwsCloudHarness, *, cloud: AwsCloud | None = None, rental: int = 1, **changes: Any) -> Lease:
    fields: dict[str, Any] = {
        "offer": harness.offer(),
        "key": lease_key(rental),
        "origin": origin(),
        "num_nodes": 2,
        "until_s": harness.now_s() + LEASE_S,
    }
    fields.update(changes)
    return (cloud or harness.cloud).acquire(fields.pop("offer"), **fields)


def calls(harness: AwsCloudHarness, prefix: str) -> list[str]:
    return [action for action in harness.proxy.world.calls if action.startswith(prefix)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", CapacityError),
        ("UnfulfillableCapacity", CapacityError),
        ("SpotMaxPriceTooLow", CapacityError),
        ("MaxSpotInstanceCountExceeded", QuotaError),
        ("VcpuLimitExceeded", QuotaError),
        ("InvalidParameterValue", SpecError),
        ("UnauthorizedOperation", SpecError),
        ("IdempotentParameterMismatch", CouldNotLookError),
        ("RequestExpired", TransientError),
        ("MoonPhaseUnfavourable", InternalError),
    ],
)
def test_a_refusal_of_the_whole_fleet_leaves_no_name_behind_where_it_is_known(
    harness: AwsCloudHarness, code: str, kind: type[Exception]
) -> None:
    harness.proxy.world.refuse_fleet_with = code
    with pytest.raises(kind) as caught:
        acquire(harness)
    assert type(caught.value) is kind
    assert code in str(caught.value)
    if kind is not CouldNotLookError:
        assert list(harness.reopen().find(RUN)) == []
        assert harness.proxy.world.groups == {}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", CapacityError),
        ("InternalError", CapacityError),
        ("RequestLimitExceeded", CapacityError),
        ("MaxSpotInstanceCountExceeded", QuotaError),
        ("InvalidParameterValue", SpecError),
        ("MoonPhaseUnfavourable", InternalError),
    ],
)
def test_what_an_error_list_says_is_raised_once_what_came_is_removed(
    harness: AwsCloudHarness, code: str, kind: type[Exception]
) -> None:
    """Field case E1: ids and an error in one answer."""
    harness.run_short(harness.offer(), num_nodes=1)
    harness.proxy.world.shortage = code
    with pytest.raises(kind, match=f"1 of 2 nodes.*{code}"):
        acquire(harness)
    assert harness.billed() == frozenset()
    assert list(harness.reopen().find(RUN)) == []


def test_a_request_that_is_only_throttled_takes_its_own_names_away_and_no_one_else_s(harness: AwsCloudHarness) -> None:
    harness.plan.order(CloudFault.THROTTLED, num_calls=1000, kinds=frozenset({CallKind.CREATE}))
    with pytest.raises(TransientError, match="nothing was rented"):
        acquire(harness)
    assert list(harness.cloud.find(RUN)) == []

    def die(point: str, side: Side) -> None:
        if (point, side) == ("aws.fleet.create", Side.BEFORE):
            raise KeyboardInterrupt

    listen(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            acquire(harness, rental=2)
    finally:
        listen(None)
    with pytest.raises(TransientError, match="nothing was rented"):
        acquire(harness, rental=2, cloud=harness.reopen())
    assert [lease.key for lease in harness.cloud.find(RUN)] == [lease_key(2)]
    harness.throttle(num_calls=0)
    harness.plan.order(CloudFault.THROTTLED, num_calls=0, kinds=frozenset({CallKind.CREATE}))
    assert len(acquire(harness, rental=2).nodes) == 2


def test_names_that_can_not_be_removed_hide_no_refusal(
    harness: AwsCloudHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.proxy.world.refuse_fleet_with = "UnfulfillableCapacity"
    harness.proxy.world.denied.add("DeleteLaunchTemplate")
    with pytest.raises(CapacityError):
        acquire(harness)
    assert "names of lease" in caplog.text
    assert [lease.key for lease in harness.cloud.find(RUN)] == [lease_key()]


def test_a_permission_that_is_missing_stops_before_anything_is_billed(harness: AwsCloudHarness) -> None:
    harness.proxy.world.denied.add("CreatePlacementGroup")
    with pytest.raises(SpecError, match="create_placement_group"):
        acquire(harness)
    assert harness.billed() == frozenset()
    assert list(harness.cloud.find(RUN)) == []


@pytest.mark.parametrize("zone", ["us-east-1a", "us-east-1c"])
def test_nodes_stand_in_the_zone_of_the_offer(harness: AwsCloudHarness, zone: str) -> None:
    lease = acquire(harness, offer=aws_offer(zone))
    for node in lease.nodes:
        assert harness.backend.get_instance(str(node.id)).placement.zone == zone


def test_a_region_that_is_not_among_the_options_is_refused_before_any_call(harness: AwsCloudHarness) -> None:
    before = harness.plan.num_calls
    with pytest.raises(SpecError, match="rent in us-east-1"):
        acquire(harness, offer=aws_offer("eu-west-1a"))
    with pytest.raises(SpecError, match="num_nodes"):
        acquire(harness, num_nodes=0)
    assert harness.plan.num_calls == before


def test_a_lease_that_was_released_is_never_rented_again(harness: AwsCloudHarness) -> None:
    lease = acquire(harness)
    harness.cloud.release(lease.id)
    with pytest.raises(AbandonedError, match="was released"):
        acquire(harness, cloud=harness.reopen())
    assert harness.billed() == frozenset()


def test_a_release_between_the_template_and_the_fleet_wins(harness: AwsCloudHarness) -> None:
    """The late duplicate, from both sides: the one that rents is told, and nothing is left of either."""

    def release(point: str, side: Side) -> None:
        if (point, side) == ("aws.fleet.create", Side.BEFORE):
            listen(None)
            harness.reopen().release(harness.cloud.lease_id(harness.offer().pool, lease_key()))

    listen(release)
    try:
        with pytest.raises(AbandonedError, match="released while it was being rented"):
            acquire(harness)
    finally:
        listen(None)
    assert harness.billed() == frozenset()
    assert list(harness.cloud.find(RUN)) == []


def test_two_processes_that_rent_at_once_rent_the_same(harness: AwsCloudHarness) -> None:
    until_s, found = harness.now_s() + LEASE_S, []

    def rent() -> None:
        found.append(acquire(harness, cloud=harness.reopen(), until_s=until_s))

    threads = [threading.Thread(target=rent) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(timeout=60)
    assert len({tuple(node.id for node in lease.nodes) for lease in found}) == 1
    assert len(found) == 4
    assert len([each for each in harness.billed() if each.startswith("i-")]) == 2


def test_what_an_earlier_process_began_is_completed_and_holds_as_long_as_is_asked_now(harness: AwsCloudHarness) -> None:
    def die(point: str, side: Side) -> None:
        if (point, side) == ("aws.fleet.create", Side.BEFORE):
            raise KeyboardInterrupt

    listen(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            acquire(harness)
    finally:
        listen(None)
    harness.advance(LEASE_S / 2)
    assert harness.reopen().find(RUN)[0].state is LeaseState.BROKEN
    harness.hide_new()
    until_s = harness.now_s() + LEASE_S
    lease = acquire(harness, cloud=harness.reopen(), until_s=until_s)
    (found,) = harness.reopen().find(RUN)
    assert (found.state, found.nodes) == (LeaseState.PENDING, ())
    harness.advance(harness.cloud.consistency_s)
    (found,) = harness.reopen().find(RUN)
    assert found.state is LeaseState.ACTIVE
    assert found.expires_at_s == pytest.approx(until_s, abs=1.0)
    assert {node.id for node in found.nodes} == {node.id for node in lease.nodes}


def test_a_broken_lease_is_returned_as_it_is_when_it_is_asked_for_again(harness: AwsCloudHarness) -> None:
    lease = acquire(harness, offer=harness.spot_offer())
    harness.preempt(lease.nodes[0].id)
    again = acquire(harness, offer=harness.spot_offer(), cloud=harness.reopen())
    assert again.state is LeaseState.BROKEN
    assert [node.state for node in again.gone] == [LeasedNodeState.PREEMPTED]
    assert len(calls(harness, "CreateFleet")) == 1


def test_an_instance_that_somebody_ended_by_hand_is_lost_and_not_preempted(harness: AwsCloudHarness) -> None:
    lease = acquire(harness)
    harness.client("ec2").terminate_instances(InstanceIds=[str(lease.nodes[0].id)])
    looked = harness.cloud.leases([lease.id])[lease.id]
    assert looked.state is LeaseState.BROKEN
    assert [node.state for node in looked.gone] == [LeasedNodeState.LOST]


def test_a_reservation_is_rented_in_by_its_id(harness: AwsCloudHarness) -> None:
    harness.proxy.world.reservations = [
        {
            "capacityReservationId": "cr-1",
            "availabilityZone": "us-east-1a",
            "instanceType": SHAPE,
            "state": "active",
            "availableInstanceCount": 4,
            "totalInstanceCount": 4,
            "reservationType": "capacity-block",
            "endDate": "2026-12-02T11:30:00Z",
        }
    ]
    offer = aws_offer(capacity_type=CapacityType.RESERVED)
    lease = acquire(harness, offer=offer)
    (form,) = [form for action, form in harness.proxy.world.bodies if action == "CreateFleet"]
    assert form["TargetCapacitySpecification.DefaultTargetCapacityType"] == "capacity-block"
    (found,) = harness.cloud.find(RUN)
    assert (found.id, found.pool, found.interrupted_at_s) == (lease.id, offer.pool, None)
    assert harness.proxy.world.groups == {}
    taken_at_s = datetime(2026, 12, 2, 11, tzinfo=UTC).timestamp()
    harness.advance(taken_at_s - 300.0 - harness.now_s())
    assert harness.cloud.leases([lease.id])[lease.id].interrupted_at_s == taken_at_s
    with pytest.raises(CapacityError, match="no reservation"):
        acquire(harness, rental=2, offer=offer, num_nodes=5)


def test_many_leases_are_looked_at_by_as_many_calls_as_one(harness: AwsCloudHarness) -> None:
    ids = [acquire(harness, rental=rental, num_nodes=1).id for rental in range(1, 6)]
    cloud = harness.reopen()
    cloud.leases(ids[:1])
    before = harness.plan.num_calls
    cloud.leases(ids[:1])
    for_one = harness.plan.num_calls - before
    assert len(cloud.leases(ids)) == 5
    assert harness.plan.num_calls - before == 2 * for_one
    assert for_one <= 5


def test_more_leases_than_a_filter_takes_are_looked_at_in_parts(harness: AwsCloudHarness) -> None:
    lease = acquire(harness)
    unknown = [harness.cloud.lease_id(lease.pool, lease_key(number)) for number in range(2, MAX_FILTER_VALUES + 5)]
    assert set(harness.cloud.leases([*unknown, lease.id])) == {lease.id}


def test_scheduled_events_are_notices(harness: AwsCloudHarness) -> None:
    lease = acquire(harness)
    one, two = (str(node.id) for node in lease.nodes)
    harness.proxy.world.scheduled = {
        one: ("system-reboot", "2026-12-01T00:00:00Z", "scheduled reboot"),
        two: ("instance-retirement", "2026-12-02T00:00:00Z", "degraded hardware"),
    }
    looked = harness.cloud.leases([lease.id])[lease.id]
    kinds = {node.id: node.notice and node.notice.kind for node in looked.nodes}
    assert kinds == {one: NoticeKind.MAINTENANCE, two: NoticeKind.INTERRUPTION}
    assert looked.state is LeaseState.ACTIVE


def test_topology_is_ec2_s_own_or_stops_at_the_zone(harness: AwsCloudHarness) -> None:
    lease = acquire(harness)
    one, two = (str(node.id) for node in lease.nodes)
    harness.proxy.world.network_nodes = {one: ["nn-a", "nn-b", "nn-c"], two: ["nn-a", "nn-b", "nn-d"]}
    tree = harness.cloud.topology(lease)
    assert tree.levels[2:] == ("network-1", "network-2", "network-3")
    assert {node.path[-1] for node in tree.nodes} == {"nn-c", "nn-d"}
    assert {node.num_slots for node in tree.nodes} == {8}
    harness.proxy.world.network_nodes[two] = []
    assert harness.cloud.topology(lease).levels == ("region", "zone")


def test_a_lease_that_is_not_listed_yet_is_not_gone(harness: AwsCloudHarness) -> None:
    harness.hide_new()
    lease = acquire(harness)
    with pytest.raises(CouldNotLookError, match="not listed yet"):
        harness.cloud.renew(lease, until_s=harness.now_s() + 2 * LEASE_S)


def test_a_renewal_that_fails_is_said_and_changes_nothing(harness: AwsCloudHarness) -> None:
    lease = acquire(harness)
    harness.plan.order(CloudFault.FAILED, num_calls=10, kinds=frozenset({CallKind.CHANGE}))
    with pytest.raises(CouldNotLookError, match="may not have been renewed"):
        harness.cloud.renew(lease, until_s=harness.now_s() + 2 * LEASE_S)
    (found,) = harness.reopen().find(RUN)
    assert found.expires_at_s == pytest.approx(harness.now_s() + LEASE_S, abs=30.0)


def test_a_renewal_to_an_earlier_time_calls_for_no_change(harness: AwsCloudHarness) -> None:
    lease = acquire(harness)
    harness.cloud.renew(lease, until_s=harness.now_s() + 60.0)
    assert calls(harness, "CreateTags") == []


def test_leases_of_other_regions_are_found_too(harness: AwsCloudHarness) -> None:
    both = AwsCloudHarness(regions=[REGION, "eu-west-1"])
    here = acquire(both)
    there = acquire(both, rental=2, offer=aws_offer("eu-west-1a"))
    assert {lease.id for lease in both.cloud.find_all()} == {here.id, there.id}
    assert set(both.cloud.leases([here.id, there.id])) == {here.id, there.id}
    both.cloud.release(there.id)
    assert [lease.id for lease in both.cloud.find_all()] == [here.id]


def test_an_id_of_something_else_is_refused(harness: AwsCloudHarness) -> None:
    with pytest.raises(InternalError, match="not the name of a lease key"):
        harness.cloud.leases(["us-east-1/web"])


def test_everything_that_is_billed_carries_the_run_from_the_creating_call_on(harness: AwsCloudHarness) -> None:
    lease = acquire(harness, offer=harness.spot_offer())
    (form,) = [form for action, form in harness.proxy.world.bodies if action == "CreateLaunchTemplate"]
    kinds = {value for key, value in form.items() if key.endswith("ResourceType")}
    assert kinds == {"launch-template", "instance", "volume", "network-interface", "spot-instances-request"}
    assert calls(harness, "CreateTags") == []
    for each in (
        *(str(node.id) for node in lease.nodes),
        *harness.backend.spot_instance_requests,
        *harness.backend.volumes,
    ):
        tags = {
            tag["key"]: tag["value"] for tag in harness.backend.describe_tags(filters={"resource-id": [each]}) or []
        }
        assert tags.get("llmsched:run") == RUN, each


def test_the_policy_in_the_docs_allows_exactly_what_is_called() -> None:
    page = (ROOT / "docs" / "howto" / "rent-on-aws.md").read_text()
    (policy,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    allowed: set[str] = set()
    for statement in json.loads(policy)["Statement"]:
        actions = statement["Action"]
        allowed.update([actions] if isinstance(actions, str) else actions)
    source = "".join(path.read_text() for path in (ROOT / "airflow_llmsched" / "clouds" / "aws").glob("*.py"))
    quoted = set(re.findall(r'"([a-z]+(?:_[a-z]+)+)"', source))
    called: set[str] = set()
    for service, prefix in (
        ("ec2", "ec2"),
        ("pricing", "pricing"),
        ("service-quotas", "servicequotas"),
        ("sqs", "sqs"),
    ):
        names = botocore.session.get_session().get_service_model(service).operation_names
        called.update(f"{prefix}:{name}" for name in names if xform_name(name) in quoted)
    # One permission is for one message and for many; a fleet's instances are run, and roles are passed, by EC2 for us.
    called = called - {"sqs:DeleteMessageBatch"} | {"sqs:DeleteMessage", "ec2:RunInstances", "iam:PassRole"}
    assert allowed == called


def test_every_option_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "howto" / "rent-on-aws.md").read_text()
    assert [each.name for each in fields(AwsOptions) if f"`{each.name}`" not in page] == []
