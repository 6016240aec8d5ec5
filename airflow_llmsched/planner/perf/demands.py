"""Cost of a job without a model, from what it states itself: traffic between groups, bytes per tier. Pure.

Axis: C = candidate layout.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape, TierKind
from airflow_llmsched.domain.workload import TrafficDemand, WorkloadSpec
from airflow_llmsched.planner.layout_table import FloatArray, IntArray, LayoutTable
from airflow_llmsched.planner.perf.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    point_to_point_s,
    reduce_scatter_s,
)
from airflow_llmsched.planner.perf.machine import Machine

ACCELERATOR_TIER = "hbm"
OUTER_TIERS = {"host": TierKind.HOST_DRAM, "nvme": TierKind.NVME}


def demand_memory_terms(workload: WorkloadSpec, table: LayoutTable, *, reserved_bytes: int) -> dict[str, IntArray]:
    """Return bytes per rank in the accelerator's memory. Other tiers are for :func:`shortage_outside`."""
    stated = sum(demand.bytes_per_rank for demand in workload.memory if demand.tier == ACCELERATOR_TIER)
    return {
        "stated": np.full(len(table), stated, dtype=np.int64),
        "runtime": np.full(len(table), reserved_bytes, dtype=np.int64),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A rank states that it holds ``num_bytes`` in a tier of which each accelerator's share is ``share_bytes``."""

    tier: str
    num_bytes: int
    share_bytes: int

    @property
    def missing_bytes(self) -> int:
        """How much more a rank would need than its share."""
        return self.num_bytes - self.share_bytes


def shortage_outside(workload: WorkloadSpec, shape: NodeShape) -> Shortage | None:
    """Return where a rank states more than its accelerator's share of a node's host memory or disks, if anywhere.

    Gangs share nodes by the accelerator: if none takes more than its share, they fit beside one another, whoever they
    are. What nobody states of a node limits nothing.
    """
    stated = Counter[str]()
    for demand in workload.memory:
        stated[demand.tier] += demand.bytes_per_rank
    shares = ((name, shape.memory_tiers.get(kind)) for name, kind in OUTER_TIERS.items())
    short = (
        Shortage(tier=name, num_bytes=stated[name], share_bytes=tier.num_bytes)
        for name, tier in shares
        if tier is not None and tier.num_bytes is not None and stated[name] > tier.num_bytes
    )
    return max(short, key=lambda each: each.missing_bytes, default=None)


def demand_step_terms(workload: WorkloadSpec, table: LayoutTable, machine: Machine) -> dict[str, FloatArray]:
    """Return seconds per step by demand: a lower bound, since nothing is known of the job's computation.

    A group is that many consecutive ranks, or all of them when there are fewer. Traffic to a peer group goes over the
    network whatever the placement, since the peer's place is not known here.
    """
    terms: dict[str, FloatArray] = {}
    for demand in workload.communication:
        name = f"{demand.group} {demand.collective}"
        terms[name] = terms.get(name, np.zeros(len(table))) + _traffic_s(demand, table, machine)
    return terms


def _traffic_s(demand: TrafficDemand, table: LayoutTable, machine: Machine) -> FloatArray:
    size_C = np.minimum(demand.group_size, table.world_size_C)
    if demand.peer_group is not None:
        return np.broadcast_to(point_to_point_s(num_bytes=demand.bytes_per_step, link=machine.outer), (len(table),))
    span = machine.span(stride_C=np.ones_like(size_C), size_C=size_C)
    if demand.collective in _COLLECTIVES:
        return _COLLECTIVES[demand.collective](num_bytes=demand.bytes_per_step, span=span)
    return np.where(size_C == 1, 0.0, point_to_point_s(num_bytes=demand.bytes_per_step, link=span.farthest))


_COLLECTIVES = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "all_to_all": all_to_all_s,
}
"""Known collectives; any other word is priced as one message to a neighbour."""
