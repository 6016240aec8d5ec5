from __future__ import annotations

from airflow_llmsched.control.rented_nodes import only_rented
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunKey
from airflow_llmsched.domain.lease import Lease, LeasedNode, LeasedNodeState, LeaseId, LeaseState
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from tests.support.sim_cloud import sim_pool

TREE = TopologyTree(
    levels=("host",),
    nodes=tuple(
        TopologyNode(id=NodeId(name), path=(name,), shape="local-cpu", num_slots=2, num_free_slots=1) for name in "abc"
    ),
)


def lease_of(*nodes: tuple[str, str]) -> Lease:
    return Lease(
        id=LeaseId("z/l"),
        key=LeaseKey(run=RunKey("ls-" + "a" * 20), generation=1, rental=1),
        pool=sim_pool().offer.pool,
        num_nodes=len(nodes),
        state=LeaseState.ACTIVE,
        expires_at_s=0.0,
        nodes=tuple(
            LeasedNode(id=NodeId(name), state=LeasedNodeState.RUNNING, address=address) for name, address in nodes
        ),
    )


def test_a_run_that_has_rented_uses_those_nodes_and_no_others() -> None:
    tree = only_rented(TREE, [lease_of(("a", "")), lease_of(("c", ""))])
    assert tree is not None
    assert tree.nodes == (TREE.nodes[0], TREE.nodes[2])


def test_a_node_is_known_by_its_address_too() -> None:
    tree = only_rented(TREE, [lease_of(("i-0123", "b"))])
    assert tree is not None
    assert [node.id for node in tree.nodes] == ["b"]


def test_rented_nodes_that_the_engine_does_not_have_say_nothing_of_those_it_has() -> None:
    assert only_rented(TREE, [lease_of(("i-0123", "10.0.0.1"))]) is None
    assert only_rented(TREE, []) is None
