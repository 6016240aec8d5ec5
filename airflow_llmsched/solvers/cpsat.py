"""Exact gang placement with OR-Tools' CP-SAT: the cheapest placement there is, or how far from it one may be.

The cost (``planner.placement.score``) is a step that depends on how far groups reach, and sums over nodes and domains.
So for each of the few ways in which groups can lie (``planner.placement.reaches``) the rest is a linear problem over
whole numbers, which CP-SAT solves; the cheapest of all is the answer. Ways that cost more by themselves than the best
placement so far are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.planner.placement.crossed import cheapest_crossed
from airflow_llmsched.planner.placement.feasible import NodeTable, largest_gang
from airflow_llmsched.planner.placement.fleet import FleetSolver, can_place
from airflow_llmsched.planner.placement.rank_map import Share, map_ranks, num_domains
from airflow_llmsched.planner.placement.reaches import Reach, Reaches, room_for
from airflow_llmsched.planner.placement.refusal import refuse, refuse_wishes
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.solvers.linear import LinearModel

SUMS_SHARE = 0.3
"""Share of the time for finding what everything but the step costs at least: it saves looking at most other ways."""


class ExactSolver:
    """Finds the cheapest placement, or the cheapest that it can in time and how far from the cheapest it may be.

    For up to some 512 nodes. The answer is never worse than the fleet solver's, which it begins with.
    """

    def place(self, problem: PlacementProblem, *, time_limit_s: float, seed: int) -> Placed | NotPlaced:
        """Return a placement with its ``cost_s`` and ``bound_s``: equal where it is proven that none costs less.

        ``time_limit_s`` counts seconds of one core by CP-SAT's own measure of work, so that answers do not depend on
        what else the machine does; only beyond ten times as long by the clock do they.

        Raises:
            ValueError: a level does not exist in the tree.
            KeyError: the accelerator lacks the number format that the workload computes in.
        """
        table = NodeTable.of(problem.tree, group_size=problem.layout.tp, excluded=problem.excluded)
        search = _Search(problem=problem, scorer=Scorer(problem, table), work_left_s=time_limit_s, seed=seed)
        if largest_gang(table, problem.required_level) < problem.layout.world_size:
            return refuse(problem, table)
        rough = FleetSolver().place(problem, time_limit_s=time_limit_s, seed=seed)
        if isinstance(rough, Placed):
            nodes_P, ranks_P = search.scorer.positions(rough.placement)
            search.consider(list(zip(nodes_P.tolist(), ranks_P.tolist(), strict=True)))
        for shares in cheapest_crossed(search.scorer, problem):
            search.consider(shares)
        bound_s = search.run()
        if not search.shares:
            return refuse_wishes(problem, fits=can_place)
        return Placed(
            placement=map_ranks(table, search.shares),
            num_domains=num_domains(table, search.shares, None),
            cost_s=search.cost_s,
            bound_s=min(bound_s, search.cost_s),
        )


@dataclass(slots=True, kw_only=True)
class _Search:
    """Goes through the ways to lie, the cheapest first, until none can beat the best placement: ``shares``."""

    problem: PlacementProblem
    scorer: Scorer
    work_left_s: float
    seed: int
    shares: tuple[Share, ...] = ()
    cost_s: float = math.inf

    def run(self) -> float:
        """Return what no placement costs less than."""
        ways = Reaches(problem=self.problem, scorer=self.scorer).cheapest_first()
        world_size = self.problem.layout.world_size
        open_ways = [each for each in ways if room_for(self.scorer.table, each) >= world_size]
        if not open_ways or open_ways[0].cost_s >= self.cost_s:
            return self.cost_s  # no sum of a score is below zero
        loosest = min(open_ways, key=lambda each: (*reversed(each.multiples_L), each.fewest))
        least_s = self._solve(loosest, below_s=math.inf, work_limit_s=SUMS_SHARE * self.work_left_s)
        least_sums_s = max(0.0, least_s - loosest.cost_s)
        bound_s = math.inf
        for way in open_ways:
            if way.cost_s + least_sums_s >= self.cost_s:
                return min(bound_s, way.cost_s + least_sums_s)
            bound_s = min(
                bound_s,
                max(self._solve(way, below_s=self.cost_s, work_limit_s=self.work_left_s), way.cost_s + least_sums_s),
            )
        return bound_s

    def consider(self, shares: Sequence[Share]) -> None:
        """Keep a placement, its nodes in the order of ranks, if it is allowed and the cheapest so far."""
        nodes_P = np.array([node for node, _ in shares], dtype=np.int64)
        ranks_P = np.array([taken for _, taken in shares], dtype=np.int64)
        if self.scorer.keeps_required(self.scorer.depths(nodes_P, ranks_P)):
            cost_s = self.scorer.total_s(nodes_P, ranks_P)
            if cost_s < self.cost_s:
                self.shares, self.cost_s = tuple(shares), cost_s

    def _solve(self, way: Reach, *, below_s: float, work_limit_s: float) -> float:
        """Return what no placement that lies so costs less than, having considered the cheapest that was found."""
        model = LinearModel(self.scorer, way, world_size=self.problem.layout.world_size)
        answer = model.solve(below_s=below_s, work_limit_s=work_limit_s, seed=self.seed)
        self.work_left_s -= answer.work_s
        if answer.shares:
            order = way.numbering.in_rank_order(np.arange(len(answer.shares)))
            self.consider([answer.shares[index] for index in order.tolist()])
        return answer.bound_s
