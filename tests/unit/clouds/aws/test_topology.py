from __future__ import annotations

from airflow_llmsched.clouds.aws.topology import tree
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.lease import Lease, LeasedNode, LeasedNodeState, LeaseId, LeaseState
from airflow_llmsched.testing.cloud_contract import lease_key
from tests.support.aws_cloud import aws_offer


def lease(**states: LeasedNodeState) -> Lease:
    return Lease(
        id=LeaseId("us-east-1/x"),
        key=lease_key(),
        pool=aws_offer().pool,
        num_nodes=len(states),
        state=LeaseState.ACTIVE,
        expires_at_s=0.0,
        nodes=tuple(LeasedNode(id=NodeId(name), state=state) for name, state in states.items()),
    )


RUNNING = LeasedNodeState.RUNNING


def test_nodes_hang_below_the_network_nodes_that_ec2_names_from_the_top() -> None:
    rows = [
        {"InstanceId": "i1", "NetworkNodes": ["nn-1", "nn-2", "nn-3"]},
        {"InstanceId": "i2", "NetworkNodes": ["nn-1", "nn-2", "nn-4"]},
    ]
    made = tree(lease(i1=RUNNING, i2=RUNNING), rows, num_slots=8)
    assert made.levels == ("region", "zone", "network-1", "network-2", "network-3")
    assert [node.path for node in made.nodes] == [
        ("us-east-1", "us-east-1a", "nn-1", "nn-2", "nn-3"),
        ("us-east-1", "us-east-1a", "nn-1", "nn-2", "nn-4"),
    ]
    assert {node.num_slots for node in made.nodes} == {8}


def test_where_ec2_does_not_know_all_of_them_equally_deep_nobody_is_put_beside_a_stranger() -> None:
    rows = [{"InstanceId": "i1", "NetworkNodes": ["nn-1", "nn-2", "nn-3"]}]
    made = tree(lease(i1=RUNNING, i2=RUNNING), rows, num_slots=8)
    assert made.levels == ("region", "zone")
    assert {node.path for node in made.nodes} == {("us-east-1", "us-east-1a")}


def test_a_node_that_is_gone_hangs_nowhere() -> None:
    made = tree(lease(i1=RUNNING, i2=LeasedNodeState.PREEMPTED), [], num_slots=8)
    assert [node.id for node in made.nodes] == ["i1"]
    assert tree(lease(), [], num_slots=0).nodes == ()


def test_instances_of_one_ultraserver_are_joined_by_nvlink_where_ec2_says_so_of_all() -> None:
    rows = [
        {"InstanceId": name, "NetworkNodes": ["nn-1"], "CapacityBlockId": block}
        for name, block in (("i1", "cb-1"), ("i2", "cb-1"), ("i3", "cb-2"))
    ]
    made = tree(lease(i1=RUNNING, i2=RUNNING, i3=RUNNING), rows, num_slots=4)
    assert (made.levels, made.scale_up_level) == (("region", "zone", "network-1", "ultraserver"), "ultraserver")
    assert [node.path[2:] for node in made.nodes] == [("nn-1", "cb-1"), ("nn-1", "cb-1"), ("nn-1", "cb-2")]
    rows[1]["CapacityBlockId"] = None
    silent = tree(lease(i1=RUNNING, i2=RUNNING, i3=RUNNING), rows, num_slots=4)
    assert (silent.levels[-1], silent.scale_up_level) == ("network-1", None)
