"""What each batch phase of a run costs under layouts that stay the same from its first step to its last. Pure.

Axis: C = candidate layout. A phase changes the sequence length and the number of sequences; ranks stay as they are, so
that only the number of micro-batches follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from airflow_llmsched.domain.plan import PhasePrediction
from airflow_llmsched.domain.workload import BatchPhase, WorkloadSpec, count_phase_steps
from airflow_llmsched.planner.layout_table import FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.energy import step_energy_j
from airflow_llmsched.planner.perf.job import TransformerJob, filling_phases, job_of
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.memory import MemoryPeak, fuller, memory_peak, memory_totals
from airflow_llmsched.planner.perf.step import step_terms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseCosts:
    """One phase: how many steps of the run it has, and what a step takes and needs under each candidate.

    ``energy_j_C`` is None where the power of the machine is not known.
    """

    phase: BatchPhase
    num_steps: int
    step_s_C: FloatArray
    memory_bytes_C: IntArray
    energy_j_C: FloatArray | None

    def prediction(self, index: int) -> PhasePrediction:
        """Return what is predicted for one candidate."""
        return PhasePrediction(
            from_tokens=self.phase.from_tokens,
            sequence_length_tokens=self.phase.sequence_length_tokens,
            num_sequences=self.phase.num_sequences,
            num_steps=self.num_steps,
            step_s=float(self.step_s_C[index]),
            memory_bytes_per_rank=int(self.memory_bytes_C[index]),
        )


def phase_costs(workload: WorkloadSpec, table: LayoutTable, machine: Machine) -> tuple[PhaseCosts, ...]:
    """Price every phase of a workload with a model. ``table`` must be legal in all of them.

    Phases that differ in their beginning alone are priced once.

    Raises:
        KeyError: the accelerator lacks the number format.
    """
    found: dict[tuple[int, int], tuple[FloatArray, IntArray, FloatArray | None]] = {}
    costs = []
    for phase, num_steps in zip(workload.batch, count_phase_steps(workload.batch, workload.budget), strict=True):
        key = (phase.sequence_length_tokens, phase.num_sequences)
        if key not in found:
            found[key] = _priced(workload, phase, table, machine)
        step_s_C, memory_bytes_C, energy_j_C = found[key]
        costs.append(
            PhaseCosts(
                phase=phase, num_steps=num_steps, step_s_C=step_s_C, memory_bytes_C=memory_bytes_C,
                energy_j_C=energy_j_C,
            )
        )  # fmt: skip
    return tuple(costs)


def peak_of_phases(workload: WorkloadSpec, table: LayoutTable, *, reserved_bytes: int) -> MemoryPeak:
    """Return what the fullest rank holds in the phase in which it holds most, of a workload with a model.

    ``table`` has the micro-batches of the heaviest phase.
    """
    first, *others = filling_phases(workload)
    peaks = [memory_peak(job_of_phase(workload, first), table, reserved_bytes=reserved_bytes)]
    peaks += [
        memory_peak(job_of_phase(workload, each), in_phase(table, each), reserved_bytes=reserved_bytes)
        for each in others
    ]
    return reduce(fuller, peaks)


def totals_of_phases(workload: WorkloadSpec, table: LayoutTable, *, reserved_bytes: int) -> IntArray:
    """Return the totals of :func:`peak_of_phases` alone, in half the time."""
    first, *others = filling_phases(workload)
    totals = [memory_totals(job_of_phase(workload, first), table, reserved_bytes=reserved_bytes)]
    totals += [
        memory_totals(job_of_phase(workload, each), in_phase(table, each), reserved_bytes=reserved_bytes)
        for each in others
    ]
    return reduce(np.maximum, totals)


def in_phase(table: LayoutTable, phase: BatchPhase) -> LayoutTable:
    """Return candidates as they are in a phase: with its number of micro-batches."""
    return replace(table, num_micro_batches_C=phase.num_sequences // (table.dp_C * table.micro_batch_C))


def job_of_phase(workload: WorkloadSpec, phase: BatchPhase) -> TransformerJob:
    """Return the job of a phase of a workload with a model."""
    job = job_of(workload, phase)
    assert job is not None, "a job without a model has no phases that differ"
    return job


def _priced(
    workload: WorkloadSpec, phase: BatchPhase, table: LayoutTable, machine: Machine
) -> tuple[FloatArray, IntArray, FloatArray | None]:
    job, here = job_of_phase(workload, phase), in_phase(table, phase)
    terms = step_terms(job, here, machine)
    return (
        np.sum(list(terms.values()), axis=0),
        memory_totals(job, here, reserved_bytes=machine.shape.accelerator.reserved_bytes),
        step_energy_j(terms, here, machine.shape),
    )
