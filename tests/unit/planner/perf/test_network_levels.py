from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.topology import NetworkLevel
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.network_levels import EVERYWHERE, joined_depth, levels_over, of_shape, told_levels
from tests.support.fleets import fleet

RACK, BLOCK, ALL = (NetworkLevel(level=level, bandwidth_bytes_per_s=1e9) for level in ("rack", "block", None))
TREE = replace(fleet(8), network=(ALL, RACK, BLOCK))
LEVELS = (*TREE.levels, "node")


def test_levels_are_told_innermost_first_whatever_their_order() -> None:
    assert told_levels(TREE) == ((RACK, 1), (BLOCK, 0), (ALL, EVERYWHERE))
    assert told_levels(fleet(8)) == ()


@pytest.mark.parametrize(("depth", "over"), [(1, (RACK,)), (0, (RACK, BLOCK)), (EVERYWHERE, (RACK, BLOCK, ALL))])
def test_ranks_of_one_domain_have_all_levels_up_to_it_between_them(depth, over) -> None:
    assert levels_over(TREE, depth) == over


def test_beyond_what_is_told_is_whatever_no_level_speaks_of() -> None:
    assert levels_over(replace(TREE, network=(RACK,)), EVERYWHERE) == (RACK, None)


@pytest.mark.parametrize(
    ("level", "shape", "depth"),
    [(None, "gb200-nvl72", 2), ("rack", "gb200-nvl72", 1), ("rack", "p5.48xlarge", 2), ("rack", None, 1)],
)
def test_the_fastest_links_end_where_both_tree_and_shape_let_them(level, shape, depth) -> None:
    tree = replace(TREE, scale_up_level=level)
    assert joined_depth(tree, LEVELS, None if shape is None else node_shape(shape)) == depth


def test_the_nodes_of_one_shape_keep_fast_links_between_them_only_where_the_shape_has_any() -> None:
    h100, gb200 = node_shape("p5.48xlarge"), node_shape("p6e-gb200.36xlarge")
    tree = replace(fleet(8), scale_up_level="rack")
    mixed = replace(tree, nodes=(*(replace(each, shape=gb200.name) for each in tree.nodes[:3]), *tree.nodes[3:]))
    assert [each.id for each in of_shape(mixed, gb200.name, gb200).nodes] == ["n0000", "n0001", "n0002"]
    assert of_shape(mixed, gb200.name, gb200).scale_up_level == "rack"
    assert of_shape(mixed, h100.name, h100) == replace(mixed, nodes=tree.nodes[3:], scale_up_level=None)
