"""Ours: weighs spot, on-demand and waiting by what each is expected to cost to the end, and is never late.

Each tick every pool's belief is moved on by what was seen; then each choice is priced by what it costs until the next
cell of the table and by the table from there on, averaged over what the pool may be like and may do. Whatever the table
says, on-demand capacity is taken as soon as nothing else is sure to be in time. The hour of the day counts in what is
believed and in the next cell; the table beyond it is solved for the day's mean.

Several pools are followed as one that is up while any of them is: capacity lost in one is sought in another, at the
price of a changeover. Of the pools that are up the one that has been so for longest is taken. Pure but for what it
remembers. Axes: see ``rental`` and ``values``.
"""

from __future__ import annotations

import numpy as np

from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.market.forecast import (
    PHASE_START_S,
    HazardModel,
    PoolBelief,
    first_belief,
    hazard_NK,
    observe,
)
from airflow_llmsched.planner.market.rental import Holding, RentalChoice, RentalView
from airflow_llmsched.planner.market.values import SpotTerms, SpotValues, States, advance_F, solve

_WORTH_A_CHANGE = 1e-6
"""Seconds of on-demand capacity by which another choice must be better."""


class SpotPolicy:
    """A ``RentalPolicy``. ``model`` says what pools are like before anything is known of these."""

    def __init__(self, model: HazardModel) -> None:
        self._model = model
        self._values: SpotValues | None = None

    def begin(self, terms: SpotTerms, *, num_runs: int, num_pools: int) -> None:
        """Solve the table for these terms, unless it is the same as before."""
        if self._values is None or self._values.terms != terms:
            self._values = solve(self._model, terms)
        self._belief: PoolBelief | None = None
        self._up_ZN = np.zeros((num_pools, num_runs), dtype=np.bool_)
        self._age_s_ZN = np.zeros((num_pools, num_runs))
        self._tick_s = 0.0

    def choose(self, view: RentalView) -> RentalChoice:
        """Return the cheapest choice that is safe; of equals, what is held."""
        belief = self._see(view)
        pool_N = self._best_pool_N(view)
        cost_HN = _Costs(self._model, self._require_values(), belief, view, pool_N).of_each()
        least_N = cost_HN.argmin(axis=0)
        held_cost_N = cost_HN[view.holding_N, np.arange(len(pool_N))]
        keeps_N = held_cost_N <= cost_HN.min(axis=0) + _WORTH_A_CHANGE
        chosen_N = np.where(keeps_N, view.holding_N, least_N)
        is_due_N = view.must_be_safe_N(self._require_values().terms.changeover_s)
        return RentalChoice(holding_N=np.where(is_due_N, Holding.ON_DEMAND, chosen_N), pool_N=pool_N)

    def _see(self, view: RentalView) -> PoolBelief:
        before, since_s = self._belief, self._tick_s
        changed_ZN = view.up_ZN != self._up_ZN
        self._age_s_ZN = np.where(changed_ZN, 0.0, self._age_s_ZN + since_s)
        self._up_ZN, self._tick_s = view.up_ZN.copy(), view.tick_s
        if before is None:
            self._belief = first_belief(self._model, view.any_up_N)
        else:
            self._belief = observe(self._model, before, view.any_up_N, after_s=since_s, at_s_N=view.at_s_N)
        return self._belief

    def _best_pool_N(self, view: RentalView) -> IntArray:
        """Return the pool that is held if it is up, else the one that has been up for longest."""
        oldest_N = np.where(view.up_ZN, self._age_s_ZN, -1.0).argmax(axis=0)
        is_held_N = (view.holding_N == Holding.SPOT) & view.up_ZN[view.pool_N, np.arange(len(oldest_N))]
        return np.where(is_held_N, view.pool_N, oldest_N)

    def _require_values(self) -> SpotValues:
        assert self._values is not None, "begin() comes first"
        return self._values


class _Costs:
    """Prices the choices of one tick: until the next cell of the table, and from there on."""

    def __init__(
        self, model: HazardModel, values: SpotValues, belief: PoolBelief, view: RentalView, pool_N: IntArray
    ) -> None:
        self._values, self._view, self._weight_NK = values, view, belief.weight_NK
        self._pool_N = pool_N
        self._up_N1 = belief.up_N[:, None]
        self._phase_N = belief.phase_N()
        self._older_N = np.minimum(self._phase_N + 1, len(PHASE_START_S) - 1)
        self._ages_N1 = advance_F(values.cell_s)[self._phase_N][:, None]
        self._ends_NK = -np.expm1(-hazard_NK(model, belief, at_s_N=view.at_s_N) * values.cell_s)

    def of_each(self) -> FloatArray:
        """Return the expected cost of holding nothing, spot and on-demand capacity (3, N)."""
        view, terms, cell_s = self._view, self._values.terms, self._values.cell_s
        keeps_spot_N = (view.holding_N == Holding.SPOT) & (view.pool_N == self._pool_N)
        spot_work_s_N = view.work_s_N + np.where(keeps_spot_N, view.overhead_s_N, terms.changeover_s)
        keeps_demand_N = view.holding_N == Holding.ON_DEMAND
        demand_work_s_N = view.work_s_N + np.where(keeps_demand_N, view.overhead_s_N, terms.changeover_s)
        nothing_N = self._later(States.IDLE_UP, States.IDLE_DOWN, States.IDLE_DOWN, view.work_s_N)
        spot_N = self._later(States.SPOT, States.IDLE_DOWN, States.IDLE_DOWN, spot_work_s_N - cell_s)
        demand_N = self._later(
            States.ON_DEMAND_UP, States.ON_DEMAND_DOWN, States.ON_DEMAND_DOWN, demand_work_s_N - cell_s
        )
        spot_N = np.where(view.any_up_N, terms.spot_ratio * cell_s + spot_N, np.inf)
        return np.stack([nothing_N, spot_N, cell_s + demand_N])

    def _later(self, up: int, lost: int, down: int, work_s_N: FloatArray) -> FloatArray:
        """Return the mean cost one cell from now, over classes of pool and over what the pool does (N,)."""
        lasts_N = np.where(self._up_N1[:, 0], up, down)
        turns_N = np.where(self._up_N1[:, 0], lost, up)
        same_NK = self._at(lasts_N + self._phase_N, work_s_N)
        older_NK = self._at(lasts_N + self._older_N, work_s_N)
        turned_NK = self._at(turns_N, work_s_N)
        stays_NK = (1 - self._ages_N1) * same_NK + self._ages_N1 * older_NK
        cost_NK = (1 - self._ends_NK) * stays_NK + self._ends_NK * turned_NK
        return np.asarray((self._weight_NK * cost_NK).sum(axis=1))

    def _at(self, state_N: IntArray, work_s_N: FloatArray) -> FloatArray:
        left_s = self._view.left_s - self._values.cell_s
        return self._values.at(state_N, left_s=left_s, work_s_N=work_s_N)
