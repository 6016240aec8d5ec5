"""Which numbers of ranks a workload can run on with exactly its own global batch. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.layout_rules import keeps_stages_full
from airflow_llmsched.planner.layouts import divisors


def rank_counts(workload: WorkloadSpec, *, max_ranks: int) -> list[int]:
    """Return all world sizes up to ``max_ranks`` (and within the capacity wish) that some split could use, ascending.

    A superset of what :func:`~airflow_llmsched.planner.layouts.legal_layouts` accepts: dp divides the batch of every
    phase, tp the heads, pp leaves no stage nearly empty, cp divides half the sequence.
    """
    pins = workload.parallelism
    most = min(max_ranks, workload.capacity.max_ranks or max_ranks)
    if most < 1:
        return []
    batch = math.gcd(*(phase.num_sequences for phase in workload.batch))
    data = range(1, most + 1) if batch == 0 else divisors(batch).tolist()
    counts = {dp for dp in data if pins.dp in (None, dp)}
    for pinned, options in _model_degrees(workload):
        degrees = options if pinned is None else [pinned]
        counts = {count * degree for count in counts for degree in degrees if count * degree <= most}
    return sorted(count for count in counts if workload.capacity.min_ranks <= count <= most)


def nearest_rank_counts(workload: WorkloadSpec, *, ranks: int) -> list[int]:
    """Return the closest workable count below and the closest above ``ranks``, capacity bounds aside."""
    counts = np.array(rank_counts(_unbounded(workload), max_ranks=4 * max(ranks, 1)), dtype=np.int64)
    below, above = counts[counts < ranks], counts[counts > ranks]
    return [int(side[index]) for side, index in ((below, -1), (above, 0)) if side.size]


def reserved_slots(workload: WorkloadSpec) -> int:
    """Return slots to keep free for the other roles of the gang: all roles start or none does."""
    return sum(
        (role.num_ranks or 0) * role.accelerators_per_rank
        for role in workload.roles
        if role.kind is not RoleKind.TRAINER
    )


def _model_degrees(workload: WorkloadSpec) -> list[tuple[int | None, list[int]]]:
    pins, model = workload.parallelism, workload.model
    if model is None or not workload.launcher.command:
        return []
    stages = np.arange(1, model.num_layers + 1)
    half_sequence = math.gcd(*(phase.sequence_length_tokens for phase in workload.batch)) // 2
    return [
        (pins.tp, divisors(model.num_heads).tolist()),
        (pins.pp, stages[keeps_stages_full(stages, num_layers=model.num_layers)].tolist()),
        (pins.cp, [1, *(degree for degree in divisors(max(half_sequence, 1)).tolist() if degree > 1)]),
    ]


def _unbounded(workload: WorkloadSpec) -> WorkloadSpec:
    return replace(workload, capacity=replace(workload.capacity, min_ranks=1, max_ranks=None))
