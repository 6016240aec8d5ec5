"""Replays traces of spot capacity, and of on-demand stock, under a policy and counts what it costs. Pure.

Axes: see ``rental`` and ``modes``; T = tick.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.market.modes import ModeSet
from airflow_llmsched.planner.market.rental import Holding, RentalChoice, RentalPolicy, RentalView
from airflow_llmsched.planner.market.values import SpotTerms

_DONE_S = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What became of each run. ``cost_s_N`` is in seconds of the plan's on-demand capacity."""

    cost_s_N: FloatArray
    in_time_N: BoolArray
    num_changeovers_N: IntArray
    num_moves_N: IntArray


def replay(
    up_ZT: BoolArray,
    *,
    tick_s: float,
    starts_N: IntArray,
    terms: SpotTerms,
    policy: RentalPolicy,
    trace_start_s: float | None = None,
    in_stock_T: BoolArray | None = None,
    modes: ModeSet | None = None,
) -> Replay:
    """Run one job from each tick of ``starts_N`` until its deadline. The trace must go on that long after each.

    A changeover is paid and does no work; one that is interrupted has to be done again, in full. ``trace_start_s`` is
    when the trace's first tick was (Unix seconds), where that is known. ``in_stock_T`` is whether on-demand capacity
    can be had (None: always); running out of it takes nothing away that is held. Without ``modes`` there is the plan
    only.
    """
    ways = modes or ModeSet.only(terms, num_pools=len(up_ZT))
    runs = _Runs(ways, terms, num_runs=len(starts_N))
    policy.begin(terms, num_runs=len(starts_N), num_pools=len(up_ZT))
    for tick in range(int(np.ceil(terms.time_s / tick_s - 1e-9))):
        left_s = terms.time_s - tick * tick_s
        up_ZN = up_ZT[:, starts_N + tick]
        runs.lose(up_ZN)
        view = RentalView(
            left_s=left_s,
            tick_s=min(tick_s, left_s),
            work_s_N=runs.work_s_N,
            overhead_s_N=runs.overhead_s_N,
            holding_N=runs.holding_N,
            pool_N=runs.pool_N,
            up_ZN=up_ZN,
            at_s_N=None if trace_start_s is None else np.asarray(trace_start_s + (starts_N + tick) * tick_s),
            in_stock_N=None if in_stock_T is None else in_stock_T[starts_N + tick],
            mode_N=None if modes is None else runs.mode_N,
        )
        runs.follow(policy.choose(view), view)
    return Replay(
        cost_s_N=runs.cost_s_N,
        in_time_N=runs.work_s_N <= _DONE_S,
        num_changeovers_N=runs.num_changeovers_N,
        num_moves_N=runs.num_moves_N,
    )


class _Runs:
    """How the runs stand. Every array is replaced, never changed, so that a policy may keep what it was shown."""

    def __init__(self, modes: ModeSet, terms: SpotTerms, *, num_runs: int) -> None:
        self._price_MH, self._speed_MH = modes.price_MH(), modes.speed_MH()
        self._duration_s_MM, self._cost_s_MM = modes.duration_s_MM(), modes.cost_s_MM()
        self._changeover_s_M = np.diag(self._duration_s_MM)
        self._runs_N = np.arange(num_runs)
        self.work_s_N: FloatArray = np.full(num_runs, terms.work_s)
        self.cost_s_N: FloatArray = np.zeros(num_runs)
        self.holding_N, self.pool_N, self.mode_N = np.zeros((3, num_runs), dtype=np.int64)
        self.num_changeovers_N, self.num_moves_N = np.zeros((2, num_runs), dtype=np.int64)
        self.overhead_s_N: FloatArray = self._start_of_base_s_N()

    def lose(self, up_ZN: BoolArray) -> None:
        """Take away spot capacity that has gone. What a mode keeps besides starts over by itself, with a changeover."""
        is_lost_N = (self.holding_N == Holding.SPOT) & ~up_ZN[self.pool_N, self._runs_N]
        self.holding_N = np.where(is_lost_N, Holding.NOTHING, self.holding_N)
        self.overhead_s_N = np.where(is_lost_N, self._start_of_base_s_N(), self.overhead_s_N)

    def follow(self, choice: RentalChoice, view: RentalView) -> None:
        """Do as chosen, where that is possible, for one tick."""
        mode_N = self.mode_N if choice.mode_N is None else choice.mode_N
        holding_N = self._possible_N(choice, view)
        is_refused_N = (holding_N != choice.holding_N) | (self.work_s_N <= _DONE_S)
        mode_N = np.where(is_refused_N, self.mode_N, mode_N)
        moves_N = mode_N != self.mode_N
        changes_pool_N = (holding_N == Holding.SPOT) & (self.holding_N == Holding.SPOT) & (choice.pool_N != self.pool_N)
        works_N = self._speed_MH[mode_N, holding_N] > 0
        starts_anew_N = works_N & ((holding_N != self.holding_N) | changes_pool_N | moves_N)
        start_s_N = np.where(moves_N, self._duration_s_MM[self.mode_N, mode_N], self._changeover_s_M[mode_N])
        self.overhead_s_N = np.where(starts_anew_N, start_s_N, np.where(works_N, self.overhead_s_N, 0.0))
        self.cost_s_N = self.cost_s_N + self._cost_s_MM[self.mode_N, mode_N]
        self.pool_N = np.where(holding_N == Holding.SPOT, choice.pool_N, self.pool_N)
        self.holding_N, self.mode_N = holding_N, mode_N
        self.num_changeovers_N = self.num_changeovers_N + starts_anew_N
        self.num_moves_N = self.num_moves_N + moves_N
        self._pass(view.tick_s, works_N)

    def _possible_N(self, choice: RentalChoice, view: RentalView) -> IntArray:
        """Return what is held then: spot that is gone is none, and refused on-demand capacity leaves what there is."""
        mode_N = self.mode_N if choice.mode_N is None else choice.mode_N
        is_gone_N = (choice.holding_N == Holding.SPOT) & ~view.up_ZN[choice.pool_N, self._runs_N]
        has_it_N = (self.holding_N == Holding.ON_DEMAND) & (mode_N == self.mode_N)
        in_stock_N = True if view.in_stock_N is None else view.in_stock_N
        is_out_N = (choice.holding_N == Holding.ON_DEMAND) & ~(has_it_N | in_stock_N)
        taken_N = np.where(is_gone_N | (self.work_s_N <= _DONE_S), Holding.NOTHING, choice.holding_N)
        return np.where(is_out_N & (self.work_s_N > _DONE_S), self.holding_N, taken_N)

    def _pass(self, tick_s: float, works_N: BoolArray) -> None:
        speed_N = np.where(works_N, self._speed_MH[self.mode_N, self.holding_N], 1.0)
        rest_s_N = np.where(self.work_s_N > _DONE_S, self.overhead_s_N + self.work_s_N / speed_N, 0.0)
        paid_s_N = np.where(works_N, np.minimum(tick_s, rest_s_N), 0.0)
        self.work_s_N = self.work_s_N - speed_N * np.maximum(0.0, paid_s_N - self.overhead_s_N)
        self.overhead_s_N = np.maximum(0.0, self.overhead_s_N - paid_s_N)
        self.cost_s_N = self.cost_s_N + paid_s_N * self._price_MH[self.mode_N, self.holding_N]

    def _start_of_base_s_N(self) -> FloatArray:
        """Return the changeover of what a mode keeps besides spot and on-demand capacity, if it keeps anything."""
        keeps_N = self._speed_MH[self.mode_N, Holding.NOTHING] > 0
        return np.where(keeps_N, self._changeover_s_M[self.mode_N], 0.0)
