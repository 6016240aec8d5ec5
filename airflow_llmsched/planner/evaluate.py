"""What each candidate would cost: seconds, bytes and operations by term, whatever kind of job it is. Pure.

Axis: C = candidate layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.hardware import Accelerator, NodeShape
from airflow_llmsched.domain.plan import Prediction
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.layout_table import FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.calibration import StepKind
from airflow_llmsched.planner.perf.demands import demand_memory_terms, demand_step_terms
from airflow_llmsched.planner.perf.energy import step_energy_j, unknown_power
from airflow_llmsched.planner.perf.job import TransformerJob, heaviest_phase, job_of
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.memory import (
    allocator_settings,
    describe_rank,
)
from airflow_llmsched.planner.perf.step import (
    hardware_flop_per_step,
    model_flop_per_step,
    peak_flop_per_s,
    step_terms,
    waits_for_host,
)
from airflow_llmsched.planner.perf.stragglers import step_quantile_s
from airflow_llmsched.planner.phases import PhaseCosts, peak_of_phases, phase_costs, totals_of_phases
from airflow_llmsched.units import HOUR_S

UNKNOWN_ERROR_RATIO = 0.5
"""Half-width of the band of a job that states its own traffic: its computation is not known, so nor is its error."""

HEADROOM_RATIO = 0.05
"""Share of an accelerator's memory that a plan leaves free. An assumption."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Costs of a table of candidates. Terms add up to ``step_s_C`` and ``memory_bytes_C``.

    ``model_flop`` and ``peak_flop_per_s`` are 0 for a job whose computation is not known. ``phases`` is empty where all
    of the run's ``num_steps`` are alike. ``fullest_stage_C`` is the pipeline stage whose ranks the memory is of; None
    for a job that states its memory itself. ``hardware_flop_C`` has what is computed again, or is None.
    ``energy_j_C`` is None where the power of the machine or the time of a step is not known, ``energy_unknown`` why.
    """

    table: LayoutTable
    step_terms_s: Mapping[str, FloatArray]
    memory_terms_bytes: Mapping[str, IntArray]
    step_s_C: FloatArray
    step_p50_s_C: FloatArray
    step_p90_s_C: FloatArray
    energy_j_C: FloatArray | None
    memory_bytes_C: IntArray
    tokens_per_step: int
    model_flop: int
    peak_flop_per_s: float
    num_steps: int
    error_ratio_C: FloatArray
    phases: tuple[PhaseCosts, ...] = ()
    fullest_stage_C: IntArray | None = None
    allocator_settings: str = ""
    hardware_flop_C: FloatArray | None = None
    energy_unknown: str = ""

    def prediction(self, index: int, *, usd_per_hour: float) -> Prediction:
        """Return what is predicted for one candidate, terms that are zero left out."""
        step_breakdown_s = {name: float(term[index]) for name, term in self.step_terms_s.items() if term[index] > 0}
        memory_breakdown = {name: int(term[index]) for name, term in self.memory_terms_bytes.items() if term[index] > 0}
        step_s = math.fsum(step_breakdown_s.values())
        phases = tuple(phase.prediction(index) for phase in self.phases)
        run_s = math.fsum(phase.num_steps * phase.step_s for phase in phases) if phases else self.num_steps * step_s
        ranks = int(self.table.world_size_C[index])
        peak_flop = self.peak_flop_per_s * ranks * step_s
        energy_j = None if self.energy_j_C is None else float(self.energy_j_C[index])
        return Prediction(
            step_s=step_s,
            step_breakdown_s=step_breakdown_s,
            memory_bytes_per_rank=sum(memory_breakdown.values()),
            memory_breakdown_bytes=memory_breakdown,
            mfu_ratio=self.model_flop / peak_flop if peak_flop else 0.0,
            tokens_per_s=self.tokens_per_step / step_s if step_s else 0.0,
            usd_per_hour=usd_per_hour,
            error_ratio=float(self.error_ratio_C[index]),
            step_p50_s=float(self.step_p50_s_C[index]),
            step_p90_s=float(self.step_p90_s_C[index]),
            phases=phases,
            run_s=run_s,
            run_usd=usd_per_hour * run_s / HOUR_S,
            step_energy_j=energy_j,
            run_energy_j=self._run_energy_j(index),
            energy_unknown=self.energy_unknown,
            fullest_rank=self._fullest_rank(index),
            allocator_settings=self.allocator_settings,
            hfu_ratio=float(self.hardware_flop_C[index]) / peak_flop if self.hardware_flop_C is not None else 0.0,
            binding_term=max(step_breakdown_s, key=step_breakdown_s.__getitem__, default=""),
            tokens_per_s_per_rank=self.tokens_per_step / step_s / ranks if step_s else 0.0,
        )

    def _run_energy_j(self, index: int) -> float | None:
        if self.energy_j_C is None:
            return None
        parts = [(phase.num_steps, phase.energy_j_C) for phase in self.phases] or [(self.num_steps, self.energy_j_C)]
        return math.fsum(num_steps * float(each_C[index]) for num_steps, each_C in parts if each_C is not None)

    def _fullest_rank(self, index: int) -> str:
        if self.fullest_stage_C is None:
            return ""
        return describe_rank(self.table.at(index), stage=int(self.fullest_stage_C[index]))


def evaluate(workload: WorkloadSpec, table: LayoutTable, machine: Machine) -> Evaluation:
    """Price every candidate on one machine. Raises ``KeyError`` when the accelerator lacks the number format."""
    job = job_of(workload)
    seconds = step_seconds(workload, table, machine)
    peak = peak_of_phases(workload, table, reserved_bytes=machine.shape.accelerator.reserved_bytes) if job else None
    num_bytes = peak.terms if peak else memory_bytes(workload, table, machine.shape)
    return Evaluation(
        table=table,
        step_terms_s=seconds,
        memory_terms_bytes=num_bytes,
        step_s_C=total_s(seconds, table),
        step_p50_s_C=step_quantile_s(seconds, table, machine, share=0.5),
        step_p90_s_C=step_quantile_s(seconds, table, machine, share=0.9),
        energy_j_C=step_energy_j(seconds, table, machine.shape),
        memory_bytes_C=total_bytes(num_bytes, table),
        tokens_per_step=heaviest_phase(workload).tokens_per_step if workload.batch else 0,
        model_flop=model_flop_per_step(job) if job else 0,
        peak_flop_per_s=peak_flop_per_s(machine.shape, job.precision.compute) if job else 0.0,
        num_steps=workload.num_steps,
        error_ratio_C=_claimed_C(job, seconds, machine) if job else np.full(len(table), UNKNOWN_ERROR_RATIO),
        phases=phase_costs(workload, table, machine) if job and len(workload.batch) > 1 else (),
        fullest_stage_C=peak.stage_C if peak else None,
        allocator_settings=allocator_settings(job, machine.shape.accelerator) if job else "",
        hardware_flop_C=hardware_flop_per_step(job, table) if job else None,
        energy_unknown=unknown_power(machine.shape),
    )


def _claimed_C(job: TransformerJob, seconds: Mapping[str, FloatArray], machine: Machine) -> FloatArray:
    own = StepKind.PLAIN if job.model.experts is None else StepKind.MIXTURE
    ratio, waiting_ratio = (machine.claimed_error_ratio(of) for of in (own, StepKind.HOST_BOUND))
    return np.where(waits_for_host(seconds), waiting_ratio, ratio)


def step_seconds(workload: WorkloadSpec, table: LayoutTable, machine: Machine) -> Mapping[str, FloatArray]:
    """Return seconds of a step by term, for a job with a model or without."""
    job = job_of(workload)
    return demand_step_terms(workload, table, machine) if job is None else step_terms(job, table, machine)


def memory_bytes(workload: WorkloadSpec, table: LayoutTable, shape: NodeShape) -> Mapping[str, IntArray]:
    """Return bytes of the fullest rank by term, for a job with a model or without."""
    reserved_bytes = shape.accelerator.reserved_bytes
    if workload.model is None:
        return demand_memory_terms(workload, table, reserved_bytes=reserved_bytes)
    return peak_of_phases(workload, table, reserved_bytes=reserved_bytes).terms


def total_s(seconds: Mapping[str, FloatArray], table: LayoutTable) -> FloatArray:
    """Add terms up; a job that states none takes no time that is known."""
    return np.sum(list(seconds.values()), axis=0) if seconds else np.zeros(len(table))


def total_memory_bytes(workload: WorkloadSpec, table: LayoutTable, shape: NodeShape) -> IntArray:
    """Return the sum of :func:`memory_bytes`, in less time."""
    if workload.model is None:
        return total_bytes(memory_bytes(workload, table, shape), table)
    return totals_of_phases(workload, table, reserved_bytes=shape.accelerator.reserved_bytes)


def total_bytes(num_bytes: Mapping[str, IntArray], table: LayoutTable) -> IntArray:
    """Add terms up."""
    return np.sum(list(num_bytes.values()), axis=0) if num_bytes else np.zeros(len(table), dtype=np.int64)


def usable_bytes(accelerator: Accelerator) -> float:
    """Return what a plan may use of an accelerator's memory."""
    return accelerator.memory_bytes * (1 - HEADROOM_RATIO)
