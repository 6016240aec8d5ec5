"""Least squares with priors and a robust loss, and what each group of rows would have been predicted without itself.

Axes: P = parameter, M = measurement. Parameters are handled in units of their spread about their prior.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.planner.layout_table import FloatArray

_STEP = 1e-3
"""Of finite differences, in units of a parameter's spread."""
_FAR = 1.5
"""How far, in the same units, parameters move before slopes are measured anew; nearer, they are corrected."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """What is fitted.

    Attributes:
        predict: parameters to predictions, in the space in which errors add up (logarithms, say).
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
class Start:
    """Where to begin: values, and slopes of predictions there (per spread) if known, which take longest to find."""

    value_P: FloatArray
    slope_MP: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A fit. ``left_out_M`` are residuals (predicted less measured) as if each row's group had not been fitted on."""

    value_P: FloatArray
    deviation_P: FloatArray
    slope_MP: FloatArray
    residual_M: FloatArray
    left_out_M: FloatArray
    num_predictions: int


def fit(problem: Problem, *, groups: Sequence[object], start: Start | None = None, max_steps: int = 20) -> Fit:
    """Fit by trust-region least squares (Branch, Coleman and Li 1999, in SciPy) with a soft L1 loss on rows only.

    Leave-group-out residuals are the linearised ones, (I - H)^-1 r with the group's block of the hat matrix H (Cook and
    Weisberg 1982, section 2.2), exact where predictions are linear in the parameters.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - heavy, and wanted only when something is fitted

    model = _Model(problem, start)
    scale_M = np.sqrt(problem.weight_M) / problem.noise
    begin_P = np.zeros_like(problem.prior_P) if start is None else (start.value_P - problem.prior_P) / problem.spread_P

    def residuals(unit_P: FloatArray) -> FloatArray:
        return np.concatenate([scale_M * (model.predicted_M(unit_P) - problem.measured_M), unit_P])

    def jacobian(unit_P: FloatArray) -> FloatArray:
        return np.concatenate([scale_M[:, None] * model.slope_MP(unit_P), np.eye(len(unit_P))])

    def loss(squared: FloatArray) -> FloatArray:
        return _soft_l1_of_rows(squared, len(scale_M))

    found = least_squares(residuals, begin_P, jac=jacobian, loss=loss, method="trf", max_nfev=max_steps, ftol=1e-4)
    unit_P = np.asarray(found.x, dtype=np.float64)
    residual_M = model.predicted_M(unit_P) - problem.measured_M
    trusted_M = 1 / np.sqrt(1 + (residual_M * scale_M) ** 2)  # the loss's weight of each row at the solution
    rows = _Rows(slope_MP=model.slope_MP(unit_P), scale_M=scale_M * np.sqrt(trusted_M))
    return Fit(
        value_P=problem.prior_P + unit_P * problem.spread_P,
        deviation_P=np.sqrt(np.diag(np.linalg.inv(rows.information_PP))) * problem.spread_P,
        slope_MP=rows.slope_MP,
        residual_M=residual_M,
        left_out_M=rows.left_out_M(residual_M, groups),
        num_predictions=model.num_predictions,
    )


def cost(problem: Problem, value_P: FloatArray) -> float:
    """Return what :func:`fit` makes small: the loss of the rows, and how far parameters are from their prior."""
    scaled_M = np.sqrt(problem.weight_M) / problem.noise * (problem.predict(value_P) - problem.measured_M)
    unit_P = (value_P - problem.prior_P) / problem.spread_P
    return float(_soft_l1_of_rows(np.concatenate([scaled_M, unit_P]) ** 2, len(scaled_M))[0].sum() / 2)


class _Model:
    """Predictions and their slopes: measured by finite differences, then corrected after Broyden (1965) nearby."""

    def __init__(self, problem: Problem, start: Start | None) -> None:
        self._problem = problem
        self._last: tuple[FloatArray, FloatArray] | None = None
        self._slope_MP: FloatArray | None = None
        self._slope_at_P = self._measured_at_P = problem.prior_P
        self._slope_of_M: FloatArray = problem.measured_M
        self.num_predictions = 0
        if start is not None and start.slope_MP is not None:
            begin_P = (start.value_P - problem.prior_P) / problem.spread_P
            self._keep(start.slope_MP, begin_P)
            self._measured_at_P = begin_P

    def predicted_M(self, unit_P: FloatArray) -> FloatArray:
        if self._last is None or not np.array_equal(self._last[0], unit_P):
            self._last = unit_P.copy(), self._predict(unit_P)
        return self._last[1]

    def slope_MP(self, unit_P: FloatArray) -> FloatArray:
        if self._slope_MP is None or float(np.linalg.norm(unit_P - self._measured_at_P)) > _FAR:
            self._keep(self._measured(unit_P), unit_P)
            self._measured_at_P = unit_P.copy()
        moved_P = unit_P - self._slope_at_P
        squared = float(moved_P @ moved_P)
        assert self._slope_MP is not None
        if squared > 0:
            missed_M = self.predicted_M(unit_P) - self._slope_of_M - self._slope_MP @ moved_P
            self._keep(self._slope_MP + np.outer(missed_M, moved_P) / squared, unit_P)
        return self._slope_MP

    def _keep(self, slope_MP: FloatArray, unit_P: FloatArray) -> None:
        self._slope_MP, self._slope_at_P, self._slope_of_M = slope_MP, unit_P.copy(), self.predicted_M(unit_P)

    def _measured(self, unit_P: FloatArray) -> FloatArray:
        base_M = self.predicted_M(unit_P)
        slopes = [(self._predict(unit_P + step_P) - base_M) / _STEP for step_P in _STEP * np.eye(len(unit_P))]
        return np.stack(slopes, axis=1)

    def _predict(self, unit_P: FloatArray) -> FloatArray:
        self.num_predictions += 1
        return self._problem.predict(self._problem.prior_P + unit_P * self._problem.spread_P)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Rows at the solution; ``scale_M`` is the inverse of each one's standard deviation."""

    slope_MP: FloatArray
    scale_M: FloatArray

    @property
    def information_PP(self) -> FloatArray:
        """Inverse of the parameters' covariance, in units of their spread: what rows tell, and the prior."""
        scaled_MP = self.scale_M[:, None] * self.slope_MP
        return np.asarray(scaled_MP.T @ scaled_MP + np.eye(self.slope_MP.shape[1]))

    def left_out_M(self, residual_M: FloatArray, groups: Sequence[object]) -> FloatArray:
        # (I - J C J')^-1 r = r + J (C^-1 - J'J)^-1 J' r: as small as there are parameters, however many rows
        information_PP = self.information_PP
        members: dict[object, list[int]] = {}
        for number, group in enumerate(groups):
            members.setdefault(group, []).append(number)
        left_out_M = np.zeros_like(residual_M)
        for rows in members.values():
            block = self.scale_M[rows, None] * self.slope_MP[rows]
            scaled = self.scale_M[rows] * residual_M[rows]
            moved = block @ np.linalg.solve(information_PP - block.T @ block, block.T @ scaled)
            left_out_M[rows] = (scaled + moved) / self.scale_M[rows]
        return left_out_M


def _soft_l1_of_rows(squared: FloatArray, num_rows: int) -> FloatArray:
    """Return SciPy's loss, its slope and its curvature: 2 (sqrt(1 + z) - 1) for rows, z for the prior behind them."""
    rho = np.stack([squared, np.ones_like(squared), np.zeros_like(squared)])
    root = np.sqrt(1 + squared[:num_rows])
    rho[:, :num_rows] = 2 * (root - 1), 1 / root, -0.5 / root**3
    return np.asarray(rho)
