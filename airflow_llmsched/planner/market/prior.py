"""What spot pools are like before anything has been seen of one: hazards fitted on public traces, as numbers. Pure.

``forecast.fit`` over SkyPilot's 14 availability traces of single AWS GPU nodes (Wu et al., NSDI 2024; zones of October
2022 and February 2023, 381 days in all), on 2026-11-30. They do not say at what time of day they were taken. They are
of one node: ``gang_hazards.of_gang`` makes those of a gang of them, from which what is seen of its pools moves the
belief.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from airflow_llmsched.planner.market.forecast import HazardModel
from airflow_llmsched.units import HOUR_S

_RETURNS_PER_HOUR_F = (2.7064, 1.4583, 0.842, 0.5293, 0.3586, 0.1561)
_LOSSES_PER_HOUR_F = (2.2491, 1.2748, 0.8322, 0.4571, 0.2483, 0.095)
_LOSS_FACTORS = (0.3197, 0.6704, 0.9131, 1.4154)
_RETURN_FACTORS = (0.5056, 0.7965, 1.0, 1.464)
_PRIOR = (
    (0.0175, 0.0242, 0.1142, 0.0525),
    (0.0492, 0.0992, 0.0825, 0.0558),
    (0.0792, 0.0908, 0.0658, 0.0425),
    (0.0592, 0.0592, 0.0275, 0.0808),
)
"""By loss factor (down) and return factor (across)."""


@cache
def default_hazards() -> HazardModel:
    """Return the model of single nodes that a run starts from where nobody fitted one."""
    loss_K, return_K = (each.ravel() for each in np.meshgrid(_LOSS_FACTORS, _RETURN_FACTORS, indexing="ij"))
    prior_K = np.array(_PRIOR).ravel()
    return HazardModel(
        loss_per_s_KF=loss_K[:, None] * np.array(_LOSSES_PER_HOUR_F) / HOUR_S,
        return_per_s_KF=return_K[:, None] * np.array(_RETURNS_PER_HOUR_F) / HOUR_S,
        prior_K=prior_K / prior_K.sum(),
    )
