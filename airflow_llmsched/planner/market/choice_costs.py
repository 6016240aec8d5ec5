"""Prices the choices of one tick in one mode: until the next cell of its table, and by the table from there. Pure.

Axes: see ``rental`` and ``values``; H = holding.
"""

from __future__ import annotations

import numpy as np

from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.market.forecast import PHASE_START_S, HazardModel, PoolBelief, hazard_NK
from airflow_llmsched.planner.market.rental import Holding
from airflow_llmsched.planner.market.values import SpotValues, States, advance_F


class ChoiceCosts:
    """Reads ``values`` with the belief as it stands. ``left_s`` is the time until the deadline."""

    def __init__(
        self,
        model: HazardModel,
        values: SpotValues,
        belief: PoolBelief,
        *,
        left_s: float,
        at_s_N: FloatArray | None = None,
    ) -> None:
        self._values, self._weight_NK, self._left_s = values, belief.weight_NK, left_s
        self._up_N: BoolArray = belief.up_N
        self._phase_N = belief.phase_N()
        self._older_N = np.minimum(self._phase_N + 1, len(PHASE_START_S) - 1)
        self._ages_N1 = advance_F(values.cell_s)[self._phase_N][:, None]
        self._ends_NK = -np.expm1(-hazard_NK(model, belief, at_s_N=at_s_N) * values.cell_s)

    def of_each(self, work_s_N: FloatArray, overhead_s_HN: FloatArray) -> FloatArray:
        """Return the expected cost of each holding (H, N), spot's being infinite where there is none.

        ``overhead_s_HN`` is how long it takes until each holding works: nothing more, if it is held and does already.
        """
        terms, cell_s = self._values.terms, self._values.cell_s
        work_s_HN = work_s_N + np.array(terms.speed_H)[:, None] * (overhead_s_HN - cell_s)
        restart_s = terms.changeover_s * terms.base_speed_ratio
        base_N = self._later(States.IDLE_UP, States.IDLE_DOWN, States.IDLE_DOWN, work_s_HN[Holding.NOTHING])
        spot_N = self._later(
            States.SPOT, States.IDLE_DOWN, States.IDLE_DOWN, work_s_HN[Holding.SPOT], restart_s=restart_s
        )
        demand_N = self._later(
            States.ON_DEMAND_UP, States.ON_DEMAND_DOWN, States.ON_DEMAND_DOWN, work_s_HN[Holding.ON_DEMAND]
        )
        later_HN = np.stack([base_N, np.where(self._up_N, spot_N, np.inf), demand_N])
        return np.asarray(np.array(terms.price_H)[:, None] * self._paid_s_HN(work_s_N, overhead_s_HN) + later_HN)

    def of_waiting(self, work_s_N: FloatArray) -> FloatArray:
        """Return the expected cost of holding nothing for now, with so much work to do (N,)."""
        return self._later(States.IDLE_UP, States.IDLE_DOWN, States.IDLE_DOWN, work_s_N)

    def _paid_s_HN(self, work_s_N: FloatArray, overhead_s_HN: FloatArray) -> FloatArray:
        """Return how much of the cell is paid: all, or as long as the work takes. Or the last of it would seem dear."""
        cell_s, speed_H1 = self._values.cell_s, np.array(self._values.terms.speed_H)[:, None]
        takes_s_HN = overhead_s_HN + work_s_N / np.maximum(speed_H1, 1e-9)
        return np.asarray(np.minimum(cell_s, takes_s_HN))

    def _later(self, up: int, lost: int, down: int, work_s_N: FloatArray, *, restart_s: float = 0.0) -> FloatArray:
        """Return the mean cost one cell from now, over classes of pool and over what the pool does (N,)."""
        lasts_N = np.where(self._up_N, up, down)
        turns_N = np.where(self._up_N, lost, up)
        same_NK = self._at(lasts_N + self._phase_N, work_s_N)
        older_NK = self._at(lasts_N + self._older_N, work_s_N)
        turned_NK = self._at(turns_N, work_s_N + restart_s)
        stays_NK = (1 - self._ages_N1) * same_NK + self._ages_N1 * older_NK
        cost_NK = (1 - self._ends_NK) * stays_NK + self._ends_NK * turned_NK
        return np.asarray((self._weight_NK * cost_NK).sum(axis=1))

    def _at(self, state_N: IntArray, work_s_N: FloatArray) -> FloatArray:
        return self._values.at(state_N, left_s=self._left_s - self._values.cell_s, work_s_N=work_s_N)
