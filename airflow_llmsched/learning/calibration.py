"""Fits rates to measured steps, generation by generation of accelerators. Owns what is fitted, and how much rows count.

Axes: P = number of ``Rates``, M = measured step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from airflow_llmsched.domain.hardware import Accelerator
from airflow_llmsched.learning.robust_fit import Fit, Problem, Start, cost, fit
from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.perf.calibration import (
    Calibration,
    FittedKind,
    StepKind,
    band_error_ratio,
    independent_weights,
)
from airflow_llmsched.planner.perf.measured import MeasuredStep
from airflow_llmsched.planner.perf.predict import MeasuredSteps, group_of
from airflow_llmsched.planner.perf.rates import AT_MOST_ONE, LOG_SPREAD, Rates, generation_of

MAX_GROUPS_PER_SOURCE = 16
"""Of a source that measured more jobs, so many are fitted on, evenly spread over sizes. More tell little more, since
they share what the source does not say, and predicting them is what takes time."""
NOISE = 0.05
"""Standard deviation of the logarithm of a good measurement about a good prediction."""

FAR = 0.3
"""Change of a logarithm from which on a linearised residual is checked by fitting again."""

_HOST_FACTORS = (1.0, 2.0, 4.0, 8.0)

_NAMES = tuple(each.name for each in fields(Rates))
_SPREAD_P = np.array([LOG_SPREAD[name] for name in _NAMES])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindFit:
    """A fitted generation, and what a fit to some of the same steps may begin with."""

    kind: FittedKind
    begin: Start
    number_of: Mapping[tuple[str, int], int]

    def start(self, steps: Sequence[MeasuredStep]) -> Start | None:
        """Return where a fit to ``steps`` may begin: None unless all of them were fitted on."""
        keys = [(step.source, step.row) for step in steps]
        if not all(key in self.number_of for key in keys):
            return None
        numbers = [self.number_of[key] for key in keys]
        slope_MP = None if self.begin.slope_MP is None else self.begin.slope_MP[numbers]
        return Start(value_P=self.begin.value_P, slope_MP=slope_MP)


def calibrate(
    steps: Sequence[MeasuredStep],
    *,
    prior: Callable[[str], Rates],
    fitted_on: str,
    notes: str = "",
) -> Calibration:
    """Fit each generation that ``steps`` have to its own rows, from the prior of that generation.

    Args:
        steps: measurements; of a source that gives many, each counts less.
        prior: rates of a generation before it was measured.
        fitted_on: the date to write down.
        notes: for whoever reads the calibration.
    """
    fits = {name: fit_kind(rows, prior=prior(name)) for name, rows in by_generation(thinned(steps)).items()}
    return Calibration(fitted_on=fitted_on, kinds={name: each.kind for name, each in fits.items()}, notes=notes)


def by_generation(steps: Sequence[MeasuredStep]) -> Mapping[str, Sequence[MeasuredStep]]:
    """Return the steps of each generation, generations by name."""
    found: dict[str, list[MeasuredStep]] = {}
    for step in steps:
        found.setdefault(generation_of(step.shape.accelerator), []).append(step)
    return dict(sorted(found.items()))


def thinned(steps: Sequence[MeasuredStep]) -> Sequence[MeasuredStep]:
    """Return the steps of at most ``MAX_GROUPS_PER_SOURCE`` groups of each source."""
    groups: dict[str, dict[Hashable, tuple[int, int]]] = {}
    for step in steps:
        size = step.job.model.hidden_size, step.job.sequence_length_tokens
        groups.setdefault(step.source, {})[group_of(step)] = size
    chosen = set()
    for source, sizes in groups.items():
        ordered = sorted(sizes, key=lambda group: sizes[group])
        kept = np.linspace(0, len(ordered) - 1, min(len(ordered), MAX_GROUPS_PER_SOURCE)).round().astype(int)
        chosen |= {(source, ordered[number]) for number in kept}
    return [step for step in steps if (step.source, group_of(step)) in chosen]


def fit_kind(steps: Sequence[MeasuredStep], *, prior: Rates, begin: KindFit | None = None) -> KindFit:
    """Fit one generation. Errors are relative: logarithms are compared. The band is that of models not fitted on.

    With ``begin``, a fit to more steps, the result is the same but for rounding, and found much sooner.
    """
    steps = _possible(steps, prior)
    rows = MeasuredSteps(steps)
    sources = [step.source for step in steps]
    weight_M = independent_weights(sources, [step.setup for step in steps])
    problem = Problem(
        predict=lambda log_P: np.log(rows.predicted_s_M(lambda _: _rates(log_P))),
        measured_M=np.log(rows.step_s_M),
        weight_M=weight_M,
        prior_P=_logarithms(prior),
        spread_P=_SPREAD_P,
        noise=NOISE,
    )
    start = (begin.start(steps) if begin is not None else None) or _best_start(problem)
    models = [(step.source, step.job.model.hidden_size) for step in steps]
    found = fit(problem, groups=models, start=start)
    left_out_M, kinds = _left_out(rows, problem, found, models)
    bands = _bands(steps, kinds, left_out_M)
    kind = FittedKind(
        rates=_rates(found.value_P),
        error_ratio=bands[StepKind.PLAIN],
        error_ratio_by_kind={of: bands[of] for of in (StepKind.MIXTURE, StepKind.HOST_BOUND)},
        left_out_error_ratio=float(np.median(np.abs(np.expm1(left_out_M)))),
        num_rows_by_source={source: sources.count(source) for source in dict.fromkeys(sources)},
    )
    return KindFit(
        kind=kind,
        begin=Start(value_P=found.value_P, slope_MP=found.slope_MP),
        number_of={(step.source, step.row): number for number, step in enumerate(steps)},
    )


def _left_out(
    rows: MeasuredSteps, problem: Problem, found: Fit, models: Sequence[Hashable]
) -> tuple[FloatArray, Sequence[StepKind]]:
    """Return residuals, and kinds of steps, as predicted when each row's model is not fitted on.

    Linearised residuals are good nearby. Where they move far they are not, as where a model alone tells how long the
    host takes, and steps wait for it or do not: such a model is left out of a fit.
    """
    left_out_M, kinds = found.left_out_M.copy(), list(rows.kinds(_constant(_rates(found.value_P))))
    for model in dict.fromkeys(models):
        is_own_M = np.array([each == model for each in models])
        if is_own_M.all() or np.abs(left_out_M - found.residual_M)[is_own_M].max() < FAR:
            continue
        without = _fit_of(rows, problem, found, np.flatnonzero(~is_own_M))
        left_out_M[is_own_M] = (problem.predict(without.value_P) - problem.measured_M)[is_own_M]
        kinds_without = rows.kinds(_constant(_rates(without.value_P)))
        kinds = [new if own else old for own, new, old in zip(is_own_M.tolist(), kinds_without, kinds, strict=True)]
    return left_out_M, kinds


def _constant(rates: Rates) -> Callable[[Accelerator], Rates]:
    return lambda _: rates


def _fit_of(rows: MeasuredSteps, problem: Problem, found: Fit, kept: IntArray) -> Fit:
    """Fit some of the rows, beginning at the fit to all."""
    few = MeasuredSteps([rows.steps[number] for number in kept])
    narrowed = replace(
        problem,
        predict=lambda log_P: np.log(few.predicted_s_M(lambda _: _rates(log_P))),
        measured_M=problem.measured_M[kept],
        weight_M=problem.weight_M[kept],
    )
    return fit(narrowed, groups=range(len(kept)), start=Start(value_P=found.value_P, slope_MP=found.slope_MP[kept]))


def _bands(
    steps: Sequence[MeasuredStep], kinds: Sequence[StepKind], log_error_M: FloatArray
) -> Mapping[StepKind, float]:
    """Return the half-width of the band of each kind of steps, by the errors of steps of that kind."""
    found = {}
    for of in StepKind:
        own = [number for number, kind in enumerate(kinds) if kind is of]
        weight_M = independent_weights([steps[each].source for each in own], [steps[each].setup for each in own])
        found[of] = band_error_ratio(log_error_M[own], weight_M)
    return found


def _possible(steps: Sequence[MeasuredStep], prior: Rates) -> Sequence[MeasuredStep]:
    """Leave out what the model holds impossible, and so gives no time: no rates can change that."""
    is_possible_M = np.isfinite(MeasuredSteps(steps).predicted_s_M(lambda _: prior))
    return [step for step, is_possible in zip(steps, is_possible_M, strict=True) if is_possible]


def _best_start(problem: Problem) -> Start:
    """Return the prior, or that with a slower host if it is nearer: a host that no pass waits for has no slope."""
    tried = []
    for factor in _HOST_FACTORS:
        value_P = problem.prior_P.copy()
        value_P[_NAMES.index("host_kernel_s")] += np.log(factor)
        tried.append(value_P)
    return Start(value_P=min(tried, key=lambda value_P: cost(problem, value_P)))


def _logarithms(rates: Rates) -> FloatArray:
    return np.log([max(getattr(rates, name), 1e-12) for name in _NAMES])


def _rates(log_P: FloatArray) -> Rates:
    values = dict(zip(_NAMES, np.exp(log_P).tolist(), strict=True))
    return Rates(**{name: min(value, 1.0) if name in AT_MOST_ONE else value for name, value in values.items()})
