from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.hypernodes import read_hypernodes
from airflow_llmsched.topology.kubernetes import CLIQUE
from tests.support.kube_lists import exact, hypernode, kube_list, kube_node, kube_pod

RACK = "example.com/rack"
NODES = [kube_node(f"n{number}", labels={RACK: f"r{number // 2}"}) for number in range(6)]
HYPERNODES = [
    hypernode("leaf-a", 1, exact("Node", "n0"), ("Node", {"regexMatch": {"pattern": "^n1$"}})),
    hypernode("leaf-b", 1, ("Node", {"labelMatch": {"matchLabels": {RACK: "r1"}}})),
    hypernode("spine", 2, exact("HyperNode", "leaf-a"), ("HyperNode", {"regexMatch": {"pattern": "leaf-b"}})),
]
PODS = [kube_pod("n0", 2)]


def leaf(name: str, *members: tuple[str, dict[str, Any]], tier: object = 1) -> dict[str, Any]:
    return hypernode(name, tier, *members)


def test_tiers_are_levels_the_highest_outermost() -> None:
    found = read_hypernodes(kube_list(*NODES, *HYPERNODES, *PODS))
    assert found.tree.levels == ("tier2", "tier1")
    assert {node.id: node.path for node in found.tree.nodes} == {
        "n0": ("spine", "leaf-a"),
        "n1": ("spine", "leaf-a"),
        "n2": ("spine", "leaf-b"),
        "n3": ("spine", "leaf-b"),
        "n4": ("n4", "n4"),
        "n5": ("n5", "n5"),
    }
    assert {node.id: node.num_free_slots for node in found.tree.nodes}["n0"] == 6
    assert found.warnings == {"node in no HyperNode": 2}


def test_a_tier_whose_domains_are_the_nvlink_domains_that_nodes_name_is_the_scale_up_level() -> None:
    joined = [
        kube_node(f"n{number}", labels={RACK: f"r{number // 2}", CLIQUE: f"u{number // 2}"}) for number in range(4)
    ]
    found = read_hypernodes(kube_list(*joined, *HYPERNODES)).tree
    assert (found.levels, found.scale_up_level) == (("tier2", "tier1"), "tier1")
    assert read_hypernodes(kube_list(*NODES, *HYPERNODES)).tree.scale_up_level is None


def test_a_tier_has_the_name_on_which_all_of_it_agree() -> None:
    named = [hypernode(each, 1, exact("Node", node), tier_name="rack") for each, node in (("a", "n0"), ("b", "n1"))]
    assert read_hypernodes(kube_list(*NODES, *named)).tree.levels == ("rack",)
    named[1]["spec"]["tierName"] = "row"
    assert read_hypernodes(kube_list(*NODES, *named)).tree.levels == ("tier1",)


def test_a_tier_that_is_skipped_has_the_name_of_what_is_below() -> None:
    hypernodes = [
        leaf("a", exact("Node", "n0")),
        leaf("b", exact("HyperNode", "a"), tier=3),
        leaf("c", exact("Node", "n1"), tier=2),
    ]
    found = read_hypernodes(kube_list(*NODES[:2], *hypernodes)).tree
    assert (found.levels, [node.path for node in found.nodes]) == (
        ("tier3", "tier2", "tier1"),
        [("b", "a", "a"), ("c", "c", "c")],
    )


@pytest.mark.parametrize(
    ("expression", "nodes"),
    [
        ({"key": RACK, "operator": "In", "values": ["r0", "r2"]}, {"n0", "n1", "n4", "n5"}),
        ({"key": RACK, "operator": "NotIn", "values": ["r0"]}, {"n2", "n3", "n4", "n5"}),
        ({"key": RACK, "operator": "Exists"}, {"n0", "n1", "n2", "n3", "n4", "n5"}),
        ({"key": "none", "operator": "DoesNotExist"}, {"n0", "n1", "n2", "n3", "n4", "n5"}),
    ],
)
def test_labels_are_matched_as_kubernetes_matches_them(expression: dict[str, Any], nodes: set[str]) -> None:
    member = ("Node", {"labelMatch": {"matchExpressions": [expression]}})
    found = read_hypernodes(kube_list(*NODES, leaf("a", member))).tree
    assert {node.id for node in found.nodes if node.path == ("a",)} == nodes


def test_members_that_match_nothing_are_counted() -> None:
    hypernodes = [
        leaf("a", exact("Node", "n0")),
        leaf("b", exact("Node", "gone")),
        leaf("c", exact("HyperNode", "x"), tier=2),
    ]
    assert read_hypernodes(kube_list(*NODES[:1], *PODS, *hypernodes)).warnings == {
        "HyperNode without members": 2,
        "member of type HyperNode that matches none": 1,
        "member of type Node that matches none": 1,
    }


@pytest.mark.parametrize(
    ("hypernodes", "why"),
    [
        (
            [leaf("a", exact("Node", "n0")), leaf("b", exact("Node", "n0"))],
            r"hypernode 'b': spec: members\[0\]: node 'n0' is a member of hypernode 'a' as well. Leave it in one",
        ),
        (
            [leaf("a"), leaf("b", exact("HyperNode", "a"), tier=2), leaf("c", exact("HyperNode", "a"), tier=3)],
            "hypernode 'c'.* hypernode 'a' is a member of hypernode 'b' as well",
        ),
        ([leaf("a", tier=2), leaf("b", exact("HyperNode", "a"), tier=2)], "of tier 2, which is not below 2"),
        ([leaf("a", exact("HyperNode", "b"), tier=3), leaf("b", exact("HyperNode", "a"), tier=2)], "not below"),
        ([leaf("a", exact("HyperNode", "a"))], "nothing can be a member of itself"),
        ([leaf("a"), leaf("a")], "'a' is missing or there twice"),
        ([leaf("a", ("Pod", {}))], r"members\[0\]: type: 'Pod' is neither"),
        ([leaf("a", ("Node", {}))], "must hold one of exactMatch"),
        ([leaf("a", ("Node", {"exactMatch": {"name": "n0"}, "labelMatch": {}}))], "exactMatch and labelMatch"),
        ([leaf("a", ("HyperNode", {"labelMatch": {}}))], "selects nodes only"),
        ([leaf("a", ("Node", {"regexMatch": {"pattern": "(a+)+"}}))], "pattern: .*repeats a group"),
        (
            [leaf("a", ("Node", {"labelMatch": {"matchExpressions": [{"key": "k", "operator": "Like"}]}}))],
            "'Like' is none",
        ),
        ([leaf("a", tier="one")], "hypernode 'a': spec: tier: must be a whole number"),
        ([], "hold no HyperNode"),
    ],
)
def test_contradictions_are_refused_with_object_and_field(hypernodes: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(DataError, match=why):
        read_hypernodes(kube_list(*NODES, *hypernodes))


ALL = [*NODES, *HYPERNODES, *PODS]


@given(st.permutations(ALL))
def test_the_order_of_objects_does_not_matter(items: list[dict[str, Any]]) -> None:
    assert read_hypernodes(kube_list(*items)) == read_hypernodes(kube_list(*ALL))


VALUES = st.none() | st.integers(-1, 9) | st.text(max_size=5) | st.just([]) | st.just({}) | st.just([{"type": "Node"}])


@given(st.sampled_from(["tier", "tierName", "members"]), VALUES, st.sampled_from([6, 7, 8]))
def test_garbage_in_a_hypernode_is_read_or_refused(field: str, value: object, index: int) -> None:
    items = copy.deepcopy(ALL)
    items[index]["spec"][field] = value
    try:
        first = read_hypernodes(kube_list(*items))
    except DataError:
        return
    assert read_hypernodes(kube_list(*items)) == first
