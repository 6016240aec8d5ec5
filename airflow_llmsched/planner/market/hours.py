"""How a hazard changes with the hour of the day (UTC): two waves a day, shrunk to none where days disagree. Pure.

A log-linear factor on the hazard, fitted by penalised Poisson regression on what was expected without it. How far the
coefficients are shrunk is chosen by how well the rest of the days foretell each fold of days; when none is foretold
better with the factor than without, there is none. Days are left out, not pools, because neighbouring zones share a
day.

Axes: H = hour of the day, J = coefficient, D = fold of days, N = run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.units import DAY_S, HOUR_S

NUM_HOURS = 24
NUM_FOLDS = 5
NUM_WAVES = 2
_PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_WORTH_IT = 2.0
"""Log-likelihood by which the days left out must be foretold better before any factor is believed."""


@dataclass(frozen=True, slots=True, eq=False)
class HourEffect:
    """A factor on a hazard that averages to 1 over the day. No coefficients are no effect."""

    log_J: FloatArray = field(default_factory=lambda: np.zeros(2 * NUM_WAVES))

    def factor_N(self, at_s_N: FloatArray) -> FloatArray:
        """Return the factor at Unix seconds."""
        if not self.log_J.any():
            return np.ones(len(at_s_N))
        mean = np.exp(_basis_NJ(_noon_of_H()) @ self.log_J).mean()
        return np.asarray(np.exp(_basis_NJ(at_s_N) @ self.log_J) / mean)


def fit_effect(observed_DH: FloatArray, expected_DH: FloatArray) -> HourEffect:
    """Return the effect that events by hour show against those expected, by folds of days."""
    scored = [(_foretold(observed_DH, expected_DH, penalty), -penalty) for penalty in _PENALTIES]
    gain, negative = max(scored)
    if gain < _WORTH_IT:
        return HourEffect()
    return HourEffect(_coefficients_J(observed_DH.sum(axis=0), expected_DH.sum(axis=0), -negative)[1:])


def hour_of(at_s: FloatArray) -> IntArray:
    """Return the whole hour of the day (UTC) that Unix seconds fall into."""
    return np.asarray((at_s % DAY_S) // HOUR_S, dtype=np.int64)


def fold_of(at_s: FloatArray) -> IntArray:
    """Return the fold of days that Unix seconds fall into."""
    return np.asarray((at_s // DAY_S) % NUM_FOLDS, dtype=np.int64)


def _noon_of_H() -> FloatArray:
    return np.asarray((np.arange(NUM_HOURS) + 0.5) * HOUR_S, dtype=np.float64)


def _basis_NJ(at_s_N: FloatArray) -> FloatArray:
    angle_N1 = 2 * np.pi * (at_s_N % DAY_S / DAY_S)[:, None]
    waves_W = np.arange(1, NUM_WAVES + 1)
    return np.concatenate([np.cos(angle_N1 * waves_W), np.sin(angle_N1 * waves_W)], axis=1)


def _foretold(observed_DH: FloatArray, expected_DH: FloatArray, penalty: float) -> float:
    """Return how much more likely each fold is under the effect that the others show than under none."""
    gain = 0.0
    for fold in range(len(observed_DH)):
        rest = np.arange(len(observed_DH)) != fold
        log_J = _coefficients_J(observed_DH[rest].sum(axis=0), expected_DH[rest].sum(axis=0), penalty)[1:]
        factor_H = HourEffect(log_J).factor_N(_noon_of_H())
        level = observed_DH[fold].sum() / max((expected_DH[fold] * factor_H).sum(), 1e-12)
        flat = observed_DH[fold].sum() / max(expected_DH[fold].sum(), 1e-12)
        gain += float(observed_DH[fold] @ (np.log(factor_H) + np.log(max(level, 1e-12)) - np.log(max(flat, 1e-12))))
    return gain


def _coefficients_J(observed_H: FloatArray, expected_H: FloatArray, penalty: float) -> FloatArray:
    """Return level and coefficients by Newton's method; the level is not shrunk."""
    basis_HJ = np.concatenate([np.ones((NUM_HOURS, 1)), _basis_NJ(_noon_of_H())], axis=1)
    ridge_J = np.full(basis_HJ.shape[1], penalty)
    ridge_J[0] = 1e-6
    log_J = np.zeros(basis_HJ.shape[1])
    for _ in range(30):
        mean_H = expected_H * np.exp(np.clip(basis_HJ @ log_J, -20.0, 20.0))
        slope_J = basis_HJ.T @ (observed_H - mean_H) - ridge_J * log_J
        curve_JJ = basis_HJ.T @ (mean_H[:, None] * basis_HJ) + np.diag(ridge_J)
        step_J = np.linalg.solve(curve_JJ, slope_J)
        log_J = log_J + np.clip(step_J, -1.0, 1.0)
        if np.abs(step_J).max() < 1e-9:
            break
    return log_J
