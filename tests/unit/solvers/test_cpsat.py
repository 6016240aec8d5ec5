from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.solvers.cpsat import ExactSolver
from tests.support.every_placement import every_placement, small_problem
from tests.support.fleets import fleet, node, tree_of, workload


def place(problem: PlacementProblem, *, time_limit_s: float = 20.0, seed: int = 0) -> Placed | NotPlaced:
    return ExactSolver().place(problem, time_limit_s=time_limit_s, seed=seed)


def placed(problem: PlacementProblem, **others: float) -> Placed:
    result = place(problem, **others)  # type: ignore[arg-type]
    assert isinstance(result, Placed), result
    return result


def cheapest_s(problem: PlacementProblem) -> float:
    scorer = Scorer(problem)
    return min((scorer.total_s(*each) for each in every_placement(problem, scorer)), default=math.inf)


def test_it_finds_the_cheapest_of_all_placements_and_proves_it() -> None:
    chance = random.Random(5)
    num_placed = 0
    for _ in range(40):
        problem = small_problem(chance)
        cheapest, result = cheapest_s(problem), place(problem)
        assert isinstance(result, Placed) == (cheapest < math.inf), problem
        if isinstance(result, Placed):
            num_placed += 1
            assert result.cost_s == pytest.approx(cheapest, rel=1e-6), problem
            assert result.bound_s == pytest.approx(cheapest, rel=1e-5), problem
            assert Scorer(problem).score(result.placement).total_s == pytest.approx(result.cost_s)
    assert num_placed > 15


def test_a_known_job_is_placed_as_cheaply_as_any_placement_of_it() -> None:
    layout = ParallelLayout(dp=2, tp=4, pp=2, zero_stage=1, num_micro_batches=2)
    nodes = [node(f"n{number}", path=("b", f"r{number % 2}"), free=free) for number, free in enumerate((8, 4, 8, 4))]
    problem = PlacementProblem(
        layout=layout, tree=tree_of(*nodes), workload=workload(num_sequences=4), shape=node_shape("p5.48xlarge")
    )
    assert placed(problem).cost_s == pytest.approx(cheapest_s(problem), rel=1e-6)


def sixty_four(free: tuple[int, ...] = (8, 8, 4, 8, 2, 8, 0)) -> TopologyTree:
    tree = fleet(64, nodes_per_rack=8, racks_per_block=2)
    chance = random.Random(3)
    return replace(tree, nodes=tuple(replace(each, num_free_slots=chance.choice(free)) for each in tree.nodes))


def test_sixty_four_nodes_are_solved_to_the_end_and_never_dearer_than_by_best_fit() -> None:
    problem = PlacementProblem(layout=ParallelLayout(dp=40, tp=4, pp=1), tree=sixty_four())
    result, rough = placed(problem), BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
    assert result.gap_ratio == pytest.approx(0.0, abs=1e-5)
    assert isinstance(rough, Placed)
    assert result.cost_s is not None
    assert result.cost_s <= Scorer(problem).score(rough.placement).total_s


def test_without_time_it_still_answers_and_says_how_far_off_it_may_be() -> None:
    problem = PlacementProblem(layout=ParallelLayout(dp=10, tp=4, pp=4), tree=sixty_four())
    hasty, patient = placed(problem, time_limit_s=0.0), placed(problem)
    assert hasty.cost_s is not None
    assert patient.cost_s is not None
    assert hasty.bound_s is not None
    assert hasty.bound_s <= patient.cost_s <= hasty.cost_s
    assert hasty.gap_ratio is not None
    assert hasty.gap_ratio > 0


def test_a_seed_gives_the_same_placement_whatever_the_order_of_nodes() -> None:
    problem = PlacementProblem(layout=ParallelLayout(dp=12, tp=4, pp=2), tree=sixty_four())
    shuffled = list(problem.tree.nodes)
    random.Random(1).shuffle(shuffled)
    again = replace(problem, tree=replace(problem.tree, nodes=tuple(shuffled)))
    assert placed(problem, seed=4) == placed(again, seed=4)


def test_pipelines_stay_in_racks_where_that_is_required_though_replicas_then_do_not() -> None:
    """Two racks of two nodes: stages that follow their numbers would put both pipelines over both racks."""
    problem = PlacementProblem(
        layout=ParallelLayout(dp=2, tp=8, pp=2), tree=fleet(4, nodes_per_rack=2),
        wishes=(PlacementWish(group=RankGroup.PP, level="rack", required=True),),
    )  # fmt: skip
    assert placed(problem).placement.nodes == ("n0000", "n0002", "n0001", "n0003")


def test_a_gang_whose_groups_find_no_domain_is_refused_with_the_wish_to_drop() -> None:
    wishes = (
        PlacementWish(group=RankGroup.DP, level="rack", required=True),
        PlacementWish(group=RankGroup.TP, level="node", required=True),
    )
    problem = PlacementProblem(layout=ParallelLayout(dp=4, tp=8), tree=fleet(4, nodes_per_rack=2), wishes=wishes)
    result = place(problem)
    assert isinstance(result, NotPlaced)
    assert result.summary == (
        "cannot place a gang of 32 ranks with each dp group in one rack and each tp group in one node: 32 fit in the "
        "fleet, but not so"
    )
    assert result.relaxation == "allow level 'block' instead of 'rack' for dp groups"
    wider = replace(wishes[0], level="block")
    assert isinstance(place(replace(problem, wishes=(wider, wishes[1]))), Placed)


def test_a_fleet_without_room_is_refused_as_by_any_solver() -> None:
    problem = PlacementProblem(layout=ParallelLayout(dp=9, tp=8), tree=fleet(8))
    assert place(problem) == BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
