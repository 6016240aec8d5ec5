from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.fleet import Cluster
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.node_topology import GpuPlace, NodeTopology
from airflow_llmsched.domain.topology import NetworkFacts, NetworkLevel, TopologyNode, TopologyTree
from airflow_llmsched.engines.fleet.topology import ClusterView, fleet_tree


def view(
    name: str, levels: tuple[str, ...], *paths: tuple[str, ...], silence: str = "", **terms: object
) -> ClusterView:
    nodes = tuple(
        TopologyNode(id=NodeId(f"n{index}"), path=path, shape="x", num_slots=2, num_free_slots=2, free_slots=(0, 1))
        for index, path in enumerate(paths)
    )
    cluster = Cluster(name=name, engine="x", **terms)  # type: ignore[arg-type]
    return ClusterView(cluster=cluster, tree=TopologyTree(levels=levels, nodes=nodes), silence=silence)


def paths(tree: TopologyTree) -> dict[str, tuple[str, ...]]:
    return {node.id: node.path for node in tree.nodes}


def test_clusters_are_the_outermost_level_and_nodes_of_one_name_are_told_apart() -> None:
    tree = fleet_tree([view("a", ("rack",), ("r1",)), view("b", ("rack",), ("r1",))])
    assert tree.levels == ("cluster", "rack")
    assert paths(tree) == {"a/n0": ("a", "r1"), "b/n0": ("b", "r1")}


def test_levels_of_clusters_are_put_in_one_order() -> None:
    tree = fleet_tree([view("a", ("zone", "rack"), ("z", "r")), view("b", ("block", "rack", "host"), ("k", "r", "h"))])
    assert tree.levels == ("cluster", "block", "zone", "rack", "host")


def test_a_level_that_a_cluster_lacks_holds_no_more_there_than_its_next_finer_one() -> None:
    tree = fleet_tree([
        view("a", ("zone", "rack", "host"), ("z", "r", "h0")),
        view("b", ("rack",), ("r1",), ("r2",), ("r2",)),
    ])  # fmt: skip
    found = paths(tree)
    assert tree.levels == ("cluster", "zone", "rack", "host")
    assert found["b/n0"] == ("b", "r1", "r1", "n0")
    assert found["b/n1"][:3] == found["b/n2"][:3] == ("b", "r2", "r2")
    assert found["b/n1"][3] != found["b/n2"][3], "nobody knows that they are one host"


def test_a_silent_cluster_is_there_and_unusable_with_its_reason() -> None:
    tree = fleet_tree([view("a", ("rack",), ("r",)), view("b", ("rack",), ("r",), silence="no route to it")])
    a, b = tree.nodes
    assert (a.usable_slots, b.usable_slots, b.num_slots) == (2, 0, 2)
    assert b.unusable_reason == "cluster b: no route to it"


def test_a_cluster_that_nobody_has_ever_seen_stands_there_with_its_reason() -> None:
    silent = ClusterView(cluster=Cluster(name="b", engine="x"), tree=None, silence="no route to it")
    tree = fleet_tree([view("a", ("rack",), ("r",)), silent])
    assert [(node.id, node.usable_slots) for node in tree.nodes] == [("a/n0", 2), ("b/?", 0)]
    assert tree.nodes[1].unusable_reason == "cluster b: no route to it"


def test_levels_in_contradictory_order_leave_a_cluster_out_until_they_are_renamed() -> None:
    mine = view("a", ("pod", "rack"), ("p", "r"))
    tree = fleet_tree([mine, view("b", ("rack", "pod"), ("r", "p"))])
    assert tree.levels == ("cluster", "pod", "rack")
    assert "set level_names" in str(tree.nodes[1].unusable_reason)
    renamed = view("b", ("rack", "pod"), ("r", "p"), level_names={"rack": "pod", "pod": "rack"})
    assert fleet_tree([mine, renamed]).num_usable_slots == 4


def test_a_level_of_the_fleets_own_name_must_be_renamed() -> None:
    tree = fleet_tree([view("a", ("cluster",), ("c",)), view("b", ("rack",), ("r",))])
    assert [node.usable_slots for node in tree.nodes] == [0, 2]


def test_fast_links_join_what_every_cluster_with_such_a_level_says_they_join() -> None:
    def joined(name: str, level: str | None, **terms: object) -> ClusterView:
        found = view(name, ("block", "rack"), ("k", "r"), **terms)
        assert found.tree is not None
        return replace(found, tree=replace(found.tree, scale_up_level=level, switches_reduce=True))

    other = view("b", ("zone",), ("z",))
    assert fleet_tree([joined("a", "rack"), other]).scale_up_level == "rack"
    assert fleet_tree([joined("a", "rack", level_names={"rack": "row"}), other]).scale_up_level == "row"
    assert fleet_tree([joined("a", "rack"), joined("b", None)]).scale_up_level is None
    assert fleet_tree([joined("a", "rack"), joined("b", "block")]).scale_up_level is None
    assert fleet_tree([joined("a", "rack"), joined("b", "rack")]).switches_reduce
    assert not fleet_tree([joined("a", "rack"), other]).switches_reduce


def test_links_of_a_level_are_known_where_every_cluster_that_has_it_tells_them() -> None:
    def with_links(shown: ClusterView, **rates: float) -> ClusterView:
        links = [
            NetworkLevel(level=None if level == "all" else level, bandwidth_bytes_per_s=rate)
            for level, rate in rates.items()
        ]
        return replace(shown, tree=replace(shown.tree, network=tuple(links)))

    a = with_links(view("a", ("block", "rack"), ("b", "r")), all=3.0, block=5.0, rack=9.0)
    b = with_links(view("b", ("row",), ("r",), level_names={"row": "rack"}), all=4.0, row=7.0)
    found = fleet_tree([a, b]).network
    assert [(link.level, link.bandwidth_bytes_per_s) for link in found] == [
        ("cluster", 3.0),
        ("block", 5.0),
        ("rack", 7.0),
    ]
    railed = replace(a, tree=replace(a.tree, facts=NetworkFacts(num_rails=8)))
    assert fleet_tree([railed]).facts.num_rails == 8
    assert fleet_tree([railed, b]).facts.num_rails == 1, "what one cluster has is not said of another"
    silent = fleet_tree([a, view("c", ("rack",), ("r",))]).network
    assert [(link.level, link.bandwidth_bytes_per_s) for link in silent] == [("block", 5.0)]


def test_what_joins_devices_is_known_of_a_shape_where_every_cluster_that_has_it_says_the_same() -> None:
    def wired(shown: ClusterView, *numa: int) -> ClusterView:
        assert shown.tree is not None
        gpus = tuple(GpuPlace(index=index, numa_index=each) for index, each in enumerate(numa))
        wirings = {shown.tree.nodes[0].shape: NodeTopology(gpus=gpus), "unknown": NodeTopology(gpus=())}
        return replace(shown, tree=replace(shown.tree, wirings=wirings))

    a, b = (view(name, ("rack",), ("r",)) for name in ("a", "b"))
    assert a.tree is not None
    shape = a.tree.nodes[0].shape
    assert fleet_tree([wired(a, 0, 1), wired(b, 0, 1)]).wirings.keys() == {shape}
    assert fleet_tree([wired(a, 0, 1), wired(b, 0, 0)]).wirings == {}
    assert fleet_tree([wired(a, 0, 1), b]).wirings == {}
