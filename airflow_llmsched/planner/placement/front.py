"""All that a gang may gain by giving something up: placements that no other beats in every objective. Pure.

For each way in which groups can lie (``reaches``), each domain keeps, for each number of ranks that it could take, the
shares of its nodes that no others beat; outer domains combine those of their inner ones. Axes: C = candidate, K = cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.placement import NotPlaced, Placement, PlacementProblem
from airflow_llmsched.domain.workload import ObjectiveWeights
from airflow_llmsched.planner.layout_table import FloatArray
from airflow_llmsched.planner.pareto import pareto_front, weighted_score
from airflow_llmsched.planner.placement.crossed import Crossing, is_small
from airflow_llmsched.planner.placement.feasible import largest_gang
from airflow_llmsched.planner.placement.fleet import can_place
from airflow_llmsched.planner.placement.rank_map import Share, map_ranks
from airflow_llmsched.planner.placement.reaches import Reach, Reaches, room_for
from airflow_llmsched.planner.placement.refusal import refuse, refuse_wishes
from airflow_llmsched.planner.placement.score import Score, Scorer

SUMS = ("price_s", "data_s", "fragments_s", "risk_s", "contention_s", "preference_s")
"""Terms of a score that are sums over nodes and domains."""

SAME_RATIO = 1e-9
"""Costs that differ by less, as a share of the best step, are equal: sums of the same numbers in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """One placement of a front. Its costs are in seconds of a step (``score``); all are better when smaller.

    Attributes:
        placement: where the ranks are.
        throughput_s: a step, with what others on its links add, and what preferred levels cost that are not kept.
        cost_s: the price.
        latency_s: a step, with the wait for data spread over the steps: what the run's end depends on.
        fairness_s: fragments left behind for others.
        reliability_s: what failures of the nodes cost.
    """

    placement: Placement
    throughput_s: float
    cost_s: float
    latency_s: float
    fairness_s: float
    reliability_s: float

    @property
    def costs_K(self) -> tuple[float, ...]:
        """All five, in the order of the objective's weights."""
        return self.throughput_s, self.cost_s, self.latency_s, self.fairness_s, self.reliability_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Placements none of which beats another, the fastest step first; ``is_complete``: no placement is missing."""

    trade_offs: tuple[TradeOff, ...]
    is_complete: bool

    def best(self, weights: ObjectiveWeights) -> TradeOff:
        """Return the one with the lowest weighted mean of costs, each as a multiple of the front's best."""
        costs_CK = np.array([each.costs_K for each in self.trade_offs])
        names = ("throughput", "cost", "latency", "fairness", "reliability")
        score_C = weighted_score([(getattr(weights, name), costs_CK[:, k]) for k, name in enumerate(names)])
        return self.trade_offs[int(np.argmin(score_C))]


def placement_front(problem: PlacementProblem, *, max_options: int = 64) -> Front | NotPlaced:
    """Return the front of one gang's placements.

    Args:
        problem: the gang, whatever its weights.
        max_options: for each number of ranks, how many ways a domain keeps to take them: the best of each objective and
            those with the lowest sums. Where there were more, the front is not complete. It takes time with its square.

    Raises:
        ValueError: a level does not exist in the tree.
        KeyError: the accelerator lacks the number format that the workload computes in.
    """
    scorer = Scorer(replace(problem, weights=ObjectiveWeights(cost=1, fairness=1, reliability=1)))
    if largest_gang(scorer.table, problem.required_level) < problem.layout.world_size:
        return refuse(problem, scorer.table)
    search = _Search(scorer=scorer, max_options=max_options, world_size=problem.layout.world_size)
    found: dict[tuple[Share, ...], Score] = {}
    for reach in Reaches(problem=problem, scorer=scorer).cheapest_first():
        if room_for(scorer.table, reach) >= problem.layout.world_size:
            for shares in search.shares(reach):
                if shares not in found and (score := _allowed_score(scorer, shares)) is not None:
                    found[shares] = score
    for shares in search.crossed(problem):
        if shares not in found and (score := _allowed_score(scorer, shares)) is not None:
            found[shares] = score
    if not found:
        return refuse_wishes(problem, fits=can_place)
    trade_offs = [_trade_off(scorer, shares, score) for shares, score in found.items()]
    costs_CK = _rounded(scorer, np.array([each.costs_K for each in trade_offs]))
    return Front(
        trade_offs=tuple(trade_offs[index] for index in pareto_front(costs_CK).tolist()),
        is_complete=search.is_complete,
    )


def objectives(score: Score) -> tuple[float, ...]:
    """Return what a placement of this score costs in each objective: throughput, cost, latency, fairness, reliability.

    Energy is left out: the same accelerators draw much the same wherever they are.
    """
    step_s = score.step_s + score.contention_s + score.preference_s
    return step_s, score.price_s, step_s + score.data_s, score.fragments_s, score.risk_s


def _allowed_score(scorer: Scorer, shares: Sequence[Share]) -> Score | None:
    placement = map_ranks(scorer.table, shares)
    nodes_P, ranks_P = scorer.positions(placement)
    return scorer.score(placement) if scorer.keeps_required(scorer.depths(nodes_P, ranks_P)) else None


def _trade_off(scorer: Scorer, shares: Sequence[Share], score: Score) -> TradeOff:
    throughput_s, cost_s, latency_s, fairness_s, reliability_s = objectives(score)
    return TradeOff(
        placement=map_ranks(scorer.table, shares),
        throughput_s=throughput_s,
        cost_s=cost_s,
        latency_s=latency_s,
        fairness_s=fairness_s,
        reliability_s=reliability_s,
    )


def _rounded(scorer: Scorer, costs_CK: FloatArray) -> FloatArray:
    unit_s = SAME_RATIO * scorer.base_s
    return np.asarray(np.round(costs_CK / unit_s) * unit_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Ways of one domain to take one number of ranks: what each costs, and its nodes' shares."""

    costs_CK: FloatArray
    shares: tuple[tuple[Share, ...], ...]


_ByRanks = dict[int, _Options]
_NOTHING: _ByRanks = {0: _Options(costs_CK=np.zeros((1, len(SUMS))), shares=((),))}


@dataclass(slots=True, kw_only=True)
class _Search:
    scorer: Scorer
    max_options: int
    world_size: int
    is_complete: bool = True

    def shares(self, reach: Reach) -> Iterable[tuple[Share, ...]]:
        """Return shares in the order of ranks, of all ways to lie like this that no other beats in every sum."""
        table = self.scorer.table
        inner = {
            node: self._node(reach, node) for node in np.flatnonzero(table.capacity_N >= reach.multiples_L[-1]).tolist()
        }
        for depth in reversed(range(len(table.levels) - 1)):
            outer: dict[int, _ByRanks] = {}
            first: dict[int, int] = {}
            for node, options in inner.items():
                domain = int(table.domain_LN[depth, node])
                first.setdefault(domain, node)
                outer[domain] = self._together(outer.get(domain, _NOTHING), options)
            inner = {first[domain]: self._closed(reach, depth, first[domain], each) for domain, each in outer.items()}
        whole = _NOTHING
        for options in inner.values():
            whole = self._together(whole, options)
        found = whole[self.world_size].shares if self.world_size in whole else ()
        return [self._in_rank_order(reach, each) for each in found]

    def crossed(self, problem: PlacementProblem) -> Iterator[tuple[Share, ...]]:
        """Yield shares where pipelines lie inside domains and replicas do not, on nodes with unequal shares.

        Where there are too many to look at, the front is not called complete.
        """
        if min(problem.layout.pp, problem.layout.dp) == 1:
            return
        if not is_small(self.scorer.table, problem.layout):
            self.is_complete = False
            return
        terms = [self.scorer.terms[name] for name in SUMS]
        domain_LN = self.scorer.table.domain_LN
        crossing = Crossing(
            table=self.scorer.table,
            layout=problem.layout,
            touched_K=lambda depth, node: np.array([each.touched_s[depth][domain_LN[depth, node]] for each in terms]),
            rank_K=lambda node: np.array([each.rank_s_N[node] for each in terms]),
            unbeaten=lambda costs_CK: pareto_front(_rounded(self.scorer, costs_CK)).tolist(),
        )
        yield from crossing.all_shares(problem.required_level)

    def _in_rank_order(self, reach: Reach, shares: tuple[Share, ...]) -> tuple[Share, ...]:
        order = reach.numbering.in_rank_order(np.arange(len(shares)))
        return tuple(shares[index] for index in order.tolist())

    def _node(self, reach: Reach, node: int) -> _ByRanks:
        multiple, last = reach.multiples_L[-1], len(self.scorer.table.levels) - 1
        room = multiple if reach.numbering.node_ranks else int(self.scorer.table.capacity_N[node])
        terms = [self.scorer.terms[name] for name in SUMS]
        rank_K = np.array([float(each.rank_s_N[node]) for each in terms])
        takes = {
            ranks: _Options(costs_CK=(ranks * rank_K)[None], shares=(((node, ranks),),))
            for ranks in range(multiple, min(room, self.world_size) + 1, multiple)
        }
        return self._closed(reach, last, node, {**_NOTHING, **takes})

    def _closed(self, reach: Reach, depth: int, node: int, options: _ByRanks) -> _ByRanks:
        """Keep the numbers of ranks that a domain may take, and charge it for taking any."""
        table = self.scorer.table
        least = reach.fewest if depth == self.scorer.joined_depth else 1
        touched_K = np.array(
            [float(self.scorer.terms[name].touched_s[depth][table.domain_LN[depth, node]]) for name in SUMS]
        )
        return {
            ranks: _Options(costs_CK=each.costs_CK + touched_K, shares=each.shares) if ranks else each
            for ranks, each in options.items()
            if ranks == 0 or (ranks % reach.multiples_L[depth] == 0 and ranks >= least)
        }

    def _together(self, one: _ByRanks, other: _ByRanks) -> _ByRanks:
        """Combine each way of one domain with each of another."""
        parts: dict[int, list[tuple[_Options, _Options]]] = {}
        for ranks, options in one.items():
            for more, others in other.items():
                if ranks + more <= self.world_size:
                    parts.setdefault(ranks + more, []).append((options, others))
        return {ranks: self._unbeaten(pairs) for ranks, pairs in parts.items()}

    def _unbeaten(self, pairs: list[tuple[_Options, _Options]]) -> _Options:
        costs = [(a.costs_CK[:, None] + b.costs_CK[None]).reshape(-1, len(SUMS)) for a, b in pairs]
        costs_CK = _rounded(self.scorer, np.concatenate(costs))
        kept = pareto_front(costs_CK) if len(costs_CK) > 1 else np.zeros(1, dtype=np.int64)
        if len(kept) > self.max_options:
            self.is_complete = False
            best = np.argmin(costs_CK[kept], axis=0)
            by_sum = np.argsort(costs_CK[kept].sum(axis=1), kind="stable")
            kept = kept[list(dict.fromkeys([*best.tolist(), *by_sum.tolist()]))[: self.max_options]]
        sizes = np.cumsum([0, *map(len, costs)])
        shares = []
        for index in kept.tolist():
            pair = int(np.searchsorted(sizes, index, side="right")) - 1
            a, b = pairs[pair]
            i, j = divmod(index - int(sizes[pair]), len(b.shares))
            shares.append((*a.shares[i], *b.shares[j]))
        return _Options(costs_CK=costs_CK[kept], shares=tuple(shares))
