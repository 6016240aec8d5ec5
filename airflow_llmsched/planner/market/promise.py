"""What keeps a deadline, whatever spot capacity does: which choices leave a way to be in time. Pure.

A choice is safe if one tick later, though nothing was done in it, some mode's on-demand capacity still brings the work
to its end, the way there included; or if it is itself on-demand capacity that does. From a safe choice the next tick
has a safe one again, so that a run that could be in time is, as long as on-demand capacity is to be had. Where it may
not be, ``margin_s`` more is kept to ask for it again and again (``stock``).

Axes: see ``modes``; N = run.
"""

from __future__ import annotations

import numpy as np

from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray
from airflow_llmsched.planner.market.modes import ModeSet
from airflow_llmsched.planner.market.rental import Holding, RentalView

_ROUNDING_S = 1e-6


class Promise:
    """Judges the choices of a set of modes."""

    def __init__(self, modes: ModeSet, *, margin_s: float = 0.0) -> None:
        self._duration_s_MM = modes.duration_s_MM()
        self._demand_speed_M = modes.speed_MH()[:, Holding.ON_DEMAND]
        self._margin_s = margin_s

    def need_s_MN(self, work_s_N: FloatArray) -> FloatArray:
        """Return, from each mode, how long the fastest way to the end on on-demand capacity takes."""
        through_s_MN = work_s_N / self._demand_speed_M[:, None]
        return np.asarray((self._duration_s_MM[:, :, None] + through_s_MN[None]).min(axis=1))

    def slack_s_N(self, view: RentalView, mode_N: IntArray) -> FloatArray:
        """Return the time to spare before on-demand capacity must be ordered: below 0 it is due."""
        need_s_N = self.need_s_MN(view.work_s_N)[mode_N, np.arange(len(mode_N))]
        return np.asarray(view.left_s - view.tick_s - need_s_N)

    def finish_s_MN(self, view: RentalView, overhead_s_MN: FloatArray) -> FloatArray:
        """Return how long on-demand capacity in each mode takes to the end."""
        return np.asarray(overhead_s_MN + view.work_s_N / self._demand_speed_M[:, None])

    def safe_MHN(self, view: RentalView, demand_overhead_s_MN: FloatArray) -> BoolArray:
        """Return which choices leave a way to be in time, were on-demand capacity there when it is asked for."""
        leaves_a_way_MN = view.left_s - view.tick_s - self._margin_s >= self.need_s_MN(view.work_s_N)
        safe_MHN = np.repeat(leaves_a_way_MN[:, None], len(Holding), axis=1)
        arrives_MN = self.finish_s_MN(view, demand_overhead_s_MN) <= view.left_s + _ROUNDING_S
        safe_MHN[:, Holding.ON_DEMAND] |= arrives_MN
        return safe_MHN
