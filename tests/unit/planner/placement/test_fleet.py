from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import NodeCosts, NotPlaced, Placed, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.placement.fleet_index import FleetIndex
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.ports import PlacementSolver
from airflow_llmsched.testing.solver_contract import PlacementSolverContract
from tests.support.fleets import fleet, gang, node, tree_of, workload
from tests.support.placement_problems import best_score_s, costly_problem


class TestFleetSolverWithoutTime(PlacementSolverContract):
    """What it does with time is tried with the other registered solvers."""

    time_limit_s = 0.0

    @pytest.fixture
    def solver(self) -> PlacementSolver:
        return FleetSolver()


def placed(problem: PlacementProblem, *, time_limit_s: float = 1.0) -> Placed:
    result = FleetSolver().place(problem, time_limit_s=time_limit_s, seed=0)
    assert isinstance(result, Placed), result
    return result


def test_its_scores_are_within_a_percent_of_the_best_on_average_and_never_over_five() -> None:
    gaps = []
    for seed in range(40):
        problem = costly_problem(random.Random(seed), max_nodes=5, is_told=seed % 5 == 0)
        scorer = Scorer(problem)
        best_s = best_score_s(problem, scorer)
        result = FleetSolver().place(problem, time_limit_s=1.0, seed=0)
        assert isinstance(result, NotPlaced) == (best_s is None)
        if isinstance(result, Placed) and best_s is not None:
            gaps.append(scorer.score(result.placement).total_s / best_s - 1)
    assert len(gaps) > 12
    assert np.mean(gaps) < 0.01
    assert max(gaps) < 0.05


def test_its_scores_are_no_worse_than_best_fit_on_a_fleet() -> None:
    tree = busy(fleet(512, nodes_per_rack=8, racks_per_block=8), chance=random.Random(1))
    layout = ParallelLayout(dp=16, tp=8, pp=4, num_micro_batches=16)
    told = {"workload": workload(num_sequences=256), "shape": node_shape("p5.48xlarge")}
    problem = PlacementProblem(layout=layout, tree=tree, **told)
    best_fit = BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
    assert isinstance(best_fit, Placed)
    scorer, found = Scorer(problem), placed(problem)
    assert found.cost_s == pytest.approx(scorer.score(found.placement).total_s)
    assert found.cost_s < scorer.score(best_fit.placement).total_s


def racks_with_gaps() -> TopologyTree:
    free_of = {"a": "xx......", "b": "........", "c": "........", "d": "xxxx....", "e": "xxx....."}
    return tree_of(
        *(
            node(f"{rack}{number}", path=("b0", rack), free=8 if free == "." else 0)
            for rack, row in free_of.items()
            for number, free in enumerate(row)
        )
    )


def test_a_gang_of_several_racks_breaks_one_rack_less_for_one_rack_more() -> None:
    problem = PlacementProblem(layout=ParallelLayout(dp=20, tp=8), tree=racks_with_gaps(), preferred_level="rack")
    racks = Counter(str(each)[0] for each in placed(problem).placement.nodes)
    assert racks == {"b": 8, "a": 6, "e": 5, "d": 1}


def test_gaps_are_not_taken_where_nodes_fail() -> None:
    tree = racks_with_gaps()
    costs = {each.id: NodeCosts(failures_per_hour=1.0) for each in tree.nodes if str(each.id)[0] == "d"}
    layout = ParallelLayout(dp=20, tp=8)
    problem = PlacementProblem(layout=layout, tree=tree, preferred_level="rack", node_costs=costs)
    assert not any(str(each)[0] == "d" for each in placed(problem).placement.nodes)


def blocks(**free_of: tuple[str, ...]) -> TopologyTree:
    """Racks of each block as rows of nodes: ``.`` is free, ``x`` is not."""
    return tree_of(
        *(
            node(f"{block}{rack}{number}", path=(block, f"{block}{rack}"), free=8 if free == "." else 0)
            for block, rows in free_of.items()
            for rack, row in enumerate(rows)
            for number, free in enumerate(row)
        )
    )


def test_the_block_with_most_whole_racks_is_kept_for_one_rack_more() -> None:
    tree = blocks(a=("....", "....", "...."), b=("....", "x...", "xxx."))
    problem = PlacementProblem(layout=ParallelLayout(dp=8, tp=8), tree=tree, preferred_level="rack")
    assert {str(each)[0] for each in placed(problem).placement.nodes} == {"b"}


def test_a_gang_that_a_rack_holds_is_not_spread_even_if_that_is_the_last_whole_one() -> None:
    tree = blocks(a=("....", "xxxx"), b=("x...", "x..."))
    problem = PlacementProblem(layout=ParallelLayout(dp=1, tp=8, pp=4), tree=tree, preferred_level="rack")
    assert {str(each)[:2] for each in placed(problem).placement.nodes} == {"a0"}


def test_a_gang_stays_in_one_block_though_two_would_hold_it_on_fewer_racks() -> None:
    tree = blocks(a=("....", "xxxx", "xxxx"), b=("x...", "xx..", "x..."), c=("xx..", "xxxx", "...."))
    problem = PlacementProblem(layout=ParallelLayout(dp=4, pp=2, tp=8), tree=tree, preferred_level="rack")
    assert len({str(each)[0] for each in placed(problem).placement.nodes}) == 1


@pytest.mark.parametrize("group", [RankGroup.TP, RankGroup.DP, RankGroup.PP])
def test_a_required_level_of_groups_holds(group: RankGroup) -> None:
    wish = PlacementWish(group=group, level="rack", required=True)
    layout = ParallelLayout(dp=4, tp=8, pp=4)
    problem = PlacementProblem(layout=layout, tree=fleet(32), wishes=(wish,))
    scorer = Scorer(problem)
    for time_limit_s in (0.0, 1.0):
        found = scorer.positions(placed(problem, time_limit_s=time_limit_s).placement)
        assert scorer.keeps_required(scorer.depths(*found))


def test_a_level_required_of_groups_that_no_domain_can_hold_is_refused() -> None:
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=True)
    problem = PlacementProblem(layout=ParallelLayout(dp=5, tp=8), tree=fleet(32), wishes=(wish,))
    result = FleetSolver().place(problem, time_limit_s=1.0, seed=0)
    assert isinstance(result, NotPlaced)
    assert result.relaxation == "allow level 'block' instead of 'rack' for dp groups"


def test_an_unknown_level_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no level 'row'"):
        placed(PlacementProblem(layout=gang(8), tree=fleet(4), required_level="row"))


def test_gangs_are_placed_on_what_an_index_has_free_now() -> None:
    index, solver = FleetIndex(fleet(4)), FleetSolver()
    problem = PlacementProblem(layout=gang(8), tree=fleet(4))
    gangs = []
    for _ in range(4):
        result = solver.place_in(index, problem, time_limit_s=0.0, seed=0)
        assert isinstance(result, Placed)
        index.take(result.placement)
        gangs.append(result.placement)
    assert len({each.nodes for each in gangs}) == 4
    refused = solver.place_in(index, problem, time_limit_s=0.0, seed=0)
    assert isinstance(refused, NotPlaced)
    assert refused.reasons == {"no free slot": 4}
    index.give_back(gangs[2])
    again = solver.place_in(index, problem, time_limit_s=1.0, seed=0)
    assert isinstance(again, Placed)
    assert again.placement.nodes == gangs[2].nodes


def test_an_index_and_the_tree_it_stands_for_give_the_same_answer() -> None:
    tree = busy(fleet(64), chance=random.Random(2))
    problem = PlacementProblem(layout=ParallelLayout(dp=8, tp=8, pp=2), tree=tree)
    for time_limit_s in (0.0, 1.0):
        found = FleetSolver().place_in(FleetIndex(tree), problem, time_limit_s=time_limit_s, seed=0)
        assert found == placed(problem, time_limit_s=time_limit_s)


def test_a_gang_of_16384_on_a_busy_fleet_of_98304_takes_about_a_second_of_one_core() -> None:
    tree = busy(fleet(12288, nodes_per_rack=8, racks_per_block=16), chance=random.Random(0))
    problem = PlacementProblem(layout=ParallelLayout(dp=256, tp=8, pp=8), tree=tree)
    begin_s = time.process_time()
    assert placed(problem).placement.world_size == 16384
    assert time.process_time() - begin_s < 3.0


def busy(tree: TopologyTree, *, chance: random.Random) -> TopologyTree:
    """Return a tree whose nodes are taken whole, four of ten at random."""
    nodes = (replace(each, num_free_slots=0 if chance.random() < 0.4 else each.num_slots) for each in tree.nodes)
    return replace(tree, nodes=tuple(nodes))
