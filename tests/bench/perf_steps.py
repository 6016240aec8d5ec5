"""Rows of ``make bench-perf`` about step times: each out of sample, with a constant utilisation beside it.

A vTrain row is predicted by rates to which no model of its hidden size was fitted, from whatever file; a row of another
file by rates to which no row of its file was. Then all rows once more, by rates to which no row of as many accelerators
was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.learning.calibration import by_generation, fit_kind, thinned
from airflow_llmsched.planner.layout_table import FloatArray
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.planner.perf.measured import MeasuredStep
from airflow_llmsched.planner.perf.predict import MeasuredSteps
from airflow_llmsched.planner.perf.rates import prior_of_generation
from tests.bench.perf_scores import (
    Fold,
    constant_mfu_s_M,
    regrets,
    relative_errors_M,
    without_file,
    without_hidden_sizes,
    without_scales,
)
from tests.bench.rows import Row

SINGLE, MULTI = "vtrain_ground_truth_single", "vtrain_ground_truth_multi"
MAX_MAPE = {SINGLE: 0.12, MULTI: 0.10}
GOAL_MAPE = {SINGLE: 0.084, MULTI: 0.07}
MAX_REGRET = {SINGLE: 0.05, MULTI: 0.01}
VTRAIN_CLAIMS = {SINGLE: 0.0837, MULTI: 0.1473}
CALCULON_MEASURED = {SINGLE: 0.3895, MULTI: 0.1533}
CALCULON_REGRET = {SINGLE: 0.10, MULTI: 0.013}
WITH_BAR = (
    "megatron_llama_tables",
    "mosaicml_llmfoundry",
    "megatron_bridge_perf",
    "dgxc_step_times",
    "mlperf_step_times",
)
MAX_MEDIAN = 0.10
WITHOUT_BAR = ("torchtitan_bench", "nemo_megatron_h100_fp8", "maxtext_tpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Out-of-sample predictions. ``within_M``: whether the measurement lies inside of the band that was claimed."""

    steps: tuple[MeasuredStep, ...]
    predicted_s_M: FloatArray
    constant_s_M: FloatArray
    within_M: np.ndarray

    def errors_M(self) -> FloatArray:
        return relative_errors_M(self.predicted_s_M, self.steps)

    def constant_errors_M(self) -> FloatArray:
        return relative_errors_M(self.constant_s_M, self.steps)


class Scorer:
    """Fits once to everything, and from there to what each fold leaves; only the generations that are scored."""

    def __init__(self, steps: Sequence[MeasuredStep], *, fitted_on: str) -> None:
        self._fitted_on = fitted_on
        self._steps = tuple(steps)
        taken = thinned(steps)
        self._taken = {(step.source, step.row) for step in taken}
        self._whole = {
            name: fit_kind(rows, prior=prior_of_generation(name)) for name, rows in by_generation(taken).items()
        }

    @property
    def calibration(self) -> Calibration:
        """What is fitted to everything."""
        return Calibration(fitted_on=self._fitted_on, kinds={name: fit.kind for name, fit in self._whole.items()})

    def source(self, source: str) -> Scored:
        """Score one file, hidden size by hidden size if it is one of vTrain's."""
        if source in MAX_MAPE:
            folds = list(without_hidden_sizes(self._steps, source=source))
        else:
            folds = [without_file(self._steps, source=source)]
        return _joined([self._scored(fold) for fold in folds if fold.test])

    def scales(self) -> Scored:
        """Score every file, one number of accelerators after the other."""
        return _joined([self._scored(fold) for fold in without_scales(self._steps)])

    def _scored(self, fold: Fold) -> Scored:
        calibration = self._fitted(fold)
        test = MeasuredSteps(fold.test)
        predicted_s_M = test.predicted_s_M(calibration.rates_of)
        kinds = test.kinds(calibration.rates_of)
        band_M = np.array([
            calibration.error_ratio(step.shape.accelerator, kind) for step, kind in zip(fold.test, kinds, strict=True)
        ])  # fmt: skip
        log_error_M = np.log(predicted_s_M / test.step_s_M)
        return Scored(
            steps=fold.test,
            predicted_s_M=predicted_s_M,
            constant_s_M=constant_mfu_s_M(MeasuredSteps(fold.train), test),
            within_M=np.abs(log_error_M) <= np.log1p(band_M),
        )

    def _fitted(self, fold: Fold) -> Calibration:
        wanted, trained = by_generation(fold.test), by_generation(self._thinned(fold.train))
        kinds = {
            name: fit_kind(trained[name], prior=prior_of_generation(name), begin=self._whole[name]).kind
            for name in wanted
            if name in trained
        }
        return Calibration(fitted_on=self._fitted_on, kinds=kinds)

    def _thinned(self, steps: Sequence[MeasuredStep]) -> Sequence[MeasuredStep]:
        return [step for step in steps if (step.source, step.row) in self._taken]


def rows(scorer: Scorer, sources: Sequence[str]) -> Iterator[Row]:
    """Yield the figures of each of ``sources`` that has rows."""
    for source in sources:
        scored = scorer.source(source)
        if source in MAX_MAPE:
            yield from _vtrain_rows(source, scored)
        else:
            yield _file_row(source, scored)
        yield Row(name=f"{source}: steps inside of the claimed band of 80 %", value=float(scored.within_M.mean()))


def scale_row(scored: Scored) -> Row:
    """Return the figure of all files with each number of accelerators left out."""
    errors_M = scored.errors_M()
    return Row(
        name=f"all files: median error of {len(errors_M)} rows, number of accelerators left out",
        value=float(np.median(errors_M)),
        reference={"constant MFU": float(np.median(scored.constant_errors_M())), "mean": float(errors_M.mean())},
    )


def _vtrain_rows(source: str, scored: Scored) -> Iterator[Row]:
    reference = {"vTrain": VTRAIN_CLAIMS[source], "Calculon": CALCULON_MEASURED[source]}
    constant = float(scored.constant_errors_M().mean())
    value = float(scored.errors_M().mean())
    name = f"{source}: MAPE, hidden size left out"
    yield Row(name=name, value=value, below=MAX_MAPE[source], reference={"constant MFU": constant, **reference})
    yield Row(name=f"{source}: the same against the goal", value=value, below=GOAL_MAPE[source])
    found = regrets(scored.predicted_s_M, scored.steps)
    chance = {"Calculon": CALCULON_REGRET[source]}
    yield Row(
        name=f"{source}: mean regret of {len(found)} picks", value=float(np.mean(found)), below=MAX_REGRET[source],
        reference=chance,
    )  # fmt: skip


def _file_row(source: str, scored: Scored) -> Row:
    errors_M = scored.errors_M()
    return Row(
        name=f"{source}: median error of {len(errors_M)} rows, file left out",
        value=float(np.median(errors_M)),
        below=MAX_MEDIAN if source in WITH_BAR else None,
        reference={"constant MFU": float(np.median(scored.constant_errors_M())), "mean": float(errors_M.mean())},
    )


def _joined(parts: Sequence[Scored]) -> Scored:
    return Scored(
        steps=tuple(step for part in parts for step in part.steps),
        predicted_s_M=np.concatenate([part.predicted_s_M for part in parts]),
        constant_s_M=np.concatenate([part.constant_s_M for part in parts]),
        within_M=np.concatenate([part.within_M for part in parts]),
    )
