from __future__ import annotations

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import NetworkLevel, TopologyNode, TopologyTree
from airflow_llmsched.planner.graphs.cluster_graph import FLEET, ClusterGraph
from airflow_llmsched.planner.perf.hardware import node_shapes

H100 = node_shapes()["p5.48xlarge"]


def tree(**others: object) -> TopologyTree:
    """Two blocks of two racks of two nodes; racks have the same names in both."""
    nodes = tuple(
        TopologyNode(
            id=NodeId(f"n{number}"),
            path=(f"b{number // 4}", f"r{number // 2 % 2}"),
            shape=H100.name,
            num_slots=8,
            num_free_slots=8,
        )
        for number in range(8)
    )
    return TopologyTree(levels=("block", "rack"), nodes=nodes, **others)


def rates(graph: ClusterGraph) -> dict[str, float]:
    return {link.level: link.bytes_per_s for link in graph.links}


@pytest.mark.parametrize(("other", "level"), [("n0", "node"), ("n1", "rack"), ("n2", "block"), ("n6", FLEET)])
def test_two_nodes_have_between_them_what_their_innermost_common_domain_has(other, level) -> None:
    assert ClusterGraph(tree(), H100).link(NodeId("n0"), NodeId(other)).level == level


def test_without_a_word_of_the_network_all_of_it_is_as_fast_and_farther_is_later() -> None:
    graph = ClusterGraph(tree(), H100)
    assert rates(graph)["rack"] == rates(graph)["block"] == rates(graph)[FLEET] < rates(graph)["node"]
    latencies = [link.latency_s for link in graph.links]
    assert latencies == sorted(latencies, reverse=True)


def test_what_is_measured_of_a_level_is_its_rate_and_holds_for_all_beyond() -> None:
    network = (
        NetworkLevel(level="rack", bandwidth_bytes_per_s=40e9, is_measured=True),
        NetworkLevel(level="block", bandwidth_bytes_per_s=10e9, is_measured=True),
    )
    found = rates(ClusterGraph(tree(network=network), H100))
    assert (found["rack"], found["block"]) == (40e9, 10e9)
    assert found[FLEET] == 10e9


def test_the_link_above_a_domain_has_what_its_accelerators_have_together_one_level_up() -> None:
    network = (NetworkLevel(level="block", bandwidth_bytes_per_s=10e9, is_measured=True),)
    graph = ClusterGraph(tree(network=network), H100)
    assert graph.uplink_bytes_per_s(1).tolist() == [16 * 10e9] * 4
    assert graph.uplink_bytes_per_s(2).tolist() == [8 * rates(graph)["rack"]] * 8


def test_inside_a_domain_of_the_fastest_links_nodes_have_no_link_to_share() -> None:
    rack = node_shapes()["p6e-gb200.36xlarge"]
    graph = ClusterGraph(tree(scale_up_level="rack"), rack)
    assert graph.link(NodeId("n0"), NodeId("n1")).bytes_per_s == graph.links[-1].bytes_per_s
    assert not graph.uplink_bytes_per_s(2).any()
    assert graph.uplink_bytes_per_s(1).all()


def test_an_unknown_node_is_no_guess() -> None:
    with pytest.raises(KeyError, match="elsewhere"):
        ClusterGraph(tree(), H100).link(NodeId("n0"), NodeId("elsewhere"))
