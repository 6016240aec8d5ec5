from __future__ import annotations

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.kept import with_groups_kept
from airflow_llmsched.planner.placement.rank_map import map_ranks
from tests.support.fleets import fleet

IN_ROWS = [(0, 8), (1, 8), (2, 8), (3, 8)]
"""Two racks of two nodes, filled one after the other."""


def kept(group: RankGroup, *, required: bool = True, layout: ParallelLayout | None = None) -> Placed | NotPlaced:
    tree = fleet(4, nodes_per_rack=2)
    problem = PlacementProblem(
        layout=layout or ParallelLayout(dp=2, tp=8, pp=2), tree=tree,
        wishes=(PlacementWish(group=group, level="rack", required=required),),
    )  # fmt: skip
    placed = Placed(placement=map_ranks(NodeTable.of(tree, group_size=8), IN_ROWS), num_domains=2)
    return with_groups_kept(problem, placed, time_limit_s=5.0, seed=0)


def nodes_of(result: Placed | NotPlaced) -> tuple[str, ...]:
    assert isinstance(result, Placed), result
    return result.placement.nodes


def test_a_placement_that_keeps_what_is_required_stays_as_it_is():
    assert nodes_of(kept(RankGroup.DP)) == ("n0000", "n0001", "n0002", "n0003")


def test_one_that_tears_groups_gives_way_to_one_that_does_not():
    assert nodes_of(kept(RankGroup.PP)) == ("n0000", "n0002", "n0001", "n0003")


def test_a_preferred_level_of_groups_forces_nothing():
    assert nodes_of(kept(RankGroup.PP, required=False)) == ("n0000", "n0001", "n0002", "n0003")


def test_groups_that_fit_nowhere_are_a_refusal():
    refused = kept(RankGroup.DP, layout=ParallelLayout(dp=4, tp=8))
    assert isinstance(refused, NotPlaced)
    assert refused.relaxation == "allow level 'block' instead of 'rack' for dp groups"
