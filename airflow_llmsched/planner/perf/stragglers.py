"""What a step waits for its slowest rank, which is the slower the more ranks there are. Pure. Axis: C = candidate.

Ranks compute the same amount and take times that vary a little from step to step, independently and normally
distributed; a step ends with the last of them. So it takes the largest of n normal variables: an order statistic
(David and Nagaraja 2003, "Order Statistics", section 4.2, for the mean). That grows like sqrt(2 ln n): fast up to a few
dozen ranks and hardly beyond thousands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from statistics import NormalDist

import numpy as np

from airflow_llmsched.planner.factored import code
from airflow_llmsched.planner.layout_table import FloatArray, LayoutTable
from airflow_llmsched.planner.perf.machine import Machine

VARYING_TERMS = ("matmul", "attention", "elementwise", "recompute")
"""What varies: time that ranks compute. That collectives take longer at times is in their rates."""

STRAGGLERS = "stragglers"

_NORMAL = NormalDist()


def straggler_s(terms_s: Mapping[str, FloatArray], table: LayoutTable, machine: Machine) -> FloatArray:
    """Return how much longer the slowest of all ranks computes on average than any one of them does."""
    sizes, index_C = code(table.world_size_C)
    worst = np.array([expected_maximum(int(size)) for size in sizes])
    return np.asarray(_deviation_s(terms_s, machine) * worst[index_C])


def step_quantile_s(
    terms_s: Mapping[str, FloatArray], table: LayoutTable, machine: Machine, *, share: float
) -> FloatArray:
    """Return the seconds that ``share`` of the steps take at most. ``terms_s`` add up to the mean step."""
    sizes, index_C = code(table.world_size_C)
    beyond = np.array([maximum_quantile(int(size), share=share) - expected_maximum(int(size)) for size in sizes])
    mean_s = np.sum(list(terms_s.values()), axis=0)
    return np.asarray(mean_s + _deviation_s(terms_s, machine) * beyond[index_C])


@cache
def expected_maximum(num: int) -> float:
    """Return the mean of the largest of ``num`` independent standard normal variables.

    The integral of 1 - F(x)^n above zero less that of F(x)^n below, by the trapezoidal rule.
    """
    below, above = (_distribution(sign) ** num for sign in (-1, 1))
    # of a single one the integrals are equal, but for rounding
    return max(0.0, float(np.trapezoid(1 - above - below, dx=_STEP_SIZE)))


def maximum_quantile(num: int, *, share: float) -> float:
    """Return what the largest of ``num`` independent standard normal variables exceeds in ``1 - share`` of cases."""
    return _NORMAL.inv_cdf(share ** (1 / num))


_STEP_SIZE = 1 / 128
_REACH = 12


@cache
def _distribution(sign: int) -> FloatArray:
    """Return F(sign x) for x from 0 up."""
    return np.array([
        math.erfc(-sign * x / math.sqrt(2)) / 2 for x in np.linspace(0, _REACH, int(_REACH / _STEP_SIZE) + 1)
    ])  # fmt: skip


def _deviation_s(terms_s: Mapping[str, FloatArray], machine: Machine) -> FloatArray:
    varying_s = np.sum([terms_s[name] for name in VARYING_TERMS if name in terms_s], axis=0)
    return np.asarray(machine.reached.jitter_ratio * varying_s)
