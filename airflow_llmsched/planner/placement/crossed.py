"""Pipelines that lie inside domains while replicas do not, on nodes that take unequally many ranks. Pure.

Each node has ranks of one stage; a domain of the level that holds pipelines whole has as many of one stage as of any
other. So its nodes are shared out to the stages, and every way to do so is kept that no other beats. That takes time
with the ranks of a stage to the power of stages: this is for small fleets and gangs. Axes: K = cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.planner.layout_table import FloatArray
from airflow_llmsched.planner.placement.feasible import NodeTable
from airflow_llmsched.planner.placement.rank_map import Share
from airflow_llmsched.planner.placement.score import Scorer

MAX_NODES = 12
MAX_STATES = 1000
"""Numbers of ranks that stages could have at the same time, at most, for it to be worth the time."""

Stages = tuple[tuple[Share, ...], ...]
"""Of each stage, its nodes and their ranks, in the order of their paths."""

_Way = tuple[tuple[float, ...], Stages]
_Ways = dict[tuple[int, ...], list[_Way]]
"""By the ranks of each stage: what ways to have them cost, and the ways."""


def is_small(table: NodeTable, layout: ParallelLayout) -> bool:
    """Whether pipelines can be shared out on all nodes of a table in a moment."""
    return int(np.count_nonzero(table.capacity_N)) <= MAX_NODES and is_small_gang(layout)


def is_small_gang(layout: ParallelLayout) -> bool:
    """Whether there are replicas and pipelines, and few enough of them to be shared out in a moment."""
    return min(layout.pp, layout.dp) > 1 and (layout.dp + 1) ** layout.pp <= MAX_STATES


def cheapest_crossed(scorer: Scorer, problem: PlacementProblem) -> Iterator[tuple[Share, ...]]:
    """Yield, for each level that may hold pipelines whole, the shares whose sums are least, in the order of ranks.

    None where the gang or the fleet is not small, or there are no pipelines or no replicas.
    """
    layout = problem.layout
    if not is_small(scorer.table, layout):
        return
    sums, domain_LN = scorer.sums, scorer.table.domain_LN
    crossing = Crossing(
        table=scorer.table,
        layout=layout,
        touched_K=lambda depth, node: sums.touched_s[depth][domain_LN[depth, node]][None],
        rank_K=lambda node: sums.rank_s_N[node][None],
        unbeaten=lambda costs_CK: [int(np.argmin(costs_CK[:, 0]))],
    )
    yield from crossing.all_shares(problem.required_level)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crossing:
    """Shares pipelines out. ``unbeaten`` says which of some costs none of the others beats, by index."""

    table: NodeTable
    layout: ParallelLayout
    touched_K: Callable[[int, int], FloatArray]
    rank_K: Callable[[int], FloatArray]
    unbeaten: Callable[[FloatArray], Sequence[int]]

    def all_shares(self, required_level: str | None) -> Iterator[tuple[Share, ...]]:
        """Yield shares in the order of ranks: for each level, those where each of its domains holds pipelines whole.

        The gang stays inside one domain of the required level.
        """
        required = None if required_level is None else self.table.depth(required_level)
        for within in self.table.domains(required, self.table.capacity_N > 0):
            for depth in range(len(self.table.levels) - 1):
                yield from self._shares(depth, within.tolist())

    def _shares(self, depth: int, within: Sequence[int]) -> Iterator[tuple[Share, ...]]:
        size = self.layout.dp * self.layout.cp * self.layout.tp
        whole: _Ways = self._nothing
        for nodes in self._inside(-1, within):
            whole = self._with(whole, self._closed(0, nodes, depth))
        for _, stages in whole.get((size,) * self.layout.pp, ()):
            yield tuple(share for stage in stages for share in stage)

    @property
    def _nothing(self) -> _Ways:
        num_costs, num_stages = len(self.rank_K(0)), self.layout.pp
        return {(0,) * num_stages: [((0.0,) * num_costs, ((),) * num_stages)]}

    def _inside(self, depth: int, nodes: Sequence[int]) -> list[list[int]]:
        """Return nodes by domain of the next inner level."""
        together: dict[int, list[int]] = {}
        for node in nodes:
            together.setdefault(int(self.table.domain_LN[depth + 1, node]), []).append(node)
        return list(together.values())

    def _closed(self, at: int, nodes: Sequence[int], depth: int) -> _Ways:
        """Return what a domain at a depth can have, with what it costs to touch it."""
        last = len(self.table.levels) - 1
        ways = self._nothing
        if at == last:
            ways = self._of_node(nodes[0])
        else:
            for each in self._inside(at, nodes):
                ways = self._with(ways, self._closed(at + 1, each, depth))
        even = {key: found for key, found in ways.items() if at > depth or len(set(key)) == 1}
        touched_K = self.touched_K(at, nodes[0])
        return {
            key: [(tuple((np.array(costs) + touched_K).tolist()), stages) for costs, stages in found]
            if any(key)
            else found
            for key, found in even.items()
        }

    def _of_node(self, node: int) -> _Ways:
        unit, most = self.layout.tp * self.layout.cp, int(self.table.capacity_N[node])
        ways = self._nothing
        for stage in range(self.layout.pp):
            for ranks in range(unit, min(most, self.layout.dp * unit) + 1, unit):
                key = tuple(ranks if each == stage else 0 for each in range(self.layout.pp))
                stages = tuple(((node, ranks),) if each == stage else () for each in range(self.layout.pp))
                ways[key] = [(tuple((ranks * self.rank_K(node)).tolist()), stages)]
        return ways

    def _with(self, one: _Ways, other: _Ways) -> _Ways:
        most = self.layout.dp * self.layout.cp * self.layout.tp
        found: _Ways = {}
        for key, ways in one.items():
            for more, others in other.items():
                together = tuple(a + b for a, b in zip(key, more, strict=True))
                if max(together) <= most:
                    found.setdefault(together, []).extend(
                        (
                            tuple(a + b for a, b in zip(costs, extra, strict=True)),
                            tuple((*a, *b) for a, b in zip(stages, added, strict=True)),
                        )
                        for costs, stages in ways
                        for extra, added in others
                    )
        return {key: self._kept(ways) for key, ways in found.items()}

    def _kept(self, ways: list[_Way]) -> list[_Way]:
        return ways if len(ways) < 2 else [ways[index] for index in self.unbeaten(np.array([cost for cost, _ in ways]))]
