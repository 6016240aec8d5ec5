from __future__ import annotations

from dataclasses import replace

import numpy as np

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.reaches import Numbering, Reach, Reaches, room_for
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.planner.placement.step_cost import Groups
from tests.support.fleets import fleet

STAGES = ParallelLayout(dp=2, tp=8, pp=4)
"""Stages of two nodes, pipelines of four: ranks are numbered tp, dp, pp."""


def ways(layout: ParallelLayout = STAGES, *, num_nodes: int = 16, **others: object) -> list[Reach]:
    problem = PlacementProblem(layout=layout, tree=fleet(num_nodes), **others)  # type: ignore[arg-type]
    return Reaches(problem=problem, scorer=Scorer(problem)).cheapest_first()


def test_ways_come_by_what_they_cost_and_each_once():
    found = ways()
    assert [each.cost_s for each in found] == sorted(each.cost_s for each in found)
    assert len({(each.numbering, each.multiples_L, each.fewest) for each in found}) == len(found)


def test_outer_domains_take_multiples_of_what_inner_ones_do():
    for each in ways():
        block, rack, node = each.multiples_L
        assert block % rack == rack % node == node % 8 == 0


def test_a_gang_in_one_rack_is_the_cheapest_way_and_one_torn_everywhere_the_dearest():
    found = ways()
    assert found[0].multiples_L[1] == 64
    assert set(found[-1].multiples_L) == {8}


def test_a_rack_that_takes_whole_stages_takes_multiples_of_their_ranks():
    usual = {each.multiples_L for each in ways() if not each.numbering.sizes}
    assert (64, 16, 8) in usual


def test_nodes_may_be_numbered_across_so_that_pipelines_stay_in_a_rack_and_replicas_do_not():
    crossed = [each for each in ways() if each.numbering.sizes]
    assert crossed
    numbering = crossed[0].numbering
    assert (numbering.node_ranks, numbering.sizes, numbering.nearest_first) == (8, (2, 4), (1, 0))
    assert numbering.block(Groups(16, 4)) == 32, "a pipeline is four nodes that follow one another"
    assert numbering.block(Groups(8, 2)) == 64, "replicas are whole only where the gang is"
    assert numbering.in_rank_order(np.arange(8)).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_nodes_in_the_order_of_their_paths_stay_as_they_are():
    assert Numbering().in_rank_order(np.array([4, 2, 9])).tolist() == [4, 2, 9]


def test_a_level_required_of_the_gang_or_of_a_group_leaves_only_ways_that_keep_it():
    assert {each.multiples_L[1] for each in ways(required_level="rack")} == {64}
    wish = PlacementWish(group=RankGroup.PP, level="rack", required=True)
    kept = ways(wishes=(wish,))
    assert kept
    assert all(each.multiples_L[1] % 32 == 0 for each in kept)
    assert any(each.multiples_L[1] == 32 and each.numbering.sizes for each in kept)


def test_groups_of_a_scale_up_level_bind_its_domains_and_not_its_nodes():
    tree = replace(fleet(36, slots=4, nodes_per_rack=18), scale_up_level="rack")
    problem = PlacementProblem(layout=ParallelLayout(dp=8, tp=16), tree=tree)
    found = Reaches(problem=problem, scorer=Scorer(problem)).cheapest_first()
    assert all(each.multiples_L[1] % 16 == 0 for each in found)
    assert any(each.multiples_L[2] == 1 for each in found)


def lying(*multiples: int, node_ranks: int | None = None) -> Reach:
    return Reach(numbering=Numbering(node_ranks=node_ranks), multiples_L=multiples, fewest=1, cost_s=1.0)


def test_room_is_what_is_left_after_rounding_on_every_level():
    table = NodeTable.of(fleet(6), group_size=1)
    assert room_for(table, lying(1, 1, 1)) == 48
    assert room_for(table, lying(24, 24, 8)) == 24
    assert room_for(table, lying(32, 32, 8)) == 32
    assert room_for(table, lying(5, 5, 5)) == 30
    assert room_for(table, lying(48, 8, 8)) == 48


def test_where_all_nodes_take_equally_many_none_has_room_for_more():
    assert room_for(NodeTable.of(fleet(6), group_size=1), lying(2, 2, 2, node_ranks=2)) == 12
