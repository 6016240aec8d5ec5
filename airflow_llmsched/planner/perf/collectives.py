"""Time of collectives by the alpha-beta model on rings. Pure; works on numbers and on arrays alike.

``num_bytes`` is the size of the whole (gathered) buffer. Thakur, Rabenseifner and Gropp (2005), sections 3 and 4;
NVIDIA nccl-tests, PERFORMANCE.md, for the factors. A group of one costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from airflow_llmsched.planner.layout_table import FloatArray

Number = float | int | npt.NDArray[np.int64] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Link:
    """What a group's data goes over: the one-way rate at which it moves past one rank, and the cost of one hop."""

    bytes_per_s: Number
    latency_s: Number


def ring_all_gather_s(*, num_bytes: Number, group_size: Number, link: Link) -> FloatArray:
    """(n - 1) hops, each with 1/n of the buffer."""
    n = np.asarray(group_size, dtype=np.float64)
    return np.asarray((n - 1) * link.latency_s + (n - 1) / n * np.asarray(num_bytes) / link.bytes_per_s)


def ring_reduce_scatter_s(*, num_bytes: Number, group_size: Number, link: Link) -> FloatArray:
    """The mirror image of an all-gather, and as long."""
    return ring_all_gather_s(num_bytes=num_bytes, group_size=group_size, link=link)


def ring_all_reduce_s(*, num_bytes: Number, group_size: Number, link: Link) -> FloatArray:
    """A reduce-scatter and an all-gather: 2 (n - 1) hops."""
    return 2 * ring_all_gather_s(num_bytes=num_bytes, group_size=group_size, link=link)


def all_to_all_s(*, num_bytes: Number, group_size: Number, link: Link) -> FloatArray:
    """Every rank sends 1/n of its ``num_bytes`` to every other, pair by pair: as long as an all-gather of as many."""
    return ring_all_gather_s(num_bytes=num_bytes, group_size=group_size, link=link)


def point_to_point_s(*, num_bytes: Number, link: Link) -> FloatArray:
    """One message."""
    return np.asarray(link.latency_s + np.asarray(num_bytes) / link.bytes_per_s)
