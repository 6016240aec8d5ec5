from __future__ import annotations

from airflow_llmsched.domain.fleet import ClusterLimits
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.engines.fleet.book import Entry
from airflow_llmsched.engines.fleet.limits import refusal, within_limits


def entry(run: str, *nodes: str, num_slots: int = 2) -> Entry:
    key = AttemptKey(run=RunKey(run), generation=1, attempt=1)
    return Entry(key=key, cluster="a", at_s=0.0, nodes=tuple(map(NodeId, nodes)), num_slots=num_slots)


def tree(*free: int) -> TopologyTree:
    nodes = tuple(
        TopologyNode(id=NodeId(f"n{index}"), path=("rack",), shape="x", num_slots=4, num_free_slots=count)
        for index, count in enumerate(free)
    )
    return TopologyTree(levels=("rack",), nodes=nodes)


def usable(found: TopologyTree) -> list[int]:
    return [node.usable_slots for node in found.nodes]


def test_without_limits_the_tree_is_as_it_was() -> None:
    whole = tree(4, 2)
    assert within_limits(whole, ClusterLimits(), [entry("x", "n1")]) is whole


def test_what_is_left_of_nodes_goes_to_the_freest_and_those_in_use_stay_usable() -> None:
    found = within_limits(tree(3, 4, 2, 4), ClusterLimits(max_nodes=2), [entry("x", "n2")])
    assert usable(found) == [0, 4, 2, 0]
    assert "max_nodes=2" in str(found.nodes[0].unusable_reason)


def test_no_node_is_left_where_as_many_are_in_use_as_may_be() -> None:
    found = within_limits(tree(4, 4, 1), ClusterLimits(max_nodes=1), [entry("x", "n2")])
    assert usable(found) == [0, 0, 1]


def test_slots_are_cut_to_what_is_left_of_them() -> None:
    found = within_limits(tree(4, 4, 2), ClusterLimits(max_slots=8), [entry("x", "n2", num_slots=2)])
    assert usable(found) == [4, 2, 0]
    assert "max_slots=8" in str(found.nodes[2].unusable_reason)


def test_a_cluster_with_as_many_runs_as_it_may_have_has_nothing_for_another() -> None:
    live = [entry("x", "n0"), entry("y", "n1")]
    assert usable(within_limits(tree(2, 2), ClusterLimits(max_runs=2), live)) == [0, 0]
    assert usable(within_limits(tree(2, 2), ClusterLimits(max_runs=3), live)) == [2, 2]


def test_a_reason_that_a_node_has_already_is_kept() -> None:
    node = TopologyNode(
        id=NodeId("n0"), path=(), shape="x", num_slots=4, num_free_slots=4, unusable_reason="being mended"
    )
    found = within_limits(TopologyTree(levels=(), nodes=(node,)), ClusterLimits(max_nodes=1), [entry("x", "n7")])
    assert found.nodes[0].unusable_reason == "being mended"


def test_a_gang_that_would_break_a_limit_is_told_which() -> None:
    live = [entry("x", "n0", "n1", num_slots=8)]
    assert refusal(entry("y", "n2"), ClusterLimits(max_nodes=3, max_slots=10, max_runs=2), live) is None
    for limits, word in (
        (ClusterLimits(max_runs=1), "max_runs is 1"),
        (ClusterLimits(max_nodes=2), "max_nodes is 2"),
        (ClusterLimits(max_slots=9), "max_slots is 9"),
    ):
        assert word in str(refusal(entry("y", "n2"), limits, live))


def test_a_gang_does_not_count_against_itself() -> None:
    mine = entry("x", "n0", "n1", num_slots=8)
    assert refusal(mine, ClusterLimits(max_nodes=2, max_slots=8, max_runs=1), [mine]) is None
