"""Gang placement at fleet scale: level by level under each way to keep groups together, then small changes. Pure.

Each regime (``regimes``) says how many ranks at a time the domains of each level take, and so what a step takes at
least. Under the promising ones the cheapest shares are found exactly where that is not too much work (``cheapest``),
and by best fit where it is (``fill``). What scores best is then improved by a seeded local search (``local_search``).
Limits of time become limits of work, so that an answer does not depend on how busy the machine is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
from airflow_llmsched.planner.layout_table import BoolArray
from airflow_llmsched.planner.placement.cheapest import Shares, cheapest_shares, num_operations
from airflow_llmsched.planner.placement.crossed import cheapest_crossed
from airflow_llmsched.planner.placement.feasible import NodeTable, largest_gang
from airflow_llmsched.planner.placement.fill import best_fit, dearness
from airflow_llmsched.planner.placement.fleet_index import FleetIndex
from airflow_llmsched.planner.placement.local_search import improve, num_changes
from airflow_llmsched.planner.placement.rank_map import map_ranks, num_domains
from airflow_llmsched.planner.placement.refusal import refuse, refuse_wishes
from airflow_llmsched.planner.placement.regimes import Regime, loosest, regimes, rooms
from airflow_llmsched.planner.placement.score import CostColumns, Scorer

OPERATIONS_PER_S = 4e8
"""Additions of the exact search in a second of one core, as measured."""

EXACT_SHARE = 0.4
"""Share of the time limit that exact searches may take; best fit and local search have the rest."""

SEARCH_SHARE = 0.3
"""Share of the time limit that the local search may take."""

ORDER_RATIO = 0.01
"""What another order than the usual one must bring, as a share of a step. In the usual one nodes follow the tree, so
that a ring enters and leaves each domain once: how often it does is not in the score, and counts where others use the
same uplinks. Found with the flow simulator of the placement bench."""

MAX_FEWEST = 6
"""Numbers of ranks that the emptiest domain of the fastest links may have, tried for one regime."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Case:
    """One regime with the fewest ranks in a domain of the fastest links, and what a gang costs then beside sums."""

    regime: Regime
    fewest: int
    least_s: float


class FleetSolver:
    """Chooses nodes and the order of ranks by the score (``score``). It refuses only what no placement satisfies.

    A required level of groups whose ranks are not numbered in a row, as pipelines', is tried with whole pipelines in a
    row on nodes with equal shares, of small gangs on any; of such a wish of a larger gang a refusal says that no
    placement was found, not that there is none.
    """

    def place(self, problem: PlacementProblem, *, time_limit_s: float, seed: int) -> Placed | NotPlaced:
        """Place by the score; with a ``time_limit_s`` of 0 by best fit alone, where no group has a required level.

        Raises:
            KeyError: the accelerator lacks the number format that the workload computes in.
            ValueError: a level does not exist in the tree.
        """
        table = NodeTable.of(problem.tree, group_size=problem.layout.tp, excluded=problem.excluded)
        found = _find(problem, table, None, time_limit_s=time_limit_s, seed=seed)
        if found is None:
            return _refusal(problem, table)
        return _placed(table, found)

    def place_in(
        self, index: FleetIndex, problem: PlacementProblem, *, time_limit_s: float, seed: int
    ) -> Placed | NotPlaced:
        """Place on what is free in ``index`` now, whatever the problem's tree and node costs say. Raises as above."""
        table = index.table(group_size=problem.layout.tp, excluded=problem.excluded)
        found = _find(problem, table, index.costs, time_limit_s=time_limit_s, seed=seed)
        if found is None:
            return _refusal(replace(problem, tree=index.tree_now()), table)
        return _placed(table, found)


def can_place(problem: PlacementProblem) -> bool:
    """Whether the fleet solver has a placement for a problem, the first one that it comes across."""
    table = NodeTable.of(problem.tree, group_size=problem.layout.tp, excluded=problem.excluded)
    return _find(problem, table, None, time_limit_s=0.0, seed=0) is not None


def _refusal(problem: PlacementProblem, table: NodeTable) -> NotPlaced:
    if largest_gang(table, problem.required_level) < problem.layout.world_size:
        return refuse(problem, table)
    return refuse_wishes(problem, fits=can_place)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Found:
    shares: Shares
    score_s: float | None


def _find(
    problem: PlacementProblem, table: NodeTable, costs: CostColumns | None, *, time_limit_s: float, seed: int
) -> _Found | None:
    for level in (problem.required_level, problem.preferred_level):
        if level is not None:
            table.depth(level)
    if int(table.capacity_N.sum()) < problem.layout.world_size:
        return None
    plain = loosest(problem, table)
    if time_limit_s <= 0 and plain is not None and not any(wish.required for wish in problem.wishes):
        fitted = best_fit(table, plain)
        return None if fitted is None else _Found(shares=fitted, score_s=None)
    scorer = Scorer(problem, table, costs)
    choice = _Choice(scorer, int(time_limit_s * EXACT_SHARE * OPERATIONS_PER_S))
    choice.go_through(list(regimes(problem, table, scorer.step.groups)))
    if choice.shares is None:
        return _crossed(scorer, problem)
    score_s, shares = scorer.total_s(*choice.shares), choice.shares
    if not choice.is_proven:
        within_N = _within(problem, table, choice.shares)
        changes = num_changes(scorer, problem.layout.world_size, time_limit_s * SEARCH_SHARE)
        score_s, shares = improve(
            scorer, choice.shares, within_N=within_N, order_ratio=ORDER_RATIO, max_changes=changes, seed=seed
        )
    return _Found(shares=shares, score_s=score_s)


def _crossed(scorer: Scorer, problem: PlacementProblem) -> _Found | None:
    """Share a small gang's pipelines out over nodes with unequal shares, which no regime does."""
    found = (Shares(*np.array(each, dtype=np.int64).T) for each in cheapest_crossed(scorer, problem))
    kept = [(scorer.total_s(*each), each) for each in found if scorer.keeps_required(scorer.depths(*each))]
    if not kept:
        return None
    score_s, shares = min(kept, key=lambda each: each[0])
    return _Found(shares=shares, score_s=score_s)


def _placed(table: NodeTable, found: _Found) -> Placed:
    pairs = list(zip(found.shares.nodes_P.tolist(), found.shares.ranks_P.tolist(), strict=True))
    return Placed(placement=map_ranks(table, pairs), num_domains=num_domains(table, pairs, None), cost_s=found.score_s)


def _within(problem: PlacementProblem, table: NodeTable, shares: Shares) -> BoolArray:
    """Return the nodes that the gang may move to."""
    if problem.required_level is None:
        return np.ones(len(table.ids), dtype=np.bool_)
    domain_N = table.domain_LN[table.depth(problem.required_level)]
    return np.asarray(domain_N == domain_N[shares.nodes_P[0]])


class _Choice:
    """The best shares so far, and the exact work that may still be done."""

    def __init__(self, scorer: Scorer, operations: int) -> None:
        self._scorer = scorer
        self._operations_left = operations
        self._least_s = np.inf
        self._fitted_ways: set[int] = set()
        self.shares: Shares | None = None
        self.is_proven = True
        """Whether no shares under any regime cost less: all that could were looked at exactly."""

    def go_through(self, ways: Sequence[Regime]) -> None:
        """Try ways to keep groups together, the fastest step first, until none can be better than what was found."""
        if not ways:
            return
        floor_s = self._floor_s(ways[0])
        for number, case in sorted(self._cases(ways), key=lambda each: (each[1].least_s, each[0], -each[1].fewest)):
            is_new = number not in self._fitted_ways
            if is_new:
                self._fitted_ways.add(number)
                self._fit(case.regime)
            if case.least_s + floor_s >= self._least_s:
                return
            self._try(case, is_new=is_new)

    def _cases(self, ways: Sequence[Regime]) -> list[tuple[int, _Case]]:
        pairs = [(number, way, fewest) for number, way in enumerate(ways) for fewest in self._fewest(way)]
        self._scorer.step.price((way.depths, fewest) for _, way, fewest in pairs)
        return [
            (number, _Case(regime=way, fewest=fewest, least_s=self._least_of(way, fewest)))
            for number, way, fewest in pairs
        ]

    def _least_of(self, way: Regime, fewest: int) -> float:
        return self._scorer.reach_s(way.depths, fewest=fewest) + self._order_s(way)

    def _order_s(self, way: Regime) -> float:
        return 0.0 if way.order.is_usual else ORDER_RATIO * self._scorer.base_s

    def _fewest(self, way: Regime) -> Iterator[int]:
        """Yield numbers of ranks that every domain of the fastest links could have, the largest first."""
        depth, world_size = self._scorer.joined_depth, way.order.world_size
        multiple = way.multiples[depth]
        room_D = rooms(self._scorer.table, way.multiples, max_on_node=way.max_on_node)[depth]
        possible = {min(room, world_size) // multiple * multiple for room in np.unique(room_D[room_D > 0]).tolist()}
        step = multiple
        while step <= max(possible, default=0):
            possible.add(step)
            step *= 2
        largest = sorted(possible, reverse=True)
        yield from largest if len(largest) <= MAX_FEWEST else (*largest[: MAX_FEWEST - 1], largest[-1])

    def _floor_s(self, way: Regime) -> float:
        """Return what the sums of a score are at least: those of the cheapest shares under the loosest regime."""
        found = self._exact(way, fewest=1)
        if found is None:
            return 0.0
        self._consider(way, found[1])
        return found[0]

    def _try(self, case: _Case, *, is_new: bool) -> None:
        found = self._exact(case.regime, fewest=case.fewest)
        if found is not None:
            self._consider(case.regime, found[1])
        if found is not None or not is_new:
            return
        dear = dearness(self._scorer.table, self._scorer.sums, case.regime)
        by_cost = best_fit(self._scorer.table, case.regime, dearness_LD=dear)
        if by_cost is not None:
            self._consider(case.regime, by_cost)

    def _fit(self, way: Regime) -> None:
        shares = best_fit(self._scorer.table, way)
        if shares is not None:
            self._consider(way, shares)

    def _exact(self, way: Regime, *, fewest: int) -> tuple[float, Shares] | None:
        """Return the cheapest shares, or None where there are none or it would be too much work to find them."""
        scorer = self._scorer
        operations = num_operations(scorer.table, way)
        if operations > self._operations_left:
            self.is_proven = False
            return None
        self._operations_left -= operations
        return cheapest_shares(scorer.table, scorer.sums, way, fewest=fewest, joined_depth=scorer.joined_depth)

    def _consider(self, way: Regime, shares: Shares) -> None:
        """Keep shares that are the best so far, unless they leave a level that is required."""
        in_order = _in_order(way, shares)
        if not self._scorer.keeps_required(self._scorer.depths(*in_order)):
            return
        cost_s = self._scorer.total_s(*in_order) + self._order_s(way)
        if cost_s < self._least_s:
            self.shares, self._least_s = in_order, cost_s


def _in_order(way: Regime, shares: Shares) -> Shares:
    """Return shares in the order of ranks."""
    if way.order.is_usual:
        return shares
    order = np.argsort(way.order.rank_P(np.cumsum(shares.ranks_P) - shares.ranks_P), kind="stable")
    return Shares(shares.nodes_P[order], shares.ranks_P[order])
