"""Least squares with priors and a robust loss, and what each group of rows would have been predicted without itself.

Axes: P = parameter, M = measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.planner.layout_table import FloatArray

_STEP = 1e-3
"""Of finite differences, in units of a parameter's spread."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """What is fitted.

    Attributes:
        predict: parameters to predictions, both in the space in which errors add up (logarithms, say).
        measured_M: what was seen, in that space.
        weight_M: how much each row counts; 1 is one independent measurement.
        prior_P: where parameters stay without rows.
        spread_P: standard deviation of each parameter about its prior.
        noise: standard deviation of a good row about a good prediction; what is much farther off counts less and less.
    """

    predict: Callable[[FloatArray], FloatArray]
    measured_M: FloatArray
    weight_M: FloatArray
    prior_P: FloatArray
    spread_P: FloatArray
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A fit. ``left_out_M`` are residuals (predicted less measured) as if each row's group had not been fitted on."""

    value_P: FloatArray
    deviation_P: FloatArray
    residual_M: FloatArray
    left_out_M: FloatArray
    num_evaluations: int


def fit(problem: Problem, *, groups: Sequence[object], start_P: FloatArray | None = None, max_steps: int = 20) -> Fit:
    """Fit by trust-region least squares (Branch, Coleman and Li 1999, in SciPy) with a soft L1 loss on rows only.

    Leave-group-out residuals are the linearised ones, (I - H)^-1 r with the group's block of the hat matrix H (Cook and
    Weisberg 1982, section 2.2), exact where predictions are linear in the parameters.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - heavy, and wanted only when something is fitted

    scale_M = np.sqrt(problem.weight_M) / problem.noise
    num_rows = len(problem.measured_M)

    def residuals(unit_P: FloatArray) -> FloatArray:
        predicted_M = problem.predict(problem.prior_P + unit_P * problem.spread_P)
        return np.concatenate([scale_M * (predicted_M - problem.measured_M), unit_P])

    def jacobian(unit_P: FloatArray) -> FloatArray:
        slope_MP = _slopes(problem, problem.prior_P + unit_P * problem.spread_P)
        return np.concatenate([scale_M[:, None] * slope_MP, np.eye(len(unit_P))])

    def loss(squared: FloatArray) -> FloatArray:
        rho = np.stack([squared, np.ones_like(squared), np.zeros_like(squared)])
        root = np.sqrt(1 + squared[:num_rows])
        rho[:, :num_rows] = 2 * (root - 1), 1 / root, -0.5 / root**3
        return rho

    start = np.zeros_like(problem.prior_P) if start_P is None else (start_P - problem.prior_P) / problem.spread_P
    found = least_squares(residuals, start, jac=jacobian, loss=loss, method="trf", max_nfev=max_steps, ftol=1e-4)
    value_P = np.asarray(problem.prior_P + found.x * problem.spread_P, dtype=np.float64)
    residual_M = np.asarray(residuals(found.x)[:num_rows] / scale_M, dtype=np.float64)
    jac = jacobian(found.x)
    trusted_M = 1 / np.sqrt(1 + (residual_M * scale_M) ** 2)  # the loss's weight of each row at the solution
    jac[:num_rows] *= np.sqrt(trusted_M)[:, None]
    covariance = np.linalg.inv(jac.T @ jac)
    return Fit(
        value_P=value_P,
        deviation_P=np.sqrt(np.diag(covariance)) * problem.spread_P,
        residual_M=residual_M,
        left_out_M=_left_out(
            jac[:num_rows],
            np.asarray(covariance, dtype=np.float64),
            residual_M,
            np.asarray(scale_M * np.sqrt(trusted_M)),
            groups,
        ),
        num_evaluations=int(found.nfev),
    )


def _slopes(problem: Problem, value_P: FloatArray) -> FloatArray:
    base_M = problem.predict(value_P)
    slopes = [(problem.predict(value_P + step_P) - base_M) / _STEP for step_P in np.diag(_STEP * problem.spread_P)]
    return np.stack(slopes, axis=1)


def _left_out(
    scaled_jac_MP: FloatArray,
    covariance_PP: FloatArray,
    residual_M: FloatArray,
    scale_M: FloatArray,
    groups: Sequence[object],
) -> FloatArray:
    left_out_M = np.zeros_like(residual_M)
    members: dict[object, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    for rows in members.values():
        block = scaled_jac_MP[rows]
        # (I - J C J')^-1 r = r + J (C^-1 - J'J)^-1 J' r: as small as there are parameters, however many rows
        scaled = residual_M[rows] * scale_M[rows]
        rest = np.linalg.inv(covariance_PP) - block.T @ block
        moved = block @ np.linalg.solve(rest, block.T @ scaled)
        left_out_M[rows] = (scaled + moved) / scale_M[rows]
    return left_out_M
