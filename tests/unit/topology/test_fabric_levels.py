from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.ibnetdiscover import read_ibnetdiscover
from airflow_llmsched.topology.reading import Machines, Reading
from tests.support.fabrics import Fabric, as_ibnetdiscover, tree_fabric

HDR_BYTES_PER_S = 25e9


def read(fabric: Fabric, *, num_slots: int = 1) -> Reading:
    return read_ibnetdiscover(as_ibnetdiscover(fabric), machines=Machines(num_slots=num_slots))


def groups(tree: TopologyTree, level: str) -> list[list[str]]:
    return sorted(sorted(node.id for node in nodes) for nodes in tree.domains(level).values())


def rates(tree: TopologyTree) -> dict[str | None, float]:
    return {link.level: link.bandwidth_bytes_per_s / HDR_BYTES_PER_S for link in tree.network}


def test_hosts_of_one_leaf_are_a_domain_below_the_spines() -> None:
    found = read(tree_fabric(num_pods=1, num_leaves=2, num_hosts=4))
    assert found.tree.levels == ("spine", "leaf")
    assert groups(found.tree, "leaf") == [["p0n00", "p0n01"], ["p0n02", "p0n03"]]
    assert found.tree.nodes[0].path == ("pod0-spine0", "pod0-leaf0")
    assert rates(found.tree) == {"spine": 1.0, "leaf": 1.0}
    assert found.warnings == {}


def test_fewer_uplinks_than_hosts_are_shared_out() -> None:
    found = read(tree_fabric(num_pods=1, num_leaves=2, num_hosts=16, num_uplinks=2), num_slots=2)
    assert rates(found.tree) == {"spine": 0.125, "leaf": 0.5}, "two to eight, and two slots on each host"


def test_pods_are_the_level_of_spines_and_cores_join_them() -> None:
    found = read(tree_fabric(num_pods=2, num_leaves=2, num_hosts=8))
    assert found.tree.levels == ("core", "spine", "leaf")
    assert [len(each) for each in groups(found.tree, "spine")] == [8, 8]
    assert [len(each) for each in groups(found.tree, "leaf")] == [4, 4, 4, 4]
    # a pod has four links up for eight hosts, its leaves two for four each
    assert rates(found.tree) == {"core": 0.5, "spine": 0.5, "leaf": 1.0}
    assert found.tree.facts.num_rails == 1


def test_hosts_with_a_rail_for_each_card_share_all_of_its_leaves() -> None:
    found = read(tree_fabric(num_pods=1, num_leaves=16, num_hosts=8, num_uplinks=4, rails=8), num_slots=8)
    assert found.tree.levels == ("spine", "leaf")
    assert groups(found.tree, "leaf") == [[f"p0n0{number}" for number in range(4)], [f"p0n0{n}" for n in range(4, 8)]]
    assert rates(found.tree) == {"spine": 1.0, "leaf": 1.0}
    assert found.tree.facts.num_rails == 8


def test_a_host_that_lost_a_rail_stays_among_its_neighbours() -> None:
    fabric = tree_fabric(num_pods=1, num_leaves=16, num_hosts=8, num_uplinks=4, rails=8)
    lost = next(guid for guid, name in fabric.cards.items() if name == "p0n01 mlx5_3")
    fabric.cables = [cable for cable in fabric.cables if lost not in {cable[0][0], cable[1][0]}]
    found = read(fabric, num_slots=8)
    assert len(groups(found.tree, "leaf")) == 2
    assert found.warnings == {
        "host that hangs on fewer leaves than the others there": 1,
        "host with less bandwidth than the others": 1,
    }


def test_a_host_on_two_leaves_joins_neither_to_the_other() -> None:
    fabric = tree_fabric(num_pods=1, num_leaves=2, num_hosts=8)
    leaves = [guid for guid, name in fabric.switches.items() if "leaf" in name]
    for number, leaf in enumerate(leaves):
        fabric.join(fabric.card(f"login mlx5_{number}"), leaf)
    assert [len(each) for each in groups(read(fabric).tree, "leaf")] == [1, 4, 4]


@pytest.mark.parametrize("above", ["core-0", "pod0-spine0"])
def test_a_manager_on_a_high_switch_does_not_join_pods(above: str) -> None:
    fabric = tree_fabric(num_pods=2, num_leaves=2, num_hosts=32)
    [switch] = [guid for guid, name in fabric.switches.items() if name == above]
    fabric.join(fabric.card("ufm mlx5_0"), switch)
    found = read(fabric).tree
    pods = [set(each) - {"ufm"} for each in groups(found, "spine")]
    assert sorted(map(len, filter(None, pods))) == [32, 32]


def test_a_leaf_with_few_hosts_is_a_leaf_of_its_pod() -> None:
    fabric = tree_fabric(num_pods=2, num_leaves=2, num_hosts=32)
    [spine] = [guid for guid, name in fabric.switches.items() if name == "pod0-spine0"]
    lonely = fabric.switch("pod0-leaf9")
    fabric.join(lonely, spine)
    fabric.join(fabric.card("late mlx5_0"), lonely)
    found = read(fabric).tree
    assert [len(each) for each in groups(found, "spine")] == [32, 33] or [33, 32]
    assert {len({node.path[:2] for node in found.nodes if node.id in {"late", "p0n00"}})} == {1}


def test_leaves_that_are_joined_directly_are_one_level() -> None:
    fabric = Fabric()
    leaves = [fabric.switch(f"leaf{number}") for number in range(2)]
    for leaf in leaves:
        fabric.join(fabric.card(f"n{leaf[:6]} mlx5_0"), leaf)
    assert (read(fabric).tree.levels, rates(read(fabric).tree)) == (("leaf",), {"leaf": 1.0})
    fabric.join(*leaves, "EDR")
    found = read(fabric).tree
    assert (found.levels, rates(found)) == (("leaf",), {None: 0.5, "leaf": 1.0}), "nothing is higher than a leaf"


def test_fabrics_that_are_not_joined_stay_apart() -> None:
    fabric = Fabric()
    for number in range(2):
        fabric.join(fabric.card(f"n{number} mlx5_0"), fabric.switch("Quantum Mellanox Technologies"))
    found = read(fabric).tree
    assert len(groups(found, "leaf")) == 2
    assert {node.path[0] for node in found.nodes} == set(fabric.switches), "one name for two: GUIDs tell them apart"


def test_rates_that_are_not_told_leave_the_links_to_the_shapes() -> None:
    fabric = tree_fabric(num_pods=1, num_leaves=2, num_hosts=4)
    text = as_ibnetdiscover(fabric).replace("4xHDR", "??")
    found = read_ibnetdiscover(text)
    assert found.tree.network == ()
    assert found.warnings["fabric whose bandwidth is not told, as rates are missing"] == 1


def test_a_fabric_without_hosts_is_refused() -> None:
    fabric = Fabric()
    fabric.join(fabric.switch("a"), fabric.switch("b"))
    with pytest.raises(DataError, match="has no host on a switch"):
        read(fabric)


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_order_of_blocks_does_not_matter(pods: int, leaves: int, per_leaf: int, chance: random.Random) -> None:
    fabric = tree_fabric(num_pods=pods, num_leaves=leaves, num_hosts=leaves * per_leaf)
    first = read(fabric)
    order = [*fabric.switches, *fabric.cards]
    chance.shuffle(order)
    assert read_ibnetdiscover(as_ibnetdiscover(fabric, order=order), machines=Machines(num_slots=1)) == first
    counted = Counter(node.path[-1] for node in first.tree.nodes)
    assert set(counted.values()) == {per_leaf}
