from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.places import Ask, find_places, num_broken_S
from airflow_llmsched.planner.relax import Obstacles
from tests.support.fleets import fleet, node, tree_of, workload


def ask_for(tree: TopologyTree, **others: Any) -> Ask:
    return Ask(
        workload=workload(**others), tree=tree, shape=node_shape("p5.48xlarge"), solver=BestFitSolver(),
        excluded=frozenset(), seed=0, time_limit_s=1.0,
    )  # fmt: skip


def test_gangs_of_one_size_are_placed_once_where_nodes_hold_as_many_of_them() -> None:
    ask = ask_for(fleet(4))
    obstacles = Obstacles(workload=ask.workload)
    stems = LayoutTable.of([
        ParallelLayout(dp=16), ParallelLayout(dp=8, pp=2), ParallelLayout(dp=2, tp=8), ParallelLayout(dp=64),
        ParallelLayout(dp=4),
    ])  # fmt: skip
    places = find_places(ask, stems, obstacles)
    assert len(places.placed) == 2
    assert places.place_S.tolist() == [1, 1, 1, -1, 0]
    assert [each.levels["node"].fewest for each in places.grounds] == [4, 8]
    assert places.num_domains_A.tolist() == [1, 1]
    assert obstacles.refusal is not None


def test_degrees_that_leave_slots_over_are_placed_by_themselves() -> None:
    tree = tree_of(*(node(f"n{number}", free=6) for number in range(4)))
    stems = LayoutTable.of([ParallelLayout(dp=12), ParallelLayout(dp=6, tp=2), ParallelLayout(dp=3, tp=4)])
    places = find_places(ask_for(tree), stems, Obstacles(workload=workload()))
    assert places.place_S.tolist() == [0, 0, 1]
    assert [len(each.placement.nodes) for each in places.placed] == [2, 3]


def racks(num_nodes: int, **others: Any) -> Ask:
    """Return an ask about nodes of four in racks of 18, each of which is one NVLink domain."""
    tree = replace(fleet(num_nodes, slots=4, shape="gb200-nvl72", nodes_per_rack=18), scale_up_level="rack")
    return replace(ask_for(tree, **others), shape=node_shape("gb200-nvl72"))


def test_degrees_of_which_none_holds_the_other_are_placed_apart() -> None:
    """72 slots hold whole groups of eight and of twelve, but where groups of twelve go, some of eight would be torn."""
    stems = LayoutTable.of([ParallelLayout(dp=15, tp=8), ParallelLayout(dp=10, tp=12), ParallelLayout(dp=5, tp=24)])
    ask = racks(36)
    apart = find_places(ask, stems.take(np.array([0, 1])), Obstacles(workload=ask.workload))
    assert apart.place_S.tolist() == [0, 1]
    together = find_places(ask, stems, Obstacles(workload=ask.workload))
    assert together.place_S.tolist() == [0, 0, 0]


def test_experts_that_are_split_further_than_layers_are_not_torn_either() -> None:
    tree = tree_of(*(node(f"n{number}", free=6) for number in range(4)))
    stems = LayoutTable.of([ParallelLayout(dp=12, tp=1, ep=2, expert_tp=4)])
    places = find_places(ask_for(tree), stems, Obstacles(workload=workload()))
    assert [each.levels["node"].most for each in places.grounds] == [4]


def test_a_domain_offers_what_is_free_on_its_nodes_but_no_more_than_links_join() -> None:
    assert (racks(36).slots_per_node, racks(36).slots_per_domain) == (4, 72)
    assert racks(3).slots_per_domain == 12
    wide = replace(racks(36), tree=replace(racks(36).tree, scale_up_level="block"))
    assert wide.slots_per_domain == 72
    assert ask_for(fleet(4)).slots_per_domain == 8


def test_many_are_sifted_on_a_machine_whose_domains_are_as_most_are() -> None:
    """Of 72 slots and 40, powers of two: most domains join 64 ranks that a group can use."""
    ask = racks(36)
    places = find_places(ask, LayoutTable.of([ParallelLayout(dp=14, tp=8)]), Obstacles(workload=ask.workload))
    assert sorted(np.bincount(places.grounds[0].scale_up.domain_R).tolist()) == [40, 72]
    flat = places.flat_machine(np.array([0]))
    assert flat.domain_ranks_C.tolist() == [64]
    assert flat.ranks_per_node_C.tolist() == [4]
    assert places.machine(np.array([0])).domain_ranks_C.tolist() == [40]


def test_the_node_with_fewest_ranks_is_told_and_whole_nodes_are_paid_whole() -> None:
    tree = tree_of(node("a"), node("b", free=2))
    places = find_places(ask_for(tree), LayoutTable.of([ParallelLayout(dp=9)]), Obstacles(workload=workload()))
    assert places.grounds[0].levels["node"].fewest == 1
    shape = node_shape("p5.48xlarge")
    assert places.usd_per_hour_A.tolist() == pytest.approx([shape.usd_per_hour * (1 + 1 / 8)])


def test_broken_wishes_are_counted_for_each_layout_where_it_is_placed() -> None:
    wishes = tuple(
        PlacementWish(group=group, level=level, required=required)
        for group, level, required in (
            (RankGroup.DP, "node", False), (RankGroup.PP, "node", False), (RankGroup.GANG, "rack", False),
            (RankGroup.CP, "node", True),
        )
    )  # fmt: skip
    ask = ask_for(fleet(2), placement=wishes)
    stems = LayoutTable.of([
        ParallelLayout(dp=16), ParallelLayout(dp=8, pp=2), ParallelLayout(dp=4, pp=4), ParallelLayout(dp=1, cp=16),
        ParallelLayout(dp=32),
    ])  # fmt: skip
    places = find_places(ask, stems, Obstacles(workload=ask.workload))
    assert num_broken_S(ask, stems, places, required=False).tolist() == [1, 1, 1, 0, 0]
    assert num_broken_S(ask, stems, places, required=True).tolist() == [0, 0, 0, 1, 0]
