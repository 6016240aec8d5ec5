"""Which ranks form the groups of one kind. Pure. Axes: G = group, M = member."""

from __future__ import annotations

import numpy as np

from airflow_llmsched.planner.layout_table import IntArray


def groups_GM(num_ranks: int, *, stride: int, size: int) -> IntArray:
    """Return the ranks of each group of ``size``, ``stride`` apart; those of an incomplete last one are left out."""
    first_G = np.arange(num_ranks - stride * (size - 1), dtype=np.int64)
    first_G = first_G[first_G // stride % size == 0]
    return np.asarray(first_G[:, None] + stride * np.arange(size, dtype=np.int64))
