from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.clouds.gcp import sight, topology
from airflow_llmsched.clouds.gcp.record import Way
from airflow_llmsched.clouds.gcp.sight import Seen
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.lease import LeasedNode, LeasedNodeState
from airflow_llmsched.domain.topology import TopologyTree
from tests.support.gcp_builders import AT_S, instance, place, spec

HOST = {"cluster": "c", "block": "b", "subblock": "s", "host": "h"}


def tree(*hosts: dict[str, str], **changes: Any) -> TopologyTree:
    machines = tuple(
        instance(index, spec(num_nodes=len(hosts)), resourceStatus={"physicalHostTopology": host}, **changes)
        for index, host in enumerate(hosts)
    )
    lease = sight.lease(Seen(place=place(), at_s=AT_S, machines=machines), consistency_s=60.0)
    assert lease is not None
    return topology.tree(lease, machines)


def test_nodes_hang_as_deep_as_google_tells() -> None:
    made = tree(HOST, {**HOST, "subblock": "t"})
    assert made.levels == ("region", "zone", "cluster", "block", "subblock")
    assert [node.path[2:] for node in made.nodes] == [("c", "b", "s"), ("c", "b", "t")]


def test_a_subblock_is_one_nvlink_domain_of_machines_that_nvlink_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tree(HOST, HOST).scale_up_level is None
    monkeypatch.setattr("tests.support.gcp_builders.SHAPE", "a4x-highgpu-4g")
    assert tree(HOST, HOST).scale_up_level == "subblock"
    assert tree(HOST, {"cluster": "c"}).scale_up_level is None


def test_what_is_told_of_only_some_is_told_of_none() -> None:
    assert tree(HOST, {"cluster": "c"}).levels == ("region", "zone", "cluster")
    assert tree(HOST, {"block": "b"}).levels == ("region", "zone")
    assert tree({}, {}).levels == ("region", "zone")


def test_a_node_has_as_many_slots_as_accelerators() -> None:
    accelerators = [{"acceleratorType": "x", "acceleratorCount": 8}]
    assert {node.num_slots for node in tree(HOST, guestAccelerators=accelerators).nodes} == {8}
    assert {node.num_slots for node in tree(HOST).nodes} == {1}


def test_a_node_that_is_gone_has_no_place() -> None:
    assert tree(HOST, status="TERMINATED").nodes == ()


def test_slices_of_tpus_hang_in_their_zone_with_all_of_their_chips() -> None:
    made = sight.pending(replace(spec(way=Way.TPU), shape="v5litepod-16"))
    nodes = (
        LeasedNode(id=NodeId("s0"), state=LeasedNodeState.RUNNING),
        LeasedNode(id=NodeId("s1"), state=LeasedNodeState.PREEMPTED),
    )
    (node,) = topology.slices(replace(made, nodes=nodes)).nodes
    assert (node.id, node.path, node.num_slots) == ("s0", ("us-central1", "us-central1-a"), 16)
