"""Spot pools whose hazards are known, as traces."""

from __future__ import annotations

import numpy as np

from airflow_llmsched.planner.layout_table import BoolArray
from airflow_llmsched.planner.market.forecast import PHASE_START_S, AvailabilityTrace, HazardModel, phase_of
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


def drawn(model: HazardModel, *, hours: float, seed: int, of_class: int = 0, tick_s: float = TICK_S) -> BoolArray:
    """Draw a pool of one class, from its first moment up."""
    rng = np.random.default_rng(seed)
    up, age_s, ticks = True, 0.0, []
    for chance in rng.random(int(hours * HOUR_S / tick_s)):
        ticks.append(up)
        table = model.loss_per_s_KF if up else model.return_per_s_KF
        hazard = table[of_class, int(phase_of(np.array([age_s]))[0])]
        ends = chance < -np.expm1(-hazard * tick_s)
        up, age_s = (not up, 0.0) if ends else (up, age_s + tick_s)
    return np.array(ticks)


def trace_of(model: HazardModel, *, hours: float, seed: int) -> AvailabilityTrace:
    """Draw a trace."""
    return AvailabilityTrace(TICK_S, drawn(model, hours=hours, seed=seed))
