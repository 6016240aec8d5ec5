"""The cheapest way through a trace for whoever knows it in advance: what no policy can beat. Pure.

An exact dynamic programme over ticks, work left and what is held, on a grid of ``_CELLS_PER_TICK`` cells of work to a
tick. Changeovers are rounded down to whole cells, so that the figure is a lower bound. Axes: Z = pool, T = tick, W =
cells of work left, H = held: nothing, on-demand, then each pool.
"""

from __future__ import annotations

import numpy as np

from airflow_llmsched.planner.layout_table import BoolArray, FloatArray
from airflow_llmsched.planner.market.values import SpotTerms

_CELLS_PER_TICK = 5
_NOTHING, _ON_DEMAND, _FIRST_POOL = 0, 1, 2
_NEVER = 1e12


def optimum_s(up_ZT: BoolArray, *, tick_s: float, start: int, terms: SpotTerms) -> float:
    """Return the least cost, in seconds of on-demand capacity, of finishing in time from tick ``start``."""
    num_ticks = int(np.ceil(terms.time_s / tick_s - 1e-9))
    cell_s = tick_s / _CELLS_PER_TICK
    changeover = int(terms.changeover_s / cell_s + 1e-9)
    num_cells = int(np.floor(terms.work_s / cell_s + 1e-9))
    cost_HW = np.full((_FIRST_POOL + len(up_ZT), num_cells + changeover + 1), _NEVER)
    cost_HW[:, 0] = 0.0
    for tick in range(start + num_ticks - 1, start - 1, -1):
        cost_HW = _back(cost_HW, up_ZT[:, tick], changeover=changeover, tick_s=tick_s, spot_ratio=terms.spot_ratio)
    return float(cost_HW[_NOTHING, num_cells])


def _back(after_HW: FloatArray, up_Z: BoolArray, *, changeover: int, tick_s: float, spot_ratio: float) -> FloatArray:
    worked_HW = _moved(after_HW, -_CELLS_PER_TICK)
    price_s_H = np.full(len(after_HW), tick_s * spot_ratio)
    price_s_H[_NOTHING], price_s_H[_ON_DEMAND] = 0.0, tick_s
    kept_HW = price_s_H[:, None] + worked_HW
    kept_HW[_NOTHING] = after_HW[_NOTHING]
    kept_HW[_FIRST_POOL:][~up_Z] = _NEVER
    begun_HW = _moved(kept_HW, changeover)
    begun_HW[_NOTHING] = after_HW[_NOTHING]
    before_HW: FloatArray = np.minimum(kept_HW, begun_HW.min(axis=0))
    before_HW[:, 0] = 0.0
    return before_HW


def _moved(cost_HW: FloatArray, cells: int) -> FloatArray:
    """Return costs read ``cells`` of work higher; below none left all is done, beyond the grid nothing is in time."""
    if cells == 0:
        return cost_HW
    if cells < 0:
        return np.concatenate([np.repeat(cost_HW[:, :1], -cells, axis=1), cost_HW[:, :cells]], axis=1)
    return np.concatenate([cost_HW[:, cells:], np.full_like(cost_HW[:, :cells], _NEVER)], axis=1)
