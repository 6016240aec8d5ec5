"""Measured steps out of the reports of finished runs: how one's own cluster tells what it really reaches. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_llmsched.domain.run_report import AttemptRow, RunReport
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.perf.job import job_of
from airflow_llmsched.planner.perf.measured import MeasuredStep

MIN_STEPS = 10
"""Optimizer steps of an attempt before its median counts: the first ones compile, fill caches and wait for data."""


def measured_attempts(report: RunReport, workload: WorkloadSpec) -> Sequence[MeasuredStep]:
    """Return one measurement for each attempt that trained long enough, its median step.

    None of a workload whose model is not known, or whose batch changes: a median over phases is the step of neither.
    The source is the run's key, the row the attempt's number.
    """
    job = job_of(workload)
    if job is None or len(workload.batch) != 1:
        return ()
    return [
        MeasuredStep(
            source=report.names.run_key,
            row=attempt.attempt,
            job=job,
            layout=attempt.layout,
            shape=node_shapes()[attempt.node_shape],
            ranks_per_node=min(len(attempt.placement.on(node)) for node in attempt.placement.nodes),
            step_s=attempt.step_s_median,
        )
        for attempt in report.attempts
        if attempt.step_s_median is not None and _counts(attempt)
    ]


def _counts(attempt: AttemptRow) -> bool:
    long_enough = attempt.num_steps_kept + attempt.num_steps_lost >= MIN_STEPS
    return long_enough and attempt.node_shape in node_shapes() and attempt.step_s_median is not None
