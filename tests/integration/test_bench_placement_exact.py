"""The rows of the placement bench that go by the optimum, on fewer instances than ``make bench-placement`` takes."""

from __future__ import annotations

from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.placement.fleet import FleetSolver
from tests.bench.placement_exact import instances, rows


def test_the_fleet_solver_reaches_the_bars_and_best_fit_is_told_apart() -> None:
    solvers = {"fleet": FleetSolver(), "bestfit": BestFitSolver()}
    mean, worst, proven, fronts = rows(solvers, default="fleet", num_instances=10, num_fronts=8, seed=3)
    assert mean.reached, mean
    assert worst.reached, worst
    assert fronts.reached, fronts
    assert proven.value == 100.0
    assert mean.reference["bestfit"] > 1.0


def test_instances_are_the_same_for_a_seed_and_ask_many_things() -> None:
    drawn = list(instances(num_instances=60, seed=1))
    assert drawn == list(instances(num_instances=60, seed=1))
    assert {each.preferred_level for each in drawn} == {None, "rack", "block"}
    assert {each.workload is None for each in drawn} == {True, False}
    assert len({each.layout for each in drawn}) > 20
