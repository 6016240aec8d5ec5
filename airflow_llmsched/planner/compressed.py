"""What compressing gradients would change of a plan, in words and with its risk: shown, never chosen. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.plan import Plan, Prediction
from airflow_llmsched.domain.workload import CompressionKind, GradientCompression, WorkloadSpec
from airflow_llmsched.planner.evaluate import evaluate, usable_bytes
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.compression import METHODS
from airflow_llmsched.planner.perf.machine import Machine

WORTH_SHOWING_RATIO = 0.02
"""A step must become that much shorter for a kind of compression to be mentioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """A plan with one kind of compression: gradients whole on each rank, everything else as it is."""

    compression: GradientCompression
    layout: ParallelLayout
    prediction: Prediction
    fits: bool


def compressed(workload: WorkloadSpec, plan: Plan, machine: Machine) -> tuple[Compressed, ...]:
    """Price ``plan`` with each kind of compression at its defaults; none for a job without a model or replicas.

    ``machine`` is the one that the plan was priced on.
    """
    if workload.model is None or plan.layout.dp * plan.layout.cp == 1:
        return ()
    return tuple(_priced(workload, plan, machine, GradientCompression(kind=kind)) for kind in CompressionKind)


def words(workload: WorkloadSpec, plan: Plan, machine: Machine) -> str:
    """Return a paragraph: the risk of what was asked for, or what could be asked for; empty where nothing is to say."""
    if workload.compression is not None:
        return f"Gradients are compressed ({workload.compression.kind}). {METHODS[workload.compression.kind].risk}"
    lines = list(_lines(plan, compressed(workload, plan, machine)))
    if not lines:
        return ""
    return "\n".join(
        ("Compressing gradients was not asked for, and may cost accuracy. It would change the step:", *lines)
    )


def _lines(plan: Plan, found: tuple[Compressed, ...]) -> Iterator[str]:
    for each in sorted(found, key=lambda one: one.prediction.step_s):
        saved_ratio = 1 - each.prediction.step_s / plan.prediction.step_s
        if each.fits and saved_ratio >= WORTH_SHOWING_RATIO:
            kind = each.compression.kind
            yield f"  {kind}: {saved_ratio:.0%} shorter, {each.prediction.step_s:.3g} s. {METHODS[kind].risk}"


def _priced(workload: WorkloadSpec, plan: Plan, machine: Machine, compression: GradientCompression) -> Compressed:
    layout = replace(plan.layout, zero_stage=0, shard_size=None)
    evaluation = evaluate(replace(workload, compression=compression), LayoutTable.of([layout]), machine)
    return Compressed(
        compression=compression,
        layout=layout,
        prediction=evaluation.prediction(0, usd_per_hour=plan.prediction.usd_per_hour),
        fits=bool(evaluation.memory_bytes_C[0] <= usable_bytes(machine.shape.accelerator)),
    )
