from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.node_topology import DeviceLink, GpuPlace, NodeTopology, Path
from airflow_llmsched.domain.topology import TopologyNode
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.rank_map import map_ranks, num_domains
from tests.support.fleets import fleet, node, tree_of


def slots_on(table: NodeTable, shares: list[tuple[int, int]]) -> dict[str, list[int]]:
    placement = map_ranks(table, shares)
    return {name: [slot.slot for slot in placement.on(name)] for name in placement.nodes}


def test_ranks_are_numbered_node_by_node_in_the_order_of_shares():
    table = NodeTable.of(fleet(3), group_size=1)
    placement = map_ranks(table, [(2, 2), (0, 3)])
    assert [(slot.rank, slot.node, slot.local_rank) for slot in placement.slots] == [
        (0, "n0002", 0), (1, "n0002", 1), (2, "n0000", 0), (3, "n0000", 1), (4, "n0000", 2),
    ]  # fmt: skip


def test_a_node_with_slots_to_spare_gives_those_that_its_peers_have():
    tree = tree_of(
        replace(node("a", free=3), free_slots=(2, 5, 6)), replace(node("b", free=4), free_slots=(4, 5, 6, 7)), node("c")
    )
    assert slots_on(NodeTable.of(tree, group_size=1), [(0, 2), (1, 2), (2, 2)]) == {
        "a": [5, 6], "b": [5, 6], "c": [5, 6],
    }  # fmt: skip


def test_a_node_that_is_taken_whole_keeps_its_slots_in_order():
    tree = tree_of(replace(node("a", free=2), free_slots=(7, 1)), node("b"))
    assert slots_on(NodeTable.of(tree, group_size=1), [(0, 2), (1, 3)]) == {"a": [1, 7], "b": [0, 1, 7]}


def crossed(num_gpus: int = 8, *, joined: tuple[tuple[int, int], ...] = ()) -> NodeTopology:
    """Even accelerators are on one NUMA node, odd ones on the other; ``joined`` pairs by NVLink, else all by it."""
    pairs = joined or tuple((one, other) for other in range(num_gpus) for one in range(other))
    nvlink = DeviceLink(path=Path.NVLINK, num_links=4)
    return NodeTopology(
        gpus=tuple(GpuPlace(index=index, numa_index=index % 2) for index in range(num_gpus)),
        gpu_links={one: {other: nvlink for its, other in pairs if its == one} for one, _ in pairs},
    )


def wired(*nodes: TopologyNode, wiring: NodeTopology) -> NodeTable:
    return NodeTable.of(tree_of(*nodes).wired(wiring), group_size=1)


def test_ranks_on_part_of_a_node_share_a_numa_node_where_its_wiring_is_known():
    assert slots_on(wired(node("a"), wiring=crossed()), [(0, 4)]) == {"a": [0, 2, 4, 6]}
    odd = wired(replace(node("a", free=5), free_slots=(0, 1, 3, 5, 7)), wiring=crossed())
    assert slots_on(odd, [(0, 3)]) == {"a": [1, 3, 5]}


def test_the_smallest_neighbourhood_that_is_large_enough_is_taken_and_larger_ones_stay_whole():
    few = wired(replace(node("a", free=6), free_slots=(0, 1, 2, 3, 5, 7)), wiring=crossed())
    assert slots_on(few, [(0, 2)]) == {"a": [0, 2]}


def test_ranks_stay_on_one_nvlink_island_where_no_numa_node_has_so_many():
    islands = tuple((one, other) for half in (0, 4) for other in range(half, half + 4) for one in range(half, other))
    table = wired(replace(node("a", free=7), free_slots=(0, 1, 2, 4, 5, 6, 7)), wiring=crossed(joined=islands))
    assert slots_on(table, [(0, 4)]) == {"a": [4, 6, 5, 7]}


def test_numa_nodes_decide_alone_where_nvlink_joins_nothing_or_too_few():
    pcie = NodeTopology(gpus=crossed().gpus)
    assert slots_on(wired(node("a"), wiring=pcie), [(0, 4)]) == {"a": [0, 2, 4, 6]}
    assert slots_on(wired(node("a"), wiring=pcie), [(0, 8)]) == {"a": [0, 2, 4, 6, 1, 3, 5, 7]}
    bridged = crossed(joined=((0, 2), (4, 6), (1, 3), (5, 7)))
    assert slots_on(wired(node("a"), wiring=bridged), [(0, 4)]) == {"a": [0, 2, 4, 6]}
    assert slots_on(wired(node("a"), wiring=bridged), [(0, 8)]) == {"a": [0, 2, 4, 6, 1, 3, 5, 7]}
    late = wired(replace(node("a", free=5), free_slots=(0, 3, 5, 6, 7)), wiring=bridged)
    assert slots_on(late, [(0, 2)]) == {"a": [5, 7]}


def test_neighbours_by_numa_node_follow_one_another_and_alike_on_every_node():
    table = wired(node("a"), node("b"), wiring=crossed())
    assert slots_on(table, [(0, 8), (1, 8)]) == {name: [0, 2, 4, 6, 1, 3, 5, 7] for name in "ab"}


def test_of_equal_neighbourhoods_the_one_that_peers_have_is_taken():
    table = wired(replace(node("a", free=4), free_slots=(1, 3, 5, 7)), node("b"), wiring=crossed())
    assert slots_on(table, [(0, 4), (1, 4)]) == {"a": [1, 3, 5, 7], "b": [1, 3, 5, 7]}


def test_domains_are_counted_on_the_level_that_is_asked_for():
    table = NodeTable.of(fleet(16), group_size=1)
    shares = [(0, 8), (4, 8), (5, 8)]
    assert [num_domains(table, shares, depth) for depth in (0, 1, 2, None)] == [1, 2, 3, 2]
    assert num_domains(NodeTable.of(tree_of(node("a", path=()), levels=()), group_size=1), [(0, 1)], None) == 1
