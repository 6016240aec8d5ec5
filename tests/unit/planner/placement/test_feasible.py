from __future__ import annotations

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.planner.placement.feasible import NodeTable, largest_gang, refusal_reasons
from tests.support.fleets import fleet, gang, node, tree_of


def test_capacity_is_whole_groups_on_usable_nodes() -> None:
    tree = tree_of(node("a", free=7), node("b", unusable="drained"), node("c"), node("d", free=1))
    table = NodeTable.of(tree, group_size=2, excluded={NodeId("c")})
    assert table.ids == ("a", "b", "c", "d")
    assert table.capacity_N.tolist() == [6, 0, 0, 0]
    assert table.is_whole_N.tolist() == [False, True, True, False]


def test_racks_of_one_name_in_two_blocks_are_two_domains() -> None:
    tree = tree_of(node("a", path=("b1", "r")), node("b", path=("b2", "r")), node("c", path=("b1", "r")))
    table = NodeTable.of(tree, group_size=1)
    assert table.ids == ("a", "c", "b")
    assert table.domain_LN[table.depth("rack")].tolist() == [0, 0, 1]


def test_the_node_is_a_level_below_the_trees_own() -> None:
    table = NodeTable.of(fleet(3), group_size=1)
    assert table.levels == ("block", "rack", "node")
    assert table.domain_LN[table.depth("node")].tolist() == [0, 1, 2]
    named = NodeTable.of(tree_of(node("a", path=("n",)), levels=("node",)), group_size=1)
    assert named.levels == ("node",)


def test_an_unknown_level_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="block, rack, node"):
        NodeTable.of(fleet(1), group_size=1).depth("pod")


def test_the_largest_gang_depends_on_the_level() -> None:
    table = NodeTable.of(fleet(12), group_size=1)
    assert [largest_gang(table, level) for level in ("node", "rack", "block", None)] == [8, 32, 64, 96]
    assert largest_gang(NodeTable.of(tree_of(), group_size=1), None) == 0


def test_reasons_count_each_node_once() -> None:
    tree = tree_of(
        node("a", free=0), node("b", free=1), node("c", unusable="taint: gpu-bad"), node("d"), node("e"),
        node("f", unusable="taint: gpu-bad"),
    )  # fmt: skip
    problem = PlacementProblem(layout=gang(64, tp=2), tree=tree, excluded=frozenset({NodeId("d")}))
    assert refusal_reasons(problem) == {
        "taint: gpu-bad": 2,
        "excluded": 1,
        "fewer free slots than tp=2": 1,
        "no free slot": 1,
        "usable, but the fleet is too small": 1,
    }
