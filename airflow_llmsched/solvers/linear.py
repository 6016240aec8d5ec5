"""The linear part of a placement for CP-SAT: how many ranks each node takes, where groups may only lie in one way.

Axes: L = level, nodes last; D = domain of a level; N = node of the table.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from ortools.sat.python import cp_model

from airflow_llmsched.planner.placement.rank_map import Share
from airflow_llmsched.planner.placement.reaches import Reach
from airflow_llmsched.planner.placement.score import Scorer

UNITS_PER_STEP = 10**9
"""CP-SAT reckons in whole numbers: seconds of the best step, in these."""

WORK_PER_S = 0.1
"""What a second of one core gets done in CP-SAT's own measure of work, which depends on nothing else: measured here."""

CLOCK_FACTOR = 10.0
"""How many times its limit, which counts work, a solution may take by the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known of one way to lie.

    ``shares`` are of its cheapest placement that was found, nodes in the order of their paths; none where there is none
    that costs less than was asked for. No placement costs less than ``bound_s``.
    """

    shares: tuple[Share, ...]
    bound_s: float
    work_s: float


class LinearModel:
    """All placements that lie in one way, with what they cost besides."""

    def __init__(self, scorer: Scorer, reach: Reach, *, world_size: int) -> None:
        self._table, self._sums, self._reach = scorer.table, scorer.sums, reach
        self._world_size = world_size
        self._joined_depth = scorer.joined_depth
        self._units_per_s = UNITS_PER_STEP / scorer.base_s
        self._model = cp_model.CpModel()
        self._taken: list[tuple[list[int], list[tuple[int, cp_model.IntVar]]]] = []
        self._costs: list[cp_model.LinearExprT] = []
        self._num_rounded = 0
        self._build()

    def solve(self, *, below_s: float, work_limit_s: float, seed: int) -> Answer:
        """Look for the cheapest placement that costs less than ``below_s``."""
        fixed_s = self._reach.cost_s + self._sums.constant_s
        total = cp_model.LinearExpr.sum(self._costs)
        slack_s = self._num_rounded / 2 / self._units_per_s
        if below_s < math.inf:
            self._model.add(total <= math.ceil((below_s - fixed_s + slack_s) * self._units_per_s))
        self._model.minimize(total)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1  # with more, who is first would decide
        solver.parameters.random_seed = seed % 2**31
        solver.parameters.linearization_level = 2  # hundreds of nodes: seconds with it, minutes and more without
        solver.parameters.max_deterministic_time = WORK_PER_S * max(work_limit_s, 0.0)
        solver.parameters.max_time_in_seconds = CLOCK_FACTOR * max(work_limit_s, 0.0)
        status = solver.solve(self._model)
        work_s = solver.response_proto.deterministic_time / WORK_PER_S
        if status == cp_model.INFEASIBLE:
            return Answer(shares=(), bound_s=below_s, work_s=work_s)
        if status == cp_model.UNKNOWN:
            return Answer(shares=(), bound_s=self._reach.cost_s, work_s=work_s)
        return Answer(
            shares=tuple(sorted(self._shares(solver))),
            bound_s=min(below_s, fixed_s + solver.best_objective_bound / self._units_per_s - slack_s),
            work_s=work_s,
        )

    def _shares(self, solver: cp_model.CpSolver) -> Iterator[Share]:
        """Yield what each node takes: of alike ones the first take most."""
        for nodes, numbers in self._taken:
            takes = [ranks for ranks, number in reversed(numbers) for _ in range(solver.value(number))]
            yield from zip(nodes, takes, strict=False)

    def _build(self) -> None:
        last = len(self._table.levels) - 1
        alike: dict[Hashable, list[int]] = {}
        for node in np.flatnonzero(self._table.capacity_N >= self._reach.multiples_L[-1]).tolist():
            parent = int(self._table.domain_LN[last - 1, node]) if last else 0
            alike.setdefault((parent, self._kind(node)), []).append(node)
        inner = [self._nodes(nodes) for nodes in alike.values()]
        for depth in reversed(range(last)):
            inside: dict[int, list[_Domain]] = {}
            for domain in inner:
                inside.setdefault(int(self._table.domain_LN[depth, domain.first_node]), []).append(domain)
            inner = [self._domain(depth, those) for those in inside.values()]
        self._order_alike(inner)
        self._model.add(cp_model.LinearExpr.sum([each.ranks for each in inner]) == self._world_size)

    def _kind(self, node: int) -> tuple[int, float, float]:
        """What a node may take and costs: nodes of one kind in one domain differ in name only."""
        most = int(self._table.capacity_N[node]) // self._reach.multiples_L[-1]
        most = min(most, 1) if self._reach.numbering.node_ranks else most
        return most, float(self._sums.rank_s_N[node]), self._touched_s(len(self._table.levels) - 1, node)

    def _nodes(self, nodes: list[int]) -> _Domain:
        """Let alike nodes take multiples of what they may: so many of them each number that is worth considering.

        Ranks that move from one to the other until it is full or that empty cost nothing, so that but one is in part.
        """
        last, multiple = len(self._table.levels) - 1, self._reach.multiples_L[-1]
        most, rank_s, touched_s = self._kind(nodes[0])
        least = 1 if self._joined_depth < last else -(-self._reach.fewest // multiple)
        takes = range(least, most + 1)
        numbers = [
            self._model.new_int_var(0, len(nodes) if taken == most or least > 1 else 1, f"{taken} of node {nodes[0]}")
            for taken in takes
        ]
        if least == 1:
            self._model.add_at_most_one(numbers[:-1])
        for taken, number in zip(takes, numbers, strict=True):
            self._charge(taken * multiple * rank_s + touched_s, number, len(nodes))
        self._model.add(cp_model.LinearExpr.sum(numbers) <= len(nodes))
        self._taken.append((nodes, [(taken * multiple, number) for taken, number in zip(takes, numbers, strict=True)]))
        ranks = cp_model.LinearExpr.weighted_sum(numbers, [taken * multiple for taken in takes])
        room = len(nodes) * most * multiple if numbers else 0
        return _Domain(first_node=nodes[0], room=room, ranks=ranks, alike=(len(nodes), most, rank_s, touched_s))

    def _domain(self, depth: int, inside: list[_Domain]) -> _Domain:
        """Let a domain take a multiple of what it may, out of the domains inside; charge it if it takes any."""
        self._order_alike(inside)
        first, multiple = inside[0].first_node, self._reach.multiples_L[depth]
        most = sum(each.room for each in inside) // multiple
        ranks = cp_model.LinearExpr.sum([each.ranks for each in inside])
        if multiple > self._reach.multiples_L[depth + 1]:
            number = self._model.new_int_var(0, most, f"level {depth} of node {first}")
            self._model.add(ranks == multiple * number)
        cost_s = self._touched_s(depth, first)
        least = max(multiple, self._reach.fewest) if depth == self._joined_depth else multiple
        is_touched = self._model.new_bool_var(f"touched {depth} of node {first}")
        self._model.add(ranks <= most * multiple * is_touched)
        self._model.add(ranks >= least * is_touched)
        self._charge(cost_s, is_touched, 1)
        kinds = tuple(sorted((each.alike for each in inside), key=repr))
        return _Domain(first_node=first, room=most * multiple, ranks=ranks, alike=(kinds, cost_s))

    def _touched_s(self, depth: int, node: int) -> float:
        return float(self._sums.touched_s[depth][self._table.domain_LN[depth, node]])

    def _charge(self, cost_s: float, number: cp_model.IntVar, most: int) -> None:
        units = round(cost_s * self._units_per_s)
        if units:
            self._costs.append(units * number)
        self._num_rounded += most

    def _order_alike(self, domains: list[_Domain]) -> None:
        """Of domains that differ in name only, let the first take most: no other order is worth looking at."""
        alike: dict[Hashable, list[_Domain]] = {}
        for domain in domains:
            alike.setdefault(domain.alike, []).append(domain)
        for same in alike.values():
            for one, next_one in pairwise(same):
                self._model.add(one.ranks >= next_one.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Domain:
    """A domain while the model is built: its first node, the most ranks it may take, and what makes two alike."""

    first_node: int
    room: int
    ranks: cp_model.LinearExprT
    alike: Hashable
