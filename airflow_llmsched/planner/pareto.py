"""Choosing among priced candidates: the Pareto set, and its order under the objective's weights. Pure.

Axes: C = candidate, K = cost, F = member of a front; every cost is better when smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_llmsched.planner.layout_table import BoolArray, FloatArray, IntArray

Costs = npt.NDArray[Any]
TieBreaks = Sequence[npt.NDArray[Any]]

CHUNK_SIZE = 256
"""Candidates that are compared with a front at once."""


def pareto_front(costs_CK: FloatArray, *, tie_breaks: TieBreaks = ()) -> IntArray:
    """Return indices of the candidates that no other beats or equals in every cost, in order of the first cost.

    Of candidates with equal costs the one with the smallest ``tie_breaks`` (most significant first) stays.
    """
    order = np.lexsort([*costs_CK.T, *tie_breaks][::-1])
    front = np.zeros(0, dtype=np.int64)
    for start in range(0, len(order), CHUNK_SIZE):
        # Nothing later in this order can beat what comes before it: it is at best equal in the first cost.
        chunk = order[start : start + CHUNK_SIZE]
        chunk = chunk[~_is_beaten(costs_CK[chunk], costs_CK[front])]
        earlier = np.tri(len(chunk), k=-1, dtype=np.bool_)
        is_worse = np.all(costs_CK[chunk][:, None] >= costs_CK[chunk][None], axis=2)
        front = np.concatenate([front, chunk[~np.any(is_worse & earlier, axis=1)]])
    return front


def staircase(first_C: Costs, second_C: Costs, *, tie_breaks: TieBreaks = ()) -> IntArray:
    """Return what :func:`pareto_front` does of two costs, in n log n."""
    order = np.lexsort([second_C, first_C])
    lowest_C = np.minimum.accumulate(second_C[order]) if order.size else second_C
    # What is not lowest so far is beaten by what is. Few are left, and only among these can ties matter.
    few = order[second_C[order] == lowest_C]
    few = few[np.lexsort([first_C[few], second_C[few], *(each[few] for each in tie_breaks)][::-1])]
    seconds = second_C[few]
    is_lower = np.ones(len(few), dtype=np.bool_)
    is_lower[1:] = seconds[1:] < np.minimum.accumulate(seconds)[:-1]
    return np.asarray(few[is_lower])


def is_beyond(first_C: Costs, second_C: Costs, *, first_F: Costs, second_F: Costs, or_on: bool) -> BoolArray:
    """Say which candidates a staircase beats, or (``or_on``) beats or equals. ``first_F`` is ascending."""
    if not first_F.size:
        return np.zeros(len(first_C), dtype=np.bool_)
    step_C = np.searchsorted(first_F, first_C, side="right") - 1
    has_C = step_C >= 0
    reached_C = second_F[step_C]
    equals_C = (reached_C == second_C) & ((first_F[step_C] < first_C) | or_on)
    return np.asarray(has_C & ((reached_C < second_C) | equals_C))


def weighted_score(costs: Sequence[tuple[float, FloatArray]]) -> FloatArray:
    """Return the weighted mean of costs, each as a multiple of the best. Weights are non-negative and not all zero."""
    total = sum(weight for weight, _ in costs)
    terms = [weight / total * _relative(cost_C) for weight, cost_C in costs if weight]
    return np.asarray(np.sum(terms, axis=0))


def _is_beaten(costs_CK: FloatArray, front_FK: FloatArray) -> BoolArray:
    is_beaten_C = np.zeros(len(costs_CK), dtype=np.bool_)
    for start in range(0, len(front_FK), CHUNK_SIZE):
        members = front_FK[start : start + CHUNK_SIZE]
        is_beaten_C |= np.any(np.all(costs_CK[:, None] >= members[None], axis=2), axis=1)
    return is_beaten_C


def _relative(cost_C: FloatArray) -> FloatArray:
    best = float(np.min(cost_C)) if cost_C.size else 0.0
    return cost_C / best if best > 0 else 1.0 + cost_C
