"""How predictions of measured steps are scored: what is left out of a fit, relative errors, regret, constant MFU.

Axis: M = measured step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.planner.layout_table import FloatArray
from airflow_llmsched.planner.perf.measured import MeasuredStep
from airflow_llmsched.planner.perf.predict import MeasuredSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One fit and what it is scored on. No row of ``test`` is in ``train``."""

    name: str
    train: tuple[MeasuredStep, ...]
    test: tuple[MeasuredStep, ...]


def without_hidden_sizes(steps: Sequence[MeasuredStep], *, source: str) -> Iterator[Fold]:
    """Leave out every row of one hidden size at a time, from whatever file, and score those of ``source``."""
    sizes = sorted({step.job.model.hidden_size for step in steps if step.source == source})
    for size in sizes:
        yield Fold(
            name=f"{source}, hidden size {size} left out",
            train=tuple(step for step in steps if step.job.model.hidden_size != size),
            test=tuple(step for step in steps if step.job.model.hidden_size == size and step.source == source),
        )


def without_scales(steps: Sequence[MeasuredStep]) -> Iterator[Fold]:
    """Leave out every row of one number of accelerators at a time, from whatever file, and score them all."""
    for num_ranks in sorted({step.num_ranks for step in steps}):
        yield Fold(
            name=f"{num_ranks} accelerators left out",
            train=tuple(step for step in steps if step.num_ranks != num_ranks),
            test=tuple(step for step in steps if step.num_ranks == num_ranks),
        )


def without_file(steps: Sequence[MeasuredStep], *, source: str) -> Fold:
    """Leave out a whole file and score it."""
    return Fold(
        name=f"{source} left out",
        train=tuple(step for step in steps if step.source != source),
        test=tuple(step for step in steps if step.source == source),
    )


def relative_errors_M(predicted_s_M: FloatArray, steps: Sequence[MeasuredStep]) -> FloatArray:
    """Return |predicted - measured| / measured."""
    measured_M = np.array([step.step_s for step in steps])
    return np.asarray(np.abs(predicted_s_M - measured_M) / measured_M)


def regrets(predicted_s_M: FloatArray, steps: Sequence[MeasuredStep]) -> list[float]:
    """Return, for each set-up with alternatives, how much longer our pick takes than the best published one.

    A set-up is a model, a machine, a number of accelerators and a global batch; of what is predicted equal, the first
    published is taken.
    """
    groups = defaultdict(list)
    for number, step in enumerate(steps):
        groups[step.job, step.shape.name, step.num_ranks].append(number)
    found = []
    for rows in groups.values():
        if len(rows) > 1:
            pick = min(rows, key=lambda row: predicted_s_M[row])
            found.append(steps[pick].step_s / min(steps[row].step_s for row in rows) - 1)
    return found


def constant_mfu_s_M(train: MeasuredSteps, test: MeasuredSteps) -> FloatArray:
    """Predict by one utilisation of the peak for each accelerator and format: the median of the rows fitted on.

    Each file weighs the same, so that the longest does not decide. What was not fitted on gets the median of all.
    """
    mfu_M = train.model_flop_M() / (_peak_M(train) * train.step_s_M)
    sources = [step.source for step in train.steps]
    weight_M = np.array([1 / sources.count(source) for source in sources])
    kinds = _kinds(train)
    taken = {
        kind: _weighted_median(mfu_M, weight_M * np.array([each == kind for each in kinds])) for kind in set(kinds)
    }
    overall = _weighted_median(mfu_M, weight_M)
    taken_M = np.array([taken.get(kind, overall) for kind in _kinds(test)])
    return test.model_flop_M() / (_peak_M(test) * taken_M)


def _weighted_median(values_M: FloatArray, weight_M: FloatArray) -> float:
    order = np.argsort(values_M)
    reached = np.cumsum(weight_M[order])
    return float(values_M[order][np.searchsorted(reached, reached[-1] / 2)])


def _kinds(steps: MeasuredSteps) -> list[tuple[str, str]]:
    return [(step.shape.accelerator.name, step.job.precision.compute.value) for step in steps.steps]


def _peak_M(steps: MeasuredSteps) -> FloatArray:
    return np.array(
        [step.num_ranks * step.shape.accelerator.peak_flop_per_s[step.job.precision.compute] for step in steps.steps]
    )
