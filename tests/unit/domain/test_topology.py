from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.node_topology import GpuPlace, NodeTopology
from airflow_llmsched.domain.topology import NetworkLevel, TopologyNode, TopologyTree


def _node(name: str, *path: str, free: int = 8, unusable: str | None = None) -> TopologyNode:
    return TopologyNode(
        id=NodeId(name), path=path, shape="gpu", num_slots=8, num_free_slots=free, unusable_reason=unusable
    )


def test_racks_of_one_name_in_two_zones_are_two_domains():
    tree = TopologyTree(levels=("zone", "rack"), nodes=(_node("a", "z1", "r1"), _node("b", "z2", "r1")))
    assert set(tree.domains("rack")) == {("z1", "r1"), ("z2", "r1")}
    assert set(tree.domains("zone")) == {("z1",), ("z2",)}


def test_domains_and_their_nodes_come_in_the_same_order_whatever_the_input_order():
    nodes = [_node(name, "z", rack) for name, rack in (("c", "r2"), ("a", "r2"), ("b", "r1"))]
    forward = TopologyTree(levels=("zone", "rack"), nodes=tuple(nodes)).domains("rack")
    backward = TopologyTree(levels=("zone", "rack"), nodes=tuple(reversed(nodes))).domains("rack")
    assert list(forward.items()) == list(backward.items())
    assert [node.id for node in forward["z", "r2"]] == ["a", "c"]


def test_slots_of_a_node_that_must_not_be_used_do_not_count():
    tree = TopologyTree(levels=("zone",), nodes=(_node("a", "z", free=3), _node("b", "z", unusable="preempted")))
    assert tree.num_usable_slots == 3


def test_a_path_that_does_not_fit_the_levels_is_refused_by_name():
    with pytest.raises(ValueError, match="node 'a': path"):
        TopologyTree(levels=("zone", "rack"), nodes=(_node("a", "z"),))


def test_two_nodes_of_one_name_are_refused():
    with pytest.raises(ValueError, match="'a' appears twice"):
        TopologyTree(levels=("zone",), nodes=(_node("a", "z"), _node("a", "y")))


def test_an_unknown_level_is_an_error_and_not_an_empty_answer():
    with pytest.raises(ValueError, match="rack"):
        TopologyTree(levels=("zone",), nodes=()).domains("rack")


def test_slots_that_are_only_counted_are_the_first_ones():
    assert _node("a", "z", free=2).usable_slot_indexes == (0, 1)
    assert _node("a", "z", free=2, unusable="preempted").usable_slot_indexes == ()


def test_named_free_slots_are_the_usable_ones():
    assert replace(_node("a", "z", free=2), free_slots=(7, 3)).usable_slot_indexes == (3, 7)


def test_named_free_slots_must_agree_with_their_count():
    with pytest.raises(ValueError, match="2 slots are free, but named"):
        replace(_node("a", "z", free=2), free_slots=(3,))


def test_what_is_told_of_a_level_needs_the_level() -> None:
    with pytest.raises(ValueError, match="unknown level 'rack': the topology has zone"):
        TopologyTree(levels=("zone",), nodes=(), scale_up_level="rack")
    twice = (NetworkLevel(level=None, bandwidth_bytes_per_s=1e9), NetworkLevel(level=None, bandwidth_bytes_per_s=2e9))
    with pytest.raises(ValueError, match="told twice"):
        TopologyTree(levels=("zone",), nodes=(), network=twice)


def test_a_wiring_is_that_of_every_shape_in_the_tree_and_leaves_it_the_same_key():
    tree = TopologyTree(levels=(), nodes=(_node("a"), _node("b")))
    wiring = NodeTopology(gpus=(GpuPlace(index=0),))
    wired = tree.wired(wiring)
    assert wired.wirings == {tree.nodes[0].shape: wiring}
    assert hash(wired) == hash(tree)
    assert wired != tree
    assert tree.wired(None) is tree
