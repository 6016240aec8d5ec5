from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_llmsched.clouds.aws import seen, tags
from airflow_llmsched.clouds.aws.seen import Rows, Seen
from airflow_llmsched.clouds.aws.tags import LeaseTags
from airflow_llmsched.domain.lease import LeasedNodeState, LeaseState, NoticeKind
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.testing.cloud_contract import lease_key, origin
from tests.support.aws_cloud import aws_offer

NOW_S = 10_000.0
WINDOW_S = 60.0


def tagged(
    *, rental: int = 1, created_at_s: float = 0.0, expires_at_s: float = 20_000.0, **extra: str
) -> dict[str, Any]:
    said = LeaseTags(
        key=lease_key(rental),
        origin=origin(),
        pool=aws_offer(capacity_type=CapacityType.SPOT).pool,
        num_nodes=2,
        created_at_s=created_at_s,
        expires_at_s=expires_at_s,
    )
    return {"Tags": tags.pairs({**tags.write(said), **extra})}


def instance(each: str, state: str = "running", *, reason: str = "", **tag: Any) -> dict[str, Any]:
    words = {"InstanceId": each, "State": {"Name": state}, "StateReason": {"Code": reason}}
    return {**words, "PrivateIpAddress": f"10.0.0.{each[-1]}", **tagged(**tag)}


def template(**tag: Any) -> dict[str, Any]:
    return {"LaunchTemplateName": "llmsched-x", "LaunchTemplateId": "lt-1", **tagged(**tag)}


def only(**rows: Any) -> Seen:
    (found,) = seen.leases(Rows(**rows), region="us-east-1", now_s=NOW_S, consistency_s=WINDOW_S).values()
    return found


def test_a_lease_with_all_its_nodes_running_is_active() -> None:
    found = only(instances=[instance("i-2"), instance("i-1")], templates=[template()])
    assert found.lease.state is LeaseState.ACTIVE
    assert [(node.id, node.address) for node in found.lease.nodes] == [("i-1", "10.0.0.1"), ("i-2", "10.0.0.2")]
    assert (found.lease.key, found.lease.origin, found.lease.num_nodes) == (lease_key(), origin(), 2)
    assert found.lease.id == "us-east-1/ls-aaaaaaaaaaaaaaaaaaaa-g1-r1"
    assert found.lease.pool == aws_offer(capacity_type=CapacityType.SPOT).pool
    assert found.instance_ids == ("i-1", "i-2")
    assert found.named_ids == ("lt-1",)


@pytest.mark.parametrize(
    ("instances", "created_at_s", "expected"),
    [
        ([instance("i-1"), instance("i-2", "pending")], 0.0, LeaseState.PENDING),
        ([instance("i-1")], 0.0, LeaseState.BROKEN),
        ([], 0.0, LeaseState.BROKEN),
        ([], NOW_S - WINDOW_S / 2, LeaseState.PENDING),
        ([instance("i-1"), instance("i-2", "terminated")], 0.0, LeaseState.BROKEN),
        ([instance("i-1"), instance("i-2", "stopped")], 0.0, LeaseState.BROKEN),
        ([instance("i-1", "terminated"), instance("i-2", "terminated")], 0.0, LeaseState.BROKEN),
    ],
)
def test_nodes_that_are_not_listed_yet_are_told_from_those_that_never_came(
    instances: list[dict[str, Any]], created_at_s: float, expected: LeaseState
) -> None:
    found = only(instances=instances, templates=[template(created_at_s=created_at_s)])
    assert found.lease.state is expected
    assert found.lease.reason


def test_a_lease_of_which_only_ended_instances_are_listed_has_ended() -> None:
    found = only(instances=[instance("i-1", "terminated"), instance("i-2", "shutting-down")])
    assert found.lease.state is LeaseState.ENDED
    assert not found.is_left
    assert found.instance_ids == ()


def test_a_stopped_instance_still_costs_money() -> None:
    assert only(instances=[instance("i-1", "stopped")]).instance_ids == ("i-1",)


def test_nodes_that_were_taken_are_told_from_lost_ones_by_their_spot_request_too() -> None:
    request = {
        "SpotInstanceRequestId": "sir-1",
        "InstanceId": "i-1",
        "State": "closed",
        "Status": {"Code": "instance-terminated-no-capacity"},
        **tagged(),
    }
    found = only(
        instances=[instance("i-1", "terminated"), instance("i-2", "terminated", reason="Server.InternalError")],
        requests=[request],
        templates=[template()],
    )
    assert {node.id: node.state for node in found.lease.nodes} == {
        "i-1": LeasedNodeState.PREEMPTED,
        "i-2": LeasedNodeState.LOST,
    }
    assert found.request_ids == ()
    assert "i-1 preempted" in found.lease.reason


def test_a_request_that_may_still_be_met_costs_money_and_is_a_leftover() -> None:
    request = {"SpotInstanceRequestId": "sir-1", "State": "open", "Status": {"Code": "pending-fulfillment"}, **tagged()}
    found = only(requests=[request])
    assert found.costly == ("sir-1",)
    assert found.lease.leftovers == ("sir-1",)
    assert found.lease.state is LeaseState.PENDING


def test_disks_and_interfaces_count_once_they_hang_on_nothing() -> None:
    """Field case E15."""
    volumes = [
        {"VolumeId": "vol-1", "State": "available", **tagged()},
        {"VolumeId": "vol-2", "State": "in-use", **tagged()},
    ]
    interfaces = [{"NetworkInterfaceId": "eni-1", "Status": "available", "TagSet": tagged()["Tags"]}]
    found = only(volumes=volumes, interfaces=interfaces)
    assert found.lease.leftovers == found.costly == ("vol-1", "eni-1")
    assert found.is_left


def test_the_latest_expiry_of_any_part_counts() -> None:
    found = only(instances=[instance("i-1", expires_at_s=30_000.0), instance("i-2")], templates=[template()])
    assert found.lease.expires_at_s == 30_000.0


def test_a_group_on_its_way_out_is_not_left() -> None:
    group = {"GroupName": "llmsched-x", "GroupId": "pg-1", **tagged()}
    assert only(groups=[{**group, "State": "available"}]).group_names == ("llmsched-x",)
    assert not only(groups=[{**group, "State": "deleting"}]).is_left


def test_notices_of_all_sources_reach_their_node() -> None:
    at = datetime.fromtimestamp(NOW_S, UTC)
    request = {
        "SpotInstanceRequestId": "sir-1",
        "InstanceId": "i-1",
        "State": "active",
        "Status": {"Code": "marked-for-termination", "UpdateTime": at},
        **tagged(),
    }
    warned = instance("i-2", **{tags.REBALANCE: "9000"})
    events = {"InstanceId": "i-2", "Events": [{"Code": "system-reboot", "NotBefore": at}]}
    found = only(instances=[instance("i-1"), warned], requests=[request], statuses=[events], templates=[template()])
    kinds = {node.id: node.notice and node.notice.kind for node in found.lease.nodes}
    assert kinds == {"i-1": NoticeKind.INTERRUPTION, "i-2": NoticeKind.MAINTENANCE}
    assert found.lease.interrupted_at_s == NOW_S + 120.0
    assert found.lease.state is LeaseState.ACTIVE


def test_leases_are_told_apart_and_strangers_left_out() -> None:
    stranger = {**instance("i-9"), "Tags": [{"Key": "Name", "Value": "web"}]}
    rows = Rows(instances=[instance("i-1"), instance("i-2", rental=2), stranger])
    found = seen.leases(rows, region="us-east-1", now_s=NOW_S, consistency_s=WINDOW_S)
    assert [each.lease.key for each in found.values()] == [lease_key(1), lease_key(2)]
    assert [each.instance_ids for each in found.values()] == [("i-1",), ("i-2",)]
