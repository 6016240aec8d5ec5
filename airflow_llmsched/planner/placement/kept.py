"""Levels required of kinds of groups, for solvers that do not look at groups: they hold all the same. Pure."""

from __future__ import annotations

from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.placement.wishes import domain_of_rank_R, num_split_groups


def with_groups_kept(
    problem: PlacementProblem, placed: Placed, *, time_limit_s: float, seed: int
) -> Placed | NotPlaced:
    """Return a placement unless groups leave a level in it that is required of them.

    Then return what the fleet solver, which knows the ways to keep groups together, makes of the problem.
    """
    if not any(
        num_split_groups(
            problem.layout, domain_of_rank_R(placed.placement, problem.tree, level=wish.level), group=wish.group
        )
        for wish in problem.wishes
        if wish.required
    ):
        return placed
    return FleetSolver().place(problem, time_limit_s=time_limit_s, seed=seed)
