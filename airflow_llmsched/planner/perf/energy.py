"""Joules of one optimizer step: what accelerators draw by what they do, and the machines around them. Pure.

Axis: C = candidate layout. An accelerator draws what it does at rest, and of what its limit leaves above that a share
by its activity. Full use of a machine is the sum of its accelerators' limits and of what the rest draws at work: an
HGX H100 node was seen to draw 8.4 kW at most (Latif et al. 2025, "Single-Node Power Demand During AI Training").
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.planner.layout_table import FloatArray, LayoutTable

ACTIVITY_RATIO: Mapping[str, float] = MappingProxyType({
    "matmul": 1.0,
    "attention": 1.0,
    "recompute": 1.0,
    "elementwise": 0.75,
    "optimizer": 0.75,
})  # fmt: skip
"""Share of the range between rest and limit, by term of the step. What memory bounds leaves the units half idle."""

WAITING_RATIO = 0.4
"""The same for all other terms: a kernel that sends, or spins until others have sent.

An assumption: where training synchronises, boards fall to 20 to 75 % of their limit, about 50 % for GPT-NeoX (Patel et
al. 2024, "Characterizing Power Management Opportunities for LLMs in the Cloud").
"""


def node_power_w(shape: NodeShape) -> float | None:
    """Return what a node draws at full use, in watts; None where nobody states it."""
    if unknown_power(shape):
        return None
    return shape.num_accelerators * shape.accelerator.power_limit_w + shape.host.power_w


def unknown_power(shape: NodeShape) -> str:
    """Return why nothing can be said of a machine's joules; empty where its power is stated."""
    name = shape.accelerator.name
    return "" if shape.accelerator.power_limit_w else f"nobody states what a {name} draws"


def step_energy_j(terms_s: Mapping[str, FloatArray], table: LayoutTable, shape: NodeShape) -> FloatArray | None:
    """Return the joules that all ranks draw in a step, with their share of the node.

    None, never 0, where the machine's power or the step's time is not known: such a machine must not look free.
    ``terms_s`` are those of the step, which they add up to. The slowest stage stands for all.
    """
    chip = shape.accelerator
    if unknown_power(shape) or not terms_s:
        return None
    step_s_C = np.sum(list(terms_s.values()), axis=0)
    active_s_C = np.sum([ACTIVITY_RATIO.get(name, WAITING_RATIO) * each for name, each in terms_s.items()], axis=0)
    resting_w = chip.idle_w + shape.host.power_w / shape.num_accelerators
    of_one_j = resting_w * step_s_C + (chip.power_limit_w - chip.idle_w) * active_s_C
    return np.asarray(table.world_size_C * of_one_j)
