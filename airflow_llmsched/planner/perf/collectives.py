"""Time of collectives by the alpha-beta model on rings. Pure; works on numbers and on arrays alike.

``num_bytes`` is the size of the whole (gathered) buffer, ``bytes_per_s`` the one-way rate at which a ring moves data past
one rank, ``latency_s`` the cost of one hop. Thakur, Rabenseifner and Gropp (2005), sections 3 and 4; NVIDIA nccl-tests,
PERFORMANCE.md, for the factors. A group of one costs nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from airflow_llmsched.planner.layout_table import FloatArray

Number = float | int | npt.NDArray[np.int64] | npt.NDArray[np.float64]


def ring_all_gather_s(
    *, num_bytes: Number, group_size: Number, bytes_per_s: Number, latency_s: Number
) -> FloatArray:
    """(n - 1) hops, each with 1/n of the buffer."""
    n = np.asarray(group_size, dtype=np.float64)
    return np.asarray((n - 1) * latency_s + (n - 1) / n * np.asarray(num_bytes) / bytes_per_s)


def ring_reduce_scatter_s(
    *, num_bytes: Number, group_size: Number, bytes_per_s: Number, latency_s: Number
) -> FloatArray:
    """The mirror image of an all-gather, and as long."""
    return ring_all_gather_s(
        num_bytes=num_bytes, group_size=group_size, bytes_per_s=bytes_per_s, latency_s=latency_s
    )


def ring_all_reduce_s(
    *, num_bytes: Number, group_size: Number, bytes_per_s: Number, latency_s: Number
) -> FloatArray:
    """A reduce-scatter and an all-gather: 2 (n - 1) hops."""
    return 2 * ring_all_gather_s(
        num_bytes=num_bytes, group_size=group_size, bytes_per_s=bytes_per_s, latency_s=latency_s
    )


def all_to_all_s(*, num_bytes: Number, group_size: Number, bytes_per_s: Number, latency_s: Number) -> FloatArray:
    """Every rank sends 1/n of its ``num_bytes`` to every other, pair by pair."""
    n = np.asarray(group_size, dtype=np.float64)
    return np.asarray((n - 1) * latency_s + (n - 1) / n * np.asarray(num_bytes) / bytes_per_s)


def point_to_point_s(*, num_bytes: Number, bytes_per_s: Number, latency_s: Number) -> FloatArray:
    """One message."""
    return np.asarray(latency_s + np.asarray(num_bytes) / bytes_per_s)
