"""Improves a gang's shares by small changes, as long as the score falls. Pure: chance comes as a seed.

Three changes are tried: another node takes a node's ranks, two nodes change places in the order of ranks, and so do two
runs of as many nodes, as pipeline stages are. Axis: P = node of the gang in the order of its ranks.
"""

from __future__ import annotations

import random

import numpy as np

from airflow_llmsched.planner.layout_table import BoolArray
from airflow_llmsched.planner.placement.cheapest import Shares
from airflow_llmsched.planner.placement.score import Scorer

PATIENCE = 150
"""Changes in a row that may bring nothing before the search ends."""

SECONDS_PER_LOOK = 1.5e-4
SECONDS_PER_RANK = 4e-8
"""What scoring took where it was measured, to turn a limit of time into one of changes: so a seed and a limit always
give the same answer, however busy the machine is."""


def num_changes(scorer: Scorer, world_size: int, time_limit_s: float) -> int:
    """Return how many changes may be tried within a limit of time."""
    one_s = SECONDS_PER_LOOK + SECONDS_PER_RANK * world_size * (len(scorer.step.groups) + 1) * len(scorer.table.levels)
    return int(max(time_limit_s, 0.0) / one_s)


def improve(
    scorer: Scorer,
    shares: Shares,
    *,
    within_N: BoolArray,
    order_ratio: float,
    max_changes: int,
    seed: int,
) -> tuple[float, Shares]:
    """Return the best shares found from ``shares`` on, on nodes ``within_N``, and their score.

    A change of the order alone must bring ``order_ratio`` of the score.
    """
    chance = random.Random(seed)  # noqa: S311 - a draw to repeat, not a secret
    search = _Search(scorer, shares, within_N, order_ratio, chance)
    since_last = 0
    for _ in range(max_changes):
        since_last = 0 if search.step() else since_last + 1
        if since_last >= PATIENCE:
            break
    return search.score_s, Shares(search.nodes_P, search.ranks_P)


class _Search:
    def __init__(
        self, scorer: Scorer, shares: Shares, within_N: BoolArray, order_ratio: float, chance: random.Random
    ) -> None:
        self._scorer = scorer
        self._chance = chance
        self._within_N = within_N & (scorer.table.capacity_N > 0)
        self.nodes_P, self.ranks_P = shares
        self.score_s = scorer.total_s(*shares)
        nothing = 1e-12
        self._moves = [
            (self._replaced, nothing),
            (self._swapped, order_ratio + nothing),
            (self._runs_swapped, order_ratio + nothing),
        ]

    def step(self) -> bool:
        """Try one change; say whether it was for the better."""
        change, least_gain_ratio = self._chance.choice(self._moves)
        found = change()
        if found is None:
            return False
        score_s = self._allowed_s(found)
        if score_s is None or score_s >= self.score_s * (1 - least_gain_ratio):
            return False
        (self.nodes_P, self.ranks_P), self.score_s = found, score_s
        return True

    def _allowed_s(self, shares: Shares) -> float | None:
        scorer = self._scorer
        depths = scorer.depths(*shares)
        if not scorer.keeps_required(depths):
            return None
        sums_s = scorer.sums.total_s(scorer.table.domain_LN, *shares)
        return sums_s + scorer.reach_s(depths, fewest=scorer.fewest(*shares))

    def _replaced(self) -> Shares | None:
        """A node outside the gang takes one's ranks: any, or one of those with the least cost of ranks."""
        place = self._chance.randrange(len(self.nodes_P))
        free_N = self._within_N & (self._scorer.table.capacity_N >= self.ranks_P[place])
        free_N[self.nodes_P] = False
        others = np.flatnonzero(free_N)
        if not others.size:
            return None
        sums, ranks = self._scorer.sums, int(self.ranks_P[place])
        if self._chance.random() < 0.5:
            cost_s = sums.touched_s[-1][others] + sums.rank_s_N[others] * ranks
            others = others[np.argsort(cost_s, kind="stable")[:4]]
        found_P = self.nodes_P.copy()
        found_P[place] = others[self._chance.randrange(len(others))]
        if not self._follows_tree:
            return Shares(found_P, self.ranks_P)
        order_P = np.argsort(found_P)
        return Shares(found_P[order_P], self.ranks_P[order_P])

    @property
    def _follows_tree(self) -> bool:
        return bool((np.diff(self.nodes_P) > 0).all())

    def _swapped(self) -> Shares | None:
        return self._exchanged(1)

    def _runs_swapped(self) -> Shares | None:
        longest = len(self.nodes_P) // 2
        return self._exchanged(self._chance.randint(2, longest)) if longest >= 2 else None

    def _exchanged(self, length: int) -> Shares | None:
        """Let two runs of nodes that do not overlap change places, each with its ranks."""
        num_nodes = len(self.nodes_P)
        if num_nodes < 2 * length:
            return None
        first = self._chance.randrange(num_nodes - 2 * length + 1)
        second = self._chance.randint(first + length, num_nodes - length)
        order_P = np.arange(num_nodes)
        order_P[first : first + length] += second - first
        order_P[second : second + length] += first - second
        return Shares(self.nodes_P[order_P], self.ranks_P[order_P])
