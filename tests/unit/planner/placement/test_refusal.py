from __future__ import annotations

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import PlacementWish, RankGroup
from airflow_llmsched.domain.placement import NotPlaced, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.refusal import refuse, refuse_wishes
from tests.support.fleets import fleet, gang, node, tree_of


def refused(tree: TopologyTree, num_ranks: int, *, tp: int = 1, **others: object) -> NotPlaced:
    problem = PlacementProblem(layout=gang(num_ranks, tp=tp), tree=tree, **others)  # type: ignore[arg-type]
    return refuse(problem, NodeTable.of(tree, group_size=tp, excluded=problem.excluded))


def test_it_says_how_many_fit_and_counts_nodes_by_what_keeps_them_from_helping():
    narrow = refused(fleet(12), 48, required_level="rack")
    assert narrow.summary == "cannot place a gang of 48 ranks: 32 fit in one rack"
    assert narrow.reasons == {"usable, but its rack is too small": 12}


def test_the_next_wider_level_that_holds_the_gang_is_the_smallest_change():
    assert refused(fleet(12), 48, required_level="rack").relaxation == "allow level 'block' instead of 'rack'"
    assert refused(fleet(12), 80, required_level="block").relaxation == "do not require level 'block'"


def test_excluded_nodes_come_next_and_then_fewer_ranks():
    excluded = frozenset({NodeId("n0000")})
    assert refused(fleet(2), 16, excluded=excluded).relaxation == "admit the excluded nodes"
    assert refused(fleet(2), 17).relaxation == "ask for at most 16 ranks"


def test_where_no_group_fits_several_changes_or_narrower_groups_may_help():
    tree = tree_of(node("a", path=("b", "r1")), node("b", path=("b", "r2"), free=4))
    gone = frozenset({NodeId("a")})
    both = refused(tree, 8, tp=8, required_level="node", excluded=gone)
    assert both.relaxation == "admit the excluded nodes"
    halves = tree_of(node("a", free=4), node("b", free=4))
    assert refused(halves, 8, tp=8).relaxation == "ask for tp=4"
    apart = tree_of(node("a", path=("b", "r1")), node("b", path=("b", "r2")))
    fleetwide = refused(apart, 16, tp=8, required_level="rack", excluded=frozenset({NodeId("a"), NodeId("b")}))
    assert fleetwide.relaxation == "admit the excluded nodes and do not require level 'rack'"


def test_a_fleet_without_a_usable_slot_has_nothing_to_propose():
    assert refused(tree_of(node("a", unusable="drained")), 1).relaxation is None


def test_the_smallest_change_of_one_required_level_that_is_enough_is_proposed():
    pipelines, replicas = (
        PlacementWish(group=each, level="rack", required=True) for each in (RankGroup.PP, RankGroup.DP)
    )
    problem = PlacementProblem(layout=gang(16), tree=fleet(8), wishes=(pipelines, replicas))
    one = refuse_wishes(problem, fits=lambda each: replicas not in each.wishes)
    assert one.summary == (
        "cannot place a gang of 16 ranks with each pp group in one rack and each dp group in one rack: 64 fit in the "
        "fleet, but not so"
    )
    assert one.relaxation == "allow level 'block' instead of 'rack' for dp groups"
    anywhere = refuse_wishes(problem, fits=lambda each: len(each.wishes) == 1 and pipelines in each.wishes)
    assert anywhere.relaxation == "do not require level 'rack' of dp groups"
    assert refuse_wishes(problem, fits=lambda each: False).relaxation == "do not require the levels required of groups"
