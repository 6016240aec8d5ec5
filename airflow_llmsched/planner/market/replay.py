"""Replays traces of spot capacity under a policy and counts what it costs. Pure. Axes: see ``rental``; T = tick."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.market.rental import Holding, RentalPolicy, RentalView
from airflow_llmsched.planner.market.values import SpotTerms

_DONE_S = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What became of each run. ``cost_s_N`` is in seconds of on-demand capacity."""

    cost_s_N: FloatArray
    in_time_N: BoolArray
    num_changeovers_N: IntArray


def replay(
    up_ZT: BoolArray,
    *,
    tick_s: float,
    starts_N: IntArray,
    terms: SpotTerms,
    policy: RentalPolicy,
    trace_start_s: float | None = None,
) -> Replay:
    """Run one job from each tick of ``starts_N`` until its deadline. The trace must go on that long after each.

    A changeover is paid and does no work; one that is interrupted has to be done again, in full. ``trace_start_s`` is
    when the trace's first tick was (Unix seconds), where that is known.
    """
    num_runs = len(starts_N)
    policy.begin(terms, num_runs=num_runs, num_pools=len(up_ZT))
    work_s_N, overhead_s_N, cost_s_N = np.full(num_runs, terms.work_s), np.zeros(num_runs), np.zeros(num_runs)
    holding_N, pool_N = np.zeros(num_runs, dtype=np.int64), np.zeros(num_runs, dtype=np.int64)
    num_changeovers_N, runs_N = np.zeros(num_runs, dtype=np.int64), np.arange(num_runs)
    price_H = np.array([0.0, terms.spot_ratio, 1.0])
    for tick in range(int(np.ceil(terms.time_s / tick_s - 1e-9))):
        up_ZN = up_ZT[:, starts_N + tick]
        is_lost_N = (holding_N == Holding.SPOT) & ~up_ZN[pool_N, runs_N]
        holding_N = np.where(is_lost_N, Holding.NOTHING, holding_N)
        left_s = terms.time_s - tick * tick_s
        view = RentalView(
            left_s=left_s,
            tick_s=min(tick_s, left_s),
            work_s_N=work_s_N,
            overhead_s_N=np.where(holding_N == Holding.NOTHING, 0.0, overhead_s_N),
            holding_N=holding_N,
            pool_N=pool_N,
            up_ZN=up_ZN,
            at_s_N=None if trace_start_s is None else np.asarray(trace_start_s + (starts_N + tick) * tick_s),
        )
        choice = policy.choose(view)
        is_refused_N = (choice.holding_N == Holding.SPOT) & ~up_ZN[choice.pool_N, runs_N]
        taken_N = np.where(is_refused_N | (work_s_N <= _DONE_S), Holding.NOTHING, choice.holding_N)
        moves_N = (taken_N == Holding.SPOT) & (holding_N == Holding.SPOT) & (choice.pool_N != pool_N)
        starts_anew_N = (taken_N != Holding.NOTHING) & ((taken_N != holding_N) | moves_N)
        overhead_s_N = np.where(starts_anew_N, terms.changeover_s, view.overhead_s_N)
        pool_N, holding_N = np.where(taken_N == Holding.SPOT, choice.pool_N, pool_N), taken_N
        paid_s_N = np.where(holding_N == Holding.NOTHING, 0.0, np.minimum(view.tick_s, overhead_s_N + work_s_N))
        work_s_N = work_s_N - np.maximum(0.0, paid_s_N - overhead_s_N)
        overhead_s_N = np.maximum(0.0, overhead_s_N - paid_s_N)
        cost_s_N += paid_s_N * price_H[holding_N]
        num_changeovers_N += starts_anew_N
    return Replay(cost_s_N=cost_s_N, in_time_N=work_s_N <= _DONE_S, num_changeovers_N=num_changeovers_N)
