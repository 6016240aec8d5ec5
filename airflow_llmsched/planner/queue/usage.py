"""What teams hold and have had: quantities as arrays, and usage that is forgotten by halves. Pure.

Axes: Q = quantity (accelerators, host memory, network bandwidth), T = team in order of name.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.queue import Amounts, Limits, QueuedGang, QueueState, TeamUsage
from airflow_llmsched.planner.layout_table import FloatArray

UNLIMITED = 1e30
"""Stands for no limit: it can be subtracted from itself, which infinity cannot."""


def limits_Q(limits: Limits) -> FloatArray:
    """Return limits as an array, :data:`UNLIMITED` where there is none."""
    each = (limits.num_accelerators, limits.host_bytes, limits.network_bytes_per_s)
    return np.array([UNLIMITED if limit is None else float(limit) for limit in each])


def that_goes_with(shape: NodeShape | None, num_slots: int) -> Amounts:
    """Return accelerators of one kind of node with their part of its memory and network; alone where it is not known.

    No plan takes more of a node than that, so that what is beside a gang is left to others whole.
    """
    if shape is None:
        return Amounts(num_accelerators=float(num_slots))
    return Amounts(
        num_accelerators=float(num_slots),
        host_bytes=shape.host.memory_bytes / shape.num_accelerators * num_slots,
        network_bytes_per_s=shape.inter_node_bandwidth_bytes_per_s * num_slots,
    )


def asked_Q(gang: QueuedGang, *, num_accelerators: float | None = None) -> FloatArray:
    """Return what a gang uses while it runs. Give ``num_accelerators`` for one on slices."""
    slots = gang.num_slots if num_accelerators is None else num_accelerators
    return np.array([float(slots), float(gang.host_bytes), float(gang.network_bytes_per_s)])


def teams_of(state: QueueState) -> tuple[str, ...]:
    """Return all teams that a state names, in order."""
    gangs = {each.gang.team for each in state.waiting} | {each.gang.team for each in state.running}
    return tuple(sorted(gangs | {each.team for each in state.quotas} | {each.team for each in state.usage}))


def decayed(usage: TeamUsage, *, at_s: float, half_life_s: float) -> TeamUsage:
    """Return what a usage counts at ``at_s``: half after each half-life, as Slurm's PriorityDecayHalfLife has it."""
    kept = 0.5 ** (max(0.0, at_s - usage.at_s) / half_life_s)
    return replace(
        usage,
        accelerator_s=usage.accelerator_s * kept,
        host_byte_s=usage.host_byte_s * kept,
        network_bytes=usage.network_bytes * kept,
        at_s=max(at_s, usage.at_s),
    )


def accrued(usage: TeamUsage, held: Amounts, *, until_s: float, half_life_s: float) -> TeamUsage:
    """Return a usage after ``held`` was held from ``usage.at_s`` to ``until_s``.

    What is held steadily comes to the integral of its decay, held * h / ln 2 * (1 - 2^(-t / h)).
    """
    before = decayed(usage, at_s=until_s, half_life_s=half_life_s)
    span_s = max(0.0, until_s - usage.at_s)
    factor_s = half_life_s / math.log(2) * -math.expm1(-math.log(2) * span_s / half_life_s)
    return replace(
        before,
        accelerator_s=before.accelerator_s + held.num_accelerators * factor_s,
        host_byte_s=before.host_byte_s + held.host_bytes * factor_s,
        network_bytes=before.network_bytes + held.network_bytes_per_s * factor_s,
    )


def history_TQ(state: QueueState, teams: tuple[str, ...]) -> FloatArray:
    """Return each team's decayed usage as what it would have to hold for ever to come to the same.

    A fleet that is held whole comes to h / ln 2 of its capacity, so that history and present compare.
    """
    result_TQ = np.zeros((len(teams), 3))
    half_life_s = state.policy.half_life_s
    for each in state.usage:
        now = decayed(each, at_s=state.now_s, half_life_s=half_life_s)
        quantities_Q = np.array([now.accelerator_s, now.host_byte_s, now.network_bytes])
        result_TQ[teams.index(each.team)] = quantities_Q * math.log(2) / half_life_s
    return result_TQ
