"""Predictions for measured steps, many at once: those of one job on one machine share a table of layouts. Pure.

Axis: M = measured step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np

from airflow_llmsched.domain.hardware import Accelerator
from airflow_llmsched.planner.layout_table import FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.calibration import StepKind, rates_of
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.measured import MeasuredStep
from airflow_llmsched.planner.perf.rates import Rates
from airflow_llmsched.planner.perf.step import model_flop_per_step, step_terms, waits_for_host


class MeasuredSteps:
    """Measurements prepared for being predicted again and again, with other rates each time."""

    def __init__(self, steps: Sequence[MeasuredStep]) -> None:
        self.steps = tuple(steps)
        self.step_s_M: FloatArray = np.array([step.step_s for step in steps], dtype=np.float64)
        self._groups = [_prepared(self.steps, rows_M) for rows_M in _grouped(self.steps)]

    def __len__(self) -> int:
        return len(self.steps)

    def predicted_s_M(self, rates: Callable[[Accelerator], Rates] = rates_of) -> FloatArray:
        """Return the seconds of each step, in the order of the measurements, by given rates of its accelerator."""
        found_M = np.zeros(len(self.steps))
        for job, table, machine, rows_M in self._groups:
            rated = replace(machine, rates=rates(machine.shape.accelerator))
            found_M[rows_M] = np.sum(list(step_terms(job, table, rated).values()), axis=0)
        return found_M

    def kinds(self, rates: Callable[[Accelerator], Rates] = rates_of) -> Sequence[StepKind]:
        """Return what decides how far the prediction of each step is off."""
        waits_M = np.zeros(len(self.steps), dtype=np.bool_)
        for job, table, machine, rows_M in self._groups:
            rated = replace(machine, rates=rates(machine.shape.accelerator))
            waits_M[rows_M] = waits_for_host(step_terms(job, table, rated))
        own = (StepKind.PLAIN if step.job.model.experts is None else StepKind.MIXTURE for step in self.steps)
        return [StepKind.HOST_BOUND if waits else kind for kind, waits in zip(own, waits_M.tolist(), strict=True)]

    def model_flop_M(self) -> FloatArray:
        """Return the operations that MFU counts, of each step."""
        return np.array([float(model_flop_per_step(step.job)) for step in self.steps])


def group_of(step: MeasuredStep) -> Hashable:
    """Return what steps predicted together have in common: all but the layout, which has the global batch in it."""
    network_bytes_per_s = step.shape.inter_node_bandwidth_bytes_per_s
    return replace(step.job, num_sequences=1), step.shape.name, network_bytes_per_s


def _grouped(steps: Sequence[MeasuredStep]) -> list[IntArray]:
    groups: dict[Hashable, list[int]] = {}
    for number, step in enumerate(steps):
        groups.setdefault(group_of(step), []).append(number)
    return [np.array(rows, dtype=np.int64) for rows in groups.values()]


def _prepared(steps: Sequence[MeasuredStep], rows_M: IntArray) -> tuple[TransformerJob, LayoutTable, Machine, IntArray]:
    chosen = [steps[row] for row in rows_M]
    machine = Machine(
        shape=chosen[0].shape, ranks_per_node_C=np.array([step.ranks_per_node for step in chosen], dtype=np.int64)
    )
    return chosen[0].job, LayoutTable.of(step.layout for step in chosen), machine, rows_M
