from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.planner.placement.crossed import cheapest_crossed, is_small, is_small_gang
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.testing.solver_contract import keeps_wishes
from tests.support.fleets import fleet, node, tree_of

UNEVEN = tree_of(
    node("a", path=("b", "r0"), free=4), node("b", path=("b", "r0"), free=4),
    node("c", path=("b", "r1"), free=2), node("d", path=("b", "r1"), free=3),
)  # fmt: skip
PROBLEM = PlacementProblem(layout=ParallelLayout(dp=3, tp=2, pp=2), tree=UNEVEN)


def crossed(problem: PlacementProblem) -> list[tuple[tuple[int, int], ...]]:
    return list(cheapest_crossed(Scorer(problem), problem))


def test_racks_hold_whole_pipelines_though_their_nodes_take_unequally_many_ranks() -> None:
    """Two of three pipelines in the first rack, one in the second, stage after stage."""
    assert ((0, 4), (2, 2), (1, 4), (3, 2)) in crossed(PROBLEM)


def test_a_level_required_of_pipelines_is_kept_so_where_no_other_way_does() -> None:
    wish = PlacementWish(group=RankGroup.PP, level="rack", required=True)
    result = FleetSolver().place(replace(PROBLEM, wishes=(wish,)), time_limit_s=5.0, seed=0)
    assert result.kind == "placed"
    assert keeps_wishes(replace(PROBLEM, wishes=(wish,)), [slot.node for slot in result.placement.slots])


def test_the_gang_stays_inside_its_required_level() -> None:
    assert crossed(replace(PROBLEM, required_level="rack")) == []
    inside = crossed(replace(PROBLEM, layout=ParallelLayout(dp=2, tp=2, pp=2), required_level="rack"))
    assert inside
    assert all({number for number, _ in shares} <= {0, 1} for shares in inside)


def test_large_gangs_and_those_without_pipelines_or_replicas_are_left_to_others() -> None:
    large = PlacementProblem(layout=ParallelLayout(dp=32, tp=1, pp=2), tree=fleet(8))
    assert not is_small(Scorer(large).table, large.layout)
    assert is_small_gang(PROBLEM.layout)
    for layout in (ParallelLayout(dp=8, tp=2), ParallelLayout(dp=1, tp=2, pp=4)):
        assert not is_small_gang(layout)
        assert crossed(replace(PROBLEM, layout=layout)) == []
