from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.control.rented_nodes import at_terms, hosts_of, not_joined, only_rented
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunKey
from airflow_llmsched.domain.lease import Lease, LeasedNode, LeasedNodeState, LeaseId, LeaseState
from airflow_llmsched.domain.topology import NodeTerms, TopologyNode, TopologyTree
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


def test_rented_nodes_are_planned_on_at_the_terms_of_their_lease() -> None:
    own = NodeTerms(usd_per_hour=9.0, failures_per_hour=0.5, data=("/data",))
    engine = replace(TREE, nodes=tuple(replace(node, terms=own) for node in TREE.nodes))
    priced, silent = lease_of(("a", "")), replace(lease_of(("b", "")), id=LeaseId("z/m"))
    rented = {priced.id: NodeTerms(usd_per_hour=2.0, failures_per_hour=0.1)}
    tree = only_rented(engine, [priced, silent], terms_of=lambda lease: rented.get(lease.id, NodeTerms()))
    assert tree is not None
    assert [node.terms for node in tree.nodes] == [replace(own, usd_per_hour=2.0, failures_per_hour=0.1), own]


def test_what_has_yet_to_join_is_planned_on_at_the_terms_of_its_lease_too() -> None:
    tree = at_terms(TREE, NodeTerms(usd_per_hour=2.0))
    assert {node.terms for node in tree.nodes} == {NodeTerms(usd_per_hour=2.0)}


def test_rented_nodes_that_the_engine_does_not_have_say_nothing_of_those_it_has() -> None:
    assert only_rented(TREE, [lease_of(("i-0123", "10.0.0.1"))]) is None
    assert only_rented(TREE, []) is None


def test_a_node_of_a_fleet_is_known_by_what_its_cluster_calls_it() -> None:
    fleet = replace(TREE, nodes=tuple(replace(node, id=NodeId(f"here/{node.id}")) for node in TREE.nodes))
    tree = only_rented(fleet, [lease_of(("a", "")), lease_of(("i-0123", "c"))])
    assert tree is not None
    assert [node.id for node in tree.nodes] == ["here/a", "here/c"]


def test_what_has_not_joined_is_named_with_its_lease() -> None:
    told = not_joined([lease_of(("i-0123", "10.0.0.1"), ("i-0124", ""))])
    assert told.startswith("rented nodes have not joined the engine: i-0123, i-0124 (lease z/l)")
    assert not_joined([]) == not_joined([lease_of()]) == ""
    assert "engine: i-0123 (lease" in not_joined([lease_of(("i-0123", "10.0.0.1"), ("i-0124", "b"))], TREE)
    assert not_joined([lease_of(("i-0123", "a"), ("b", ""))], TREE) == ""


def test_what_cannot_be_used_has_not_joined_where_all_must_and_its_reason_is_told() -> None:
    wrong = "it may still be coming up: it has another host key"
    first, *others = TREE.nodes
    tree = replace(TREE, nodes=(replace(first, unusable_reason=wrong), *others))
    leases = [lease_of(("i-0123", "a"), ("b", ""))]
    assert f"engine: i-0123 ({wrong}) (lease z/l)" in not_joined(leases, tree, must_be_usable=True)
    assert not_joined(leases, tree) == ""


def test_what_is_gone_is_not_waited_for() -> None:
    lease = lease_of(("i-0123", ""))
    gone = replace(lease, nodes=tuple(replace(node, state=LeasedNodeState.LOST) for node in lease.nodes))
    assert not_joined([gone], TREE) == ""


def test_a_node_whose_id_is_no_host_name_is_called_by_its_address_and_one_without_address_is_left_out() -> None:
    lease = lease_of(("i-0123", "10.0.0.1"), ("zones/a/instances/x", "10.0.0.2"), ("i-0456", ""))
    hosts = hosts_of([lease, lease], slots={"sim.8x": 8}, port=22)
    assert [host["name"] for host in hosts] == ["i-0123", "10.0.0.2"]
    assert {(host["slots"], host["port"], host["shape"]) for host in hosts} == {(8, 22, "sim.8x")}


def test_a_node_that_is_off_is_listed_as_such_though_its_cloud_has_forgotten_its_address() -> None:
    lease = lease_of(("i-0123", ""), ("i-0456", "10.0.0.2"), ("i-0789", ""))
    first, *others = lease.nodes
    hosts = hosts_of([replace(lease, nodes=(replace(first, is_off=True), *others))], slots={"sim.8x": 8}, port=22)
    assert [(host["name"], host["address"], host.get("off", False)) for host in hosts] == [
        ("i-0123", "i-0123", True),
        ("i-0456", "10.0.0.2", False),
    ]


def test_a_node_of_a_cloud_that_announces_to_the_machine_what_it_takes_says_whose_it_is() -> None:
    lease = lease_of(("i-0123", "10.0.0.1"))
    assert "cloud" not in hosts_of([lease], slots={"sim.8x": 8}, port=22)[0]
    azure = replace(lease, pool=replace(lease.pool, cloud="azure"))
    assert hosts_of([azure], slots={"sim.8x": 8}, port=22)[0]["cloud"] == "azure"


def test_nodes_of_a_lease_say_until_when_they_may_be_coming_up() -> None:
    young, old = lease_of(("i-0123", "10.0.0.1")), replace(lease_of(("i-0456", "10.0.0.2")), id=LeaseId("z/old"))
    hosts = hosts_of([young, old], slots={"sim.8x": 8}, port=22, joins_until_s={young.id: 300.0})
    assert [host.get("joins_until_s") for host in hosts] == [300.0, None]
