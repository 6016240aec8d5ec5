"""Spot pools whose hazards are known, as traces."""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np

from airflow_llmsched.planner.layout_table import BoolArray
from airflow_llmsched.planner.market.forecast import PHASE_START_S, AvailabilityTrace, HazardModel
from airflow_llmsched.planner.market.stock import StockModel
from airflow_llmsched.units import HOUR_S

TICK_S = 300.0


def model_of(*, loss_per_hour: float, return_per_hour: float) -> HazardModel:
    """One class of pool whose hazards do not change with age."""
    phases = np.ones((1, len(PHASE_START_S)))
    return HazardModel(
        loss_per_s_KF=phases * loss_per_hour / HOUR_S,
        return_per_s_KF=phases * return_per_hour / HOUR_S,
        prior_K=np.ones(1),
    )


def drawn(
    model: HazardModel,
    *,
    hours: float,
    seed: int,
    of_class: int = 0,
    tick_s: float = TICK_S,
    start_s: float | None = None,
) -> BoolArray:
    """Draw a pool of one class, from its first moment up; by the hour of the day if it has a start."""
    rng = np.random.default_rng(seed)
    up, age_s, ticks = True, 0.0, []
    num_ticks = int(hours * HOUR_S / tick_s)
    at_s_T = (start_s or 0.0) + (np.arange(num_ticks) + 0.5) * tick_s
    loss_T, return_T = model.loss_hours.factor_N(at_s_T), model.return_hours.factor_N(at_s_T)
    loss_per_s_F, return_per_s_F = model.loss_per_s_KF[of_class].tolist(), model.return_per_s_KF[of_class].tolist()
    for tick, chance in enumerate(rng.random(num_ticks).tolist()):
        ticks.append(up)
        hazards_F = loss_per_s_F if up else return_per_s_F
        factor = 1.0 if start_s is None else float((loss_T if up else return_T)[tick])
        hazard = factor * hazards_F[bisect_right(PHASE_START_S, age_s) - 1]
        ends = chance < -math.expm1(-hazard * tick_s)
        up, age_s = (not up, 0.0) if ends else (up, age_s + tick_s)
    return np.array(ticks)


def trace_of(model: HazardModel, *, hours: float, seed: int, start_s: float | None = None) -> AvailabilityTrace:
    """Draw a trace."""
    return AvailabilityTrace(TICK_S, drawn(model, hours=hours, seed=seed, start_s=start_s), start_s)


def stock_drawn(model: StockModel, *, num_ticks: int, seed: int, tick_s: float = TICK_S) -> BoolArray:
    """Draw whether on-demand capacity is in stock, looked at every tick, from anywhere in its comings and goings."""
    rng = np.random.default_rng(seed)
    goes = model.out_probability(in_stock=True, after_s=tick_s)
    stays_out = model.out_probability(in_stock=False, after_s=tick_s)
    is_out, ticks = rng.random() < model.out_ratio, []
    for chance in rng.random(num_ticks):
        ticks.append(not is_out)
        is_out = chance < (stays_out if is_out else goes)
    return np.array(ticks)
