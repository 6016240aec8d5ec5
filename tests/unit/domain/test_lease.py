"""What a lease says of itself."""

from __future__ import annotations

from airflow_llmsched import codec
from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.lease import (
    Lease,
    LeasedNode,
    LeasedNodeState,
    LeaseId,
    LeaseState,
    NodeNotice,
    NoticeKind,
)
from airflow_llmsched.domain.workload import CapacityType

KEY = LeaseKey(run=RunKey("ls-a"), generation=2, rental=3)


def lease(*nodes: LeasedNode) -> Lease:
    return Lease(
        id=LeaseId("us-east-1/ls-a-g2-r3"),
        key=KEY,
        pool=Pool(
            cloud="aws", region="us-east-1", zone="us-east-1a", shape="p5.48xlarge", capacity_type=CapacityType.SPOT
        ),
        num_nodes=len(nodes),
        state=LeaseState.ACTIVE,
        expires_at_s=1000.0,
        nodes=nodes,
        origin=RunOrigin(deployment_id="d", run=KEY.run, dag_id="dag", run_id="run"),
    )


def node(
    name: str, *, state: LeasedNodeState = LeasedNodeState.RUNNING, notice: NodeNotice | None = None
) -> LeasedNode:
    return LeasedNode(id=NodeId(name), state=state, notice=notice)


def test_a_key_names_what_a_cloud_keeps() -> None:
    assert KEY.name == "ls-a-g2-r3"


def test_preempted_and_lost_nodes_are_gone_and_starting_ones_are_not() -> None:
    nodes = [node(state.value, state=state) for state in LeasedNodeState]
    assert [each.id for each in lease(*nodes).gone] == ["preempted", "lost"]


def test_the_first_interruption_counts_and_hints_do_not() -> None:
    found = lease(
        node("a", notice=NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=30.0)),
        node("b", notice=NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=20.0)),
        node("c", notice=NodeNotice(kind=NoticeKind.REBALANCE, effective_at_s=10.0)),
        node("d", notice=NodeNotice(kind=NoticeKind.INTERRUPTION)),
        node("e"),
    )
    assert found.interrupted_at_s == 20.0
    assert lease(node("e")).interrupted_at_s is None


def test_a_lease_survives_json() -> None:
    original = lease(node("a", notice=NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=30.0)))
    assert codec.from_json(Lease, codec.to_json(original)) == original
