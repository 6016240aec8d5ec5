"""Ours: weighs all ways to go on by what each is expected to cost to the end, and keeps its promise.

Each tick every mode's belief about its spot capacity is moved on by what was seen; then each choice (a mode, and what
to hold in it) is priced by what it costs until the next cell of that mode's table, and by the table from there on,
averaged over what the pools may be like and may do. The hour of the day counts in what is believed and in the next
cell; the table is solved for the day's mean.

A table knows its own mode only, as if the run stayed there for ever. The choice between modes is made anew at each
tick, so the run does no worse on average than in the best of them (parallel rollout: Chang, Givan and Chong 2004).

Several pools of one mode are followed as one that is up while any of them is: capacity lost in one is sought in
another, at the price of a changeover. Of the pools that are up the one that has been so for longest is taken.

Whatever the tables say, a choice that could make the run late is not made (``promise``). Where on-demand capacity may
be out of stock, it is ordered early enough to be late no more often than ``max_miss_ratio`` (``stock``), and what spot
capacity there is meanwhile is used. Pure but for what it remembers. Axes: see ``rental``, ``modes`` and ``values``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.market.choice_costs import ChoiceCosts
from airflow_llmsched.planner.market.forecast import NO_SPOT, HazardModel, PoolBelief, first_belief, observe
from airflow_llmsched.planner.market.modes import ModeSet
from airflow_llmsched.planner.market.promise import Promise
from airflow_llmsched.planner.market.rental import Holding, RentalChoice, RentalView
from airflow_llmsched.planner.market.stock import ALWAYS, StockModel
from airflow_llmsched.planner.market.values import SpotTerms, SpotValues, solve

_AGAIN_S = 1.0
"""How much later a second look at the same moment counts: a pool that was refused meanwhile has just gone."""

_IDLE_COST_RATIO = 1e-3
"""What a second without any progress counts for, in seconds of on-demand capacity: nobody waits for nothing at all."""

_WORTH_A_CHANGE = 1e-6
"""Seconds of on-demand capacity by which another choice must be better."""


class SpotPolicy:
    """A ``RentalPolicy``. ``model`` says what pools are like before anything is known of these, for each mode.

    Without ``modes`` there is one: the plan itself, served by all pools. ``stock`` says how on-demand capacity comes
    and goes, ``max_miss_ratio`` how often it may make a run late. ``least_gain_s`` is what leaving what
    is held must gain to the end of the run, beside what the changeover costs, in seconds of on-demand capacity: so that
    choices that cost alike are not taken in turns when prices or beliefs tremble. No deadline is kept waiting for it.
    """

    def __init__(
        self,
        model: HazardModel | Sequence[HazardModel],
        *,
        modes: ModeSet | None = None,
        stock: StockModel = ALWAYS,
        max_miss_ratio: float = 0.001,
        least_gain_s: float = 0.0,
    ) -> None:
        num_modes = 1 if modes is None else len(modes.modes)
        models = [model] * num_modes if isinstance(model, HazardModel) else list(model)
        if len(models) != num_modes:
            raise SpecError(path="model", value=len(models), hint=f"must be one, or one for each of {num_modes} modes")
        self._models, self._given = models, modes
        if modes is not None:
            self._models = [each if mode.pools else NO_SPOT for each, mode in zip(models, modes.modes, strict=True)]
        self._stock, self._max_miss_ratio, self._least_gain_s = stock, max_miss_ratio, least_gain_s
        self._tables: dict[int, SpotValues] = {}

    def begin(self, terms: SpotTerms, *, num_runs: int, num_pools: int) -> None:
        """Solve the tables for these terms, unless they are the same as before.

        Raises:
            SpecError: the modes are of another run, or of pools that are not there.
        """
        self._modes = ModeSet.only(terms, num_pools=num_pools) if self._given is None else self._given
        _check(self._modes, terms, num_pools=num_pools)
        longest_way_s_M = self._modes.duration_s_MM().max(axis=0)
        for number, mode in enumerate(self._modes.modes):
            known = self._tables.get(number)
            if known is None or known.terms != mode.terms:
                longest_way_s = float(longest_way_s_M[number])
                self._tables[number] = solve(
                    self._models[number], mode.terms, longest_way_s=longest_way_s, least_gain_s=self._least_gain_s
                )
        self._beliefs: list[PoolBelief | None] = [None] * len(self._modes.modes)
        self._up_ZN = np.zeros((num_pools, num_runs), dtype=np.bool_)
        self._age_s_ZN = np.zeros((num_pools, num_runs))
        self._seen_left_s: float | None = None

    def choose(self, view: RentalView) -> RentalChoice:
        """Return the cheapest choice that is safe; of equals, what is held."""
        self.see(view)
        ways = _Ways(self._modes, view)
        pool_MN = np.stack([self._best_pool_N(view, mode.pools) for mode in self._modes.modes])
        cost_MHN = self._costs_MHN(view, ways, pool_MN)
        cost_MHN[:, Holding.ON_DEMAND][~ways.demand_there_MN] = np.inf
        cost_MHN[:, Holding.NOTHING] += _IDLE_COST_RATIO * view.tick_s
        margin_s = self._stock.margin_s(max_miss_ratio=self._max_miss_ratio, tick_s=view.tick_s)
        promise = Promise(self._modes, margin_s=margin_s)
        is_safe_MHN = promise.safe_MHN(view, ways.overhead_s_MHN[:, Holding.ON_DEMAND]) & np.isfinite(cost_MHN)
        weighed_MHN = np.where(is_safe_MHN, cost_MHN, np.inf)
        finish_s_MN = promise.finish_s_MN(view, ways.overhead_s_MHN[:, Holding.ON_DEMAND])
        hurried_MHN = self._hurried_MHN(cost_MHN, finish_s_MN, view, ways)
        choice_MHN = np.where(is_safe_MHN.any(axis=(0, 1)), weighed_MHN, hurried_MHN)
        mode_N, holding_N = ways.best_N(choice_MHN)
        return RentalChoice(holding_N=holding_N, pool_N=pool_MN[mode_N, ways.runs_N], mode_N=mode_N)

    def see(self, view: RentalView) -> None:
        """Move what is believed of the pools on by what there is now. ``choose`` does so by itself."""
        since_s = 0.0 if self._seen_left_s is None else max(_AGAIN_S, self._seen_left_s - view.left_s)
        changed_ZN = view.up_ZN != self._up_ZN
        self._age_s_ZN = np.where(changed_ZN, 0.0, self._age_s_ZN + since_s)
        self._up_ZN, self._seen_left_s = view.up_ZN.copy(), view.left_s
        for number, mode in enumerate(self._modes.modes):
            up_N, before = np.asarray(view.up_ZN[list(mode.pools)].any(axis=0)), self._beliefs[number]
            model = self._models[number]
            self._beliefs[number] = (
                first_belief(model, up_N)
                if before is None
                else observe(model, before, up_N, after_s=since_s, at_s_N=view.at_s_N)
            )

    def promised_miss_N(self, view: RentalView) -> FloatArray:
        """Return the probability of being late that is stated for each run as it stands; 0 while stock never ends."""
        ways = _Ways(self._modes, view)
        slack_s_N = Promise(self._modes).slack_s_N(view, ways.mode_N)
        margin_s = self._stock.margin_s(max_miss_ratio=self._max_miss_ratio, tick_s=view.tick_s)
        finish_s_MN = Promise(self._modes).finish_s_MN(view, ways.overhead_s_MHN[:, Holding.ON_DEMAND])
        is_sure_N = ways.demand_there_MN[ways.mode_N, ways.runs_N] & (view.holding_N == Holding.ON_DEMAND)
        is_sure_N &= (slack_s_N < margin_s) & (finish_s_MN[ways.mode_N, ways.runs_N] <= view.left_s + 1e-6)
        stated = [
            self._stock.miss_probability(
                slack_s=float(slack_s),
                margin_s=margin_s,
                tick_s=view.tick_s,
                in_stock=None if view.in_stock_N is None else bool(view.in_stock_N[run]),
            )
            for run, slack_s in enumerate(slack_s_N)
        ]
        return np.where(is_sure_N, 0.0, stated)

    def _costs_MHN(self, view: RentalView, ways: _Ways, pool_MN: IntArray) -> FloatArray:
        costs, waiting = [], []
        for number, belief in enumerate(self._beliefs):
            assert belief is not None, "seen in this tick"
            costs_of = ChoiceCosts(
                self._models[number], self._tables[number], belief, left_s=view.left_s, at_s_N=view.at_s_N
            )
            overhead_s_HN = ways.overhead_s_MHN[number]
            moves_pool_N = (view.holding_N == Holding.SPOT) & (view.pool_N != pool_MN[number])
            changeover_s = self._modes.modes[number].terms.changeover_s
            overhead_s_HN[Holding.SPOT] = np.where(
                moves_pool_N & (ways.mode_N == number), changeover_s, overhead_s_HN[Holding.SPOT]
            )
            costs.append(costs_of.of_each(view.work_s_N, overhead_s_HN) + ways.entry_cost_s_MHN[number])
            if ways.waits_M[number]:
                work_s_N = view.work_s_N + max(self._modes.modes[number].terms.speed_H) * ways.way_there_s_MN[number]
                waiting.append(costs_of.of_waiting(work_s_N) + ways.cost_there_s_MN[number])
        cost_MHN = np.stack(costs)
        if waiting:
            ways.wait_for_the_best(cost_MHN, np.min(waiting, axis=0))
        return np.asarray(cost_MHN + self._least_gain_s * ways.leaves_MHN)

    def _hurried_MHN(self, cost_MHN: FloatArray, finish_s_MN: FloatArray, view: RentalView, ways: _Ways) -> FloatArray:
        """Return what to choose by when nothing is safe: the on-demand capacity that ends soonest, else spot.

        Before both a mix that is in time if its spot capacity lasts, as on-demand capacity is not: it works on without.
        """
        speed_MH = self._modes.speed_MH()
        rank_MHN = np.full(cost_MHN.shape, 1e30)
        lasting_s_MN = ways.overhead_s_MHN[:, Holding.SPOT] + view.work_s_N / speed_MH[:, Holding.SPOT, None]
        saves_the_day_MN = (lasting_s_MN <= view.left_s) & ~ways.waits_M[:, None]
        rank_MHN[:, Holding.SPOT] = np.where(saves_the_day_MN, lasting_s_MN, 1e15 - speed_MH[:, Holding.SPOT, None])
        rank_MHN[:, Holding.NOTHING] = 1e20 - speed_MH[:, Holding.NOTHING, None]
        rank_MHN[:, Holding.ON_DEMAND] = finish_s_MN
        return np.where(np.isfinite(cost_MHN), rank_MHN, np.inf)

    def _best_pool_N(self, view: RentalView, pools: tuple[int, ...]) -> IntArray:
        """Return the pool that is held if it is up and serves the mode, else the one that has been up for longest."""
        if not pools:
            return np.zeros(len(view.pool_N), dtype=np.int64)
        serves_Z1 = np.isin(np.arange(len(view.up_ZN)), pools)[:, None]
        oldest_N = np.where(view.up_ZN & serves_Z1, self._age_s_ZN, np.where(serves_Z1, -1.0, -2.0)).argmax(axis=0)
        is_held_N = (view.holding_N == Holding.SPOT) & view.up_ZN[view.pool_N, np.arange(len(oldest_N))]
        return np.where(is_held_N & serves_Z1[view.pool_N, 0], view.pool_N, oldest_N)


class _Ways:
    """Every choice of one tick: what it takes to get there, and whether on-demand capacity may be had in it."""

    def __init__(self, modes: ModeSet, view: RentalView) -> None:
        num_runs = len(view.work_s_N)
        self.runs_N: IntArray = np.arange(num_runs)
        self.mode_N: IntArray = np.zeros(num_runs, dtype=np.int64) if view.mode_N is None else view.mode_N
        self._view = view
        is_here_MN: BoolArray = self.mode_N == np.arange(len(modes.modes))[:, None]
        is_held_HN: BoolArray = view.holding_N == np.arange(len(Holding))[:, None]
        is_held_MHN = is_here_MN[:, None] & is_held_HN
        self.leaves_MHN: BoolArray = ~is_held_MHN & (view.holding_N != Holding.NOTHING)
        self.overhead_s_MHN: FloatArray = np.where(
            is_held_MHN, view.overhead_s_N, modes.duration_s_MM()[self.mode_N].T[:, None]
        )
        in_stock_N = np.ones(num_runs, dtype=np.bool_) if view.in_stock_N is None else view.in_stock_N
        in_stock_MN = in_stock_N if view.in_stock_MN is None else in_stock_N & view.in_stock_MN
        self.demand_there_MN: BoolArray = in_stock_MN | is_held_MHN[:, Holding.ON_DEMAND]
        self.entry_cost_s_MHN: FloatArray = np.repeat(modes.cost_s_MM()[self.mode_N].T[:, None], len(Holding), axis=1)
        # To wait elsewhere is to wait here: a run moves when it takes something.
        self.waits_M: BoolArray = ~(modes.speed_MH()[:, Holding.NOTHING] > 0)
        is_other_wait_MN = self.waits_M[:, None] & ~is_here_MN & self.waits_M[self.mode_N]
        self.entry_cost_s_MHN[:, Holding.NOTHING][is_other_wait_MN] = np.inf
        self.cost_there_s_MN: FloatArray = modes.cost_s_MM()[self.mode_N].T
        changeover_s_M = np.array([mode.terms.changeover_s for mode in modes.modes])
        self.way_there_s_MN: FloatArray = np.maximum(
            0.0, modes.duration_s_MM()[self.mode_N].T - changeover_s_M[:, None]
        )

    def wait_for_the_best(self, cost_MHN: FloatArray, waiting_N: FloatArray) -> None:
        """Have it cost no more to wait than it does for whichever mode is best, the way there included.

        Who waits is in no mode: were waiting here priced by what comes after it here alone, a run would take what is
        elsewhere, and once there would rather have waited. In a mix nobody waits.
        """
        here = (self.mode_N, np.full(len(self.runs_N), int(Holding.NOTHING)), self.runs_N)
        cost_MHN[here] = np.where(self.waits_M[self.mode_N], np.minimum(cost_MHN[here], waiting_N), cost_MHN[here])

    def best_N(self, choice_MHN: FloatArray) -> tuple[IntArray, IntArray]:
        """Return mode and holding of the least; what is held, if nothing is better by what a change is worth."""
        least_N = choice_MHN.reshape(-1, len(self.runs_N)).argmin(axis=0)
        mode_N, holding_N = np.divmod(least_N, len(Holding))
        held_N = choice_MHN[self.mode_N, self._view.holding_N, self.runs_N]
        keeps_N = held_N <= choice_MHN.min(axis=(0, 1)) + _WORTH_A_CHANGE
        return np.where(keeps_N, self.mode_N, mode_N), np.where(keeps_N, self._view.holding_N, holding_N)


def _check(modes: ModeSet, terms: SpotTerms, *, num_pools: int) -> None:
    first = modes.modes[0].terms
    if (first.time_s, first.work_s) != (terms.time_s, terms.work_s):
        raise SpecError(path="modes", value=(first.time_s, first.work_s), hint="must be of the run that is begun")
    for mode in modes.modes:
        if not all(0 <= pool < num_pools for pool in mode.pools):
            raise SpecError(path=f"modes[{mode.name}].pools", value=mode.pools, hint=f"must be below {num_pools}")
