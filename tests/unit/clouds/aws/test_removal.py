from __future__ import annotations

import pytest

from airflow_llmsched.clouds.aws import removal
from airflow_llmsched.domain.lease import Lease, LeaseId, LeaseState
from airflow_llmsched.effect_points import Side, listen
from airflow_llmsched.errors import CouldNotLookError, LeftoverError
from airflow_llmsched.testing.cloud_contract import LEASE_S, RUN, lease_key, origin
from tests.support.aws_cloud import REGION, AwsCloudHarness
from tests.support.cloud_faults import CallKind, CloudFault


def rented(harness: AwsCloudHarness, *, is_spot: bool = False, num_nodes: int = 2) -> Lease:
    offer = harness.spot_offer() if is_spot else harness.offer()
    return harness.cloud.acquire(
        offer, key=lease_key(), origin=origin(), num_nodes=num_nodes, until_s=harness.now_s() + LEASE_S
    )


def removed(harness: AwsCloudHarness) -> list[str]:
    return [action for action in harness.proxy.world.calls if action.startswith(("Delete", "Terminate", "Cancel"))]


def test_the_template_goes_first_and_the_group_last(harness: AwsCloudHarness) -> None:
    lease = rented(harness, is_spot=True)
    harness.cloud.release(lease.id)
    assert removed(harness) == [
        "DeleteLaunchTemplate",
        "CancelSpotInstanceRequests",
        "TerminateInstances",
        "DeletePlacementGroup",
    ]
    assert harness.billed() == frozenset()
    assert harness.proxy.world.groups == {}
    assert harness.backend.launch_templates == {}


def test_spot_requests_are_cancelled_with_their_instances(harness: AwsCloudHarness) -> None:
    lease = rented(harness, is_spot=True)
    assert any(each.startswith("sir-") for each in harness.billed())
    harness.cloud.release(lease.id)
    assert harness.billed() == frozenset()


def test_nothing_is_called_for_a_lease_that_never_was_but_its_name_and_looks(harness: AwsCloudHarness) -> None:
    """Field case E18: no call with an empty list."""
    harness.cloud.release(harness.cloud.lease_id(harness.offer().pool, lease_key(5)))
    assert removed(harness) == ["DeleteLaunchTemplate"]


def test_disks_and_interfaces_that_a_machine_left_behind_go_too(harness: AwsCloudHarness) -> None:
    """Field case E15."""
    lease = rented(harness)
    volume = harness.backend.create_volume(size=100, zone_name="us-east-1a", snapshot_id=None)
    subnet = next(iter(harness.backend.subnets["us-east-1a"].values()))
    interface = harness.backend.create_network_interface(subnet, private_ip_address=None)
    instance = harness.backend.get_instance(str(lease.nodes[0].id))
    for each in (volume, interface):
        harness.backend.create_tags([each.id], {tag["key"]: tag["value"] for tag in instance.get_tags()})
    (found,) = harness.cloud.find(RUN)
    assert set(found.leftovers) == {volume.id, interface.id}
    harness.cloud.release(lease.id)
    assert harness.billed() == frozenset()
    assert interface.id not in harness.backend.enis
    assert list(harness.cloud.find(RUN)) == []


def test_a_release_waits_for_nodes_that_are_not_listed_yet(harness: AwsCloudHarness) -> None:
    harness.hide_new()
    lease = rented(harness)
    assert harness.billed()
    harness.reopen().release(lease.id)
    assert harness.billed() == frozenset()


def test_a_release_waits_for_a_fleet_that_was_created_long_after_its_template(harness: AwsCloudHarness) -> None:
    harness.hide_new()

    def dawdle(point: str, side: Side) -> None:
        if (point, side) == ("aws.fleet.create", Side.BEFORE):
            harness.advance(harness.cloud.consistency_s + 100.0)

    listen(dawdle)
    try:
        lease = rented(harness)
    finally:
        listen(None)
    harness.advance(5.0)
    assert harness.reopen().leases([lease.id])[lease.id].state is LeaseState.PENDING
    harness.reopen().release(lease.id)
    assert harness.billed() == frozenset()


def test_a_release_after_a_lost_answer_finds_what_was_rented_unseen(harness: AwsCloudHarness) -> None:
    harness.hide_new()
    harness.plan.order(CloudFault.UNANSWERED, num_calls=10, kinds=frozenset({CallKind.CREATE}))
    with pytest.raises(CouldNotLookError):
        rented(harness)
    assert harness.billed()
    harness.reopen().release(harness.cloud.lease_id(harness.offer().pool, lease_key()))
    assert harness.billed() == frozenset()


def test_nodes_of_a_partial_fleet_that_are_not_listed_yet_are_ended_once_they_are(harness: AwsCloudHarness) -> None:
    """Field case E1 while lists lag: EC2 answers that the ids it has just given do not exist."""
    harness.hide_new()
    harness.run_short(harness.offer(), num_nodes=1)
    with pytest.raises(Exception, match="1 of 2 nodes"):
        rented(harness)
    assert harness.billed() == frozenset()


def test_a_known_instance_that_never_gets_listed_is_named(harness: AwsCloudHarness) -> None:
    lease = rented(harness)
    with pytest.raises(LeftoverError, match="i-00000000000000000") as caught:
        removal.remove(
            harness.cloud._client,
            harness.cloud._listed,
            region=REGION,
            key_name=lease.key.name,
            consistency_s=60.0,
            came=["i-00000000000000000"],
            is_whole=True,
        )
    assert caught.value.ids == ("i-00000000000000000",)
    assert harness.billed() == frozenset()


def test_a_template_that_can_not_be_deleted_does_not_keep_the_machines(harness: AwsCloudHarness) -> None:
    lease = rented(harness)
    harness.proxy.world.denied.add("DeleteLaunchTemplate")
    with pytest.raises(LeftoverError, match="UnauthorizedOperation") as caught:
        harness.cloud.release(lease.id)
    assert caught.value.ids == (f"llmsched-{lease.key.name}",)
    assert harness.billed() == frozenset()


def test_a_group_that_stays_in_use_is_left_to_the_next_release_and_found(
    harness: AwsCloudHarness, caplog: pytest.LogCaptureFixture
) -> None:
    lease = rented(harness)
    harness.proxy.world.groups_held = True
    harness.cloud.release(lease.id)
    assert "InUse" in caplog.text
    assert [found.id for found in harness.cloud.find(RUN)] == [lease.id]
    harness.proxy.world.groups_held = False
    harness.cloud.release(lease.id)
    assert list(harness.cloud.find(RUN)) == []


def test_a_group_waits_until_its_instances_have_ended(harness: AwsCloudHarness) -> None:
    lease = rented(harness)
    harness.proxy.world.groups_held = True

    def let_go(point: str, side: Side) -> None:
        if (point, side) == ("aws.placement_group.delete", Side.BEFORE) and removed(harness).count(
            "DeletePlacementGroup"
        ) == 3:
            harness.proxy.world.groups_held = False

    listen(let_go)
    try:
        harness.cloud.release(lease.id)
    finally:
        listen(None)
    assert harness.proxy.world.groups == {}


def test_what_has_gone_by_itself_meanwhile_is_no_leftover(harness: AwsCloudHarness) -> None:
    lease = rented(harness)

    def die_alone(point: str, side: Side) -> None:
        if (point, side) == ("aws.instances.terminate", Side.BEFORE):
            harness.plan.order(CloudFault.FAILED, num_calls=5, kinds=frozenset({CallKind.REMOVE}))
            for node in lease.nodes:
                harness.proxy.preempt(REGION, str(node.id))

    listen(die_alone)
    try:
        harness.cloud.release(LeaseId(lease.id))
    finally:
        listen(None)
    assert harness.billed() == frozenset()
