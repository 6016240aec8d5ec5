"""What choosing layer by layer what to compute again would change of a plan, in words: shown, never chosen. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from airflow_llmsched.domain.layout import Recompute, RecomputeModule
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.evaluate import usable_bytes
from airflow_llmsched.planner.perf.job import filling_phases, job_of
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.memory_recompute import RecomputedLayers, again_s_by_stage, best_layers

WORTH_SHOWING_RATIO = 0.02
"""A step must become that much shorter for the choice to be mentioned."""

_MAX_STAGES = 4


def words(workload: WorkloadSpec, plan: Plan, machine: Machine) -> str:
    """Return a paragraph, or nothing where all layers alike do as well.

    No trainer that settings are written for can be told layer by layer, so the search does not choose so.
    ``machine`` is the one that the plan was priced on.
    """
    job, layout = job_of(workload), plan.layout
    by_product = RecomputeModule.EVERY_SECOND_PRODUCT in layout.recompute_modules
    if job is None or layout.recompute not in {Recompute.FULL, Recompute.MODULES} or by_product:
        return ""
    if len(filling_phases(workload)) > 1:
        return ""  # layers are chosen for the memory of one phase, and another may have less of it to spare
    accelerator = machine.shape.accelerator
    layers = best_layers(
        job, layout, machine, capacity_bytes=usable_bytes(accelerator),
        reserved_bytes=accelerator.reserved_bytes,
    )  # fmt: skip
    if layers is None:
        return ""
    alike_s, apart_s = (max(again_s_by_stage(job, layout, machine, each)) for each in (None, layers))
    saved_ratio = layout.num_micro_batches * (alike_s - apart_s) / plan.prediction.step_s
    if saved_ratio < WORTH_SHOWING_RATIO:
        return ""
    return "\n".join((
        f"A trainer that can be told layer by layer what to compute again would take about {saved_ratio:.0%} less of a "
        "step in the same memory:",
        *_lines(layers),
    ))  # fmt: skip


def _lines(layers: Sequence[RecomputedLayers]) -> Iterator[str]:
    by_stage = [list(group) for _, group in groupby(layers, key=lambda each: each.stage)]
    for stage in by_stage[:_MAX_STAGES]:
        told = ", ".join(
            f"{each.num_layers} layer{'s' * (each.num_layers > 1)} {' and '.join(each.modules) or 'nothing'}"
            for each in stage
        )
        yield f"  stage {stage[0].stage}: {told}"
    if len(by_stage) > _MAX_STAGES:
        yield f"  and {len(by_stage) - _MAX_STAGES} more stages, which have fewer micro-batches in flight"
