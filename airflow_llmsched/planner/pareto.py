"""Choosing among priced candidates: the Pareto set, and its order under the objective's weights. Pure.

Axes: C = candidate, K = cost; every cost is better when smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from airflow_llmsched.planner.layout_table import FloatArray, IntArray


def pareto_front(costs_CK: FloatArray, *, tie_breaks: Sequence[npt.NDArray[np.generic]] = ()) -> IntArray:
    """Return indices of the candidates that no other beats or equals in every cost, in order of the first cost.

    Of candidates with equal costs the one with the smallest ``tie_breaks`` (most significant first) stays.
    """
    keys = [*costs_CK.T, *tie_breaks]
    left = np.lexsort(keys[::-1])
    front: list[int] = []
    while left.size:
        # Nothing later in this order can beat the first: it is at best equal in the first cost.
        first = left[0]
        front.append(int(first))
        left = left[~np.all(costs_CK[left] >= costs_CK[first], axis=1)]
    return np.array(front, dtype=np.int64)


def weighted_score(costs: Sequence[tuple[float, FloatArray]]) -> FloatArray:
    """Return the weighted mean of costs, each as a multiple of the best. Weights are non-negative and not all zero."""
    total = sum(weight for weight, _ in costs)
    terms = [weight / total * _relative(cost_C) for weight, cost_C in costs if weight]
    return np.asarray(np.sum(terms, axis=0))


def _relative(cost_C: FloatArray) -> FloatArray:
    best = float(np.min(cost_C)) if cost_C.size else 0.0
    return cost_C / best if best > 0 else 1.0 + cost_C
