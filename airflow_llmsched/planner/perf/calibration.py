"""Rates that were fitted to measured steps, and how far predictions with them are off: the value that a fit leaves.

Saved as TOML with what it was fitted to. Pure: who reads and writes the file gives its text.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from airflow_llmsched.domain.hardware import Accelerator
from airflow_llmsched.errors import DataError
from airflow_llmsched.planner.layout_table import FloatArray
from airflow_llmsched.planner.perf.rates import Rates, generation_of, prior_of_generation

FORMAT_VERSION = 1

COVERED_RATIO = 0.8
"""Share of steps that the error band is to hold."""

PRIOR_ERROR = 0.35
"""Standard deviation of the logarithm of measured over predicted where nothing was measured: an assumption."""
SHARED_ERROR_RATIO = 0.1
"""Correlation between the errors of one source's set-ups: an assumption."""
_PRIOR_WEIGHT = 5.0
"""How many independent measurements that assumption is worth."""
_HALF_NORMAL = (0.1257, 0.3853, 0.6745, 1.0364, 1.6449)
"""Quantiles 0.1, 0.3, 0.5, 0.7 and 0.9 of |x| for standard normal x."""


HOST_BOUND_RATIO = 0.25
"""Share of a step from which on its wait for the host decides how far the prediction is off. An assumption."""


class StepKind(StrEnum):
    """What decides how far the prediction of a step is off."""

    PLAIN = "plain"
    MIXTURE = "mixture"
    """A mixture of experts."""
    HOST_BOUND = "host_bound"
    """A step of any model that waits for the host to launch kernels: how long, hangs on software that nobody states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedKind:
    """What was fitted to the measurements of one generation of accelerators.

    Attributes:
        rates: the fit.
        error_ratio: half-width of the band that should hold ``COVERED_RATIO`` of steps: measured is at most that much
            above or below what is predicted. For plain steps.
        left_out_error_ratio: median error of measurements when those of their model and source are not fitted on.
        num_rows_by_source: where the measurements came from.
        error_ratio_by_kind: half-width of the bands of other steps; those of a kind that is not there have the same.
    """

    rates: Rates
    error_ratio: float
    left_out_error_ratio: float
    num_rows_by_source: Mapping[str, int]
    error_ratio_by_kind: Mapping[StepKind, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All kinds that were fitted, by generation. ``fitted_on`` is a date, ``notes`` whatever its reader should know."""

    fitted_on: str
    kinds: Mapping[str, FittedKind] = field(default_factory=dict)
    notes: str = ""

    def rates_of(self, accelerator: Accelerator) -> Rates:
        """Return what was fitted to an accelerator's generation, or that one's prior."""
        return self.rates_of_generation(generation_of(accelerator))

    def rates_of_generation(self, generation: str) -> Rates:
        """Return what was fitted to a generation, or its prior."""
        kind = self.kinds.get(generation)
        return prior_of_generation(generation) if kind is None else kind.rates

    def error_ratio(self, accelerator: Accelerator, of: StepKind = StepKind.PLAIN) -> float:
        """Return the half-width of the band for steps of a kind on an accelerator, fitted or not."""
        return self.error_ratio_of_generation(generation_of(accelerator), of)

    def error_ratio_of_generation(self, generation: str, of: StepKind = StepKind.PLAIN) -> float:
        """Return the half-width of the band for steps on a generation, fitted or not."""
        kind = self.kinds.get(generation)
        if kind is None:
            return band_error_ratio(np.zeros(0), np.zeros(0))
        return kind.error_ratio_by_kind.get(of, kind.error_ratio)


@cache
def packaged() -> Calibration:
    """Return the calibration that comes with the package."""
    name = "calibration.toml"
    return from_toml(resources.files(f"{__package__}.data").joinpath(name).read_text("utf-8"), name=name)


def over_packaged(own: Calibration) -> Calibration:
    """Return a deployment's calibration, with what comes with the package for generations that it never measured."""
    return replace(own, kinds={**packaged().kinds, **own.kinds})


def rates_of(accelerator: Accelerator) -> Rates:
    """Return what is known of a kind without measurements of one's own: the packaged fit, else its prior."""
    return packaged().rates_of(accelerator)


def band_error_ratio(log_error_M: FloatArray, weight_M: FloatArray) -> float:
    """Return the half-width that holds ``COVERED_RATIO`` of errors like these (M = measurement, left out of its fit).

    A weighted quantile of their sizes, with a few assumed ones among them: those of ``PRIOR_ERROR``. So the band is
    that wide without measurements, and becomes that of the errors really made as there are more.
    """
    assumed = PRIOR_ERROR * np.array(_HALF_NORMAL)
    sizes = np.concatenate([np.abs(log_error_M), assumed])
    weight = np.concatenate([weight_M, np.full(len(assumed), _PRIOR_WEIGHT / len(assumed))])
    order = np.argsort(sizes)
    reached = np.cumsum(weight[order])
    return math.expm1(float(sizes[order][np.searchsorted(reached, COVERED_RATIO * reached[-1])]))


def to_toml(calibration: Calibration) -> str:
    """Return the text of a calibration's file."""
    lines = [f"format_version = {FORMAT_VERSION}", f'fitted_on = "{calibration.fitted_on}"']
    lines += [f'notes = "{_quoted(calibration.notes)}"'] if calibration.notes else []
    for generation, kind in sorted(calibration.kinds.items()):
        lines += ["", f"[fitted.{generation}]"]
        lines += [f"error_ratio = {kind.error_ratio:.4f}", f"left_out_error_ratio = {kind.left_out_error_ratio:.4f}"]
        if kind.error_ratio_by_kind:
            lines += ["", f"[fitted.{generation}.error_ratio_by_kind]"]
            lines += [f"{of} = {ratio:.4f}" for of, ratio in sorted(kind.error_ratio_by_kind.items())]
        lines += ["", f"[fitted.{generation}.rates]"]
        lines += [f"{each.name} = {getattr(kind.rates, each.name):.5g}" for each in fields(Rates)]
        lines += ["", f"[fitted.{generation}.num_rows_by_source]"]
        lines += [f'"{_quoted(source)}" = {number}' for source, number in sorted(kind.num_rows_by_source.items())]
    return "\n".join(lines) + "\n"


def from_toml(text: str, *, name: str) -> Calibration:
    """Read what :func:`to_toml` wrote. Raises ``DataError``, which calls the file ``name``."""
    try:
        plain = tomllib.loads(text)
        if plain["format_version"] != FORMAT_VERSION:
            raise DataError(f"{name}: format {plain['format_version']}, this release reads {FORMAT_VERSION}; fit again")
        kinds = {generation: _kind(each) for generation, each in plain.get("fitted", {}).items()}
        return Calibration(fitted_on=plain["fitted_on"], kinds=kinds, notes=plain.get("notes", ""))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{name}: is no calibration ({error!r}); fit again with llmsched calibrate") from error


def independent_weights(sources: Sequence[str], setups: Sequence[object]) -> FloatArray:
    """Return how many independent measurements each row is worth.

    Rows of one set-up share one measurement's worth. What a source does not say of its software and network is wrong in
    all of its rows alike, so n set-ups of one are worth n / (1 + (n - 1) r) with the correlation r between their errors
    (the design effect, Kish 1965): never more than 1 / r.
    """
    recurring: dict[object, int] = {}
    for setup in setups:
        recurring[setup] = recurring.get(setup, 0) + 1
    num_setups: dict[str, set[object]] = {}
    for source, setup in zip(sources, setups, strict=True):
        num_setups.setdefault(source, set()).add(setup)
    pairs = zip(sources, setups, strict=True)
    return np.array([
        1 / recurring[setup] / (1 + (len(num_setups[source]) - 1) * SHARED_ERROR_RATIO) for source, setup in pairs
    ])  # fmt: skip


def _kind(plain: Mapping[str, Any]) -> FittedKind:
    return FittedKind(
        rates=Rates(**plain["rates"]),
        error_ratio=plain["error_ratio"],
        left_out_error_ratio=plain["left_out_error_ratio"],
        num_rows_by_source=plain["num_rows_by_source"],
        error_ratio_by_kind={StepKind(of): ratio for of, ratio in plain.get("error_ratio_by_kind", {}).items()},
    )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
