"""Time of collectives by the alpha-beta model, over two levels of links. Pure; works on arrays. Axis: C = candidate.

``num_bytes`` is the size of the whole (gathered) buffer, for an all-to-all what one rank sends. A group of one costs
nothing. Sources: Thakur, Rabenseifner and Gropp (2005), sections 3 and 4, for rings; Sanders, Speck and Träff (2009)
for double trees; NVIDIA nccl-tests, PERFORMANCE.md, for factors; Klenk et al. (2020) and Graham et al. (2016) for
reduction in the switches of a node (NVLS) and of a network (SHARP).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_llmsched.planner.layout_table import FloatArray, IntArray

Number = float | npt.NDArray[Any]

TREE_RATIO = 0.9
"""Rate of a double tree as share of a ring's: inner ranks of one tree are leaves of the other, but never quite."""

NUM_CHANNELS = 8
"""Messages that a rank has under way at once in an all-to-all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Link:
    """The one-way rate at which one rank's data moves over it, and the cost of one hop.

    ``pair_ratio`` is the share of that rate that two members alone have between them, who may be joined by one of
    several links.
    """

    bytes_per_s: Number
    latency_s: Number
    reduces: bool = False
    pair_ratio: Number = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Span:
    """Where a group's members are: ``members_C`` of ``size_C`` in the domain that has fewest, over ``domains_C``.

    Inside a domain (a node, or a rack that is one NVLink domain) data goes over ``inner``, between domains over
    ``outer``, of which each member has its own.
    """

    size_C: IntArray
    members_C: IntArray
    domains_C: IntArray
    inner: Link
    outer: Link

    @property
    def farthest(self) -> Link:
        """The link that a message to the farthest member goes over."""
        leaves_C = self.domains_C > 1
        return Link(
            bytes_per_s=np.where(leaves_C, self.outer.bytes_per_s, self.inner.bytes_per_s),
            latency_s=np.where(leaves_C, self.outer.latency_s, self.inner.latency_s),
            pair_ratio=np.where(leaves_C, self.outer.pair_ratio, self.inner.pair_ratio),
        )


def all_gather_s(*, num_bytes: Number, span: Span) -> FloatArray:
    """A ring: n - 1 hops, each with 1/n of the buffer. Where it leaves domains, all members' outer links share that."""
    return _ring_hops_s(span) + _transfer_s(span, num_bytes, num_bytes)


def reduce_scatter_s(*, num_bytes: Number, span: Span) -> FloatArray:
    """The mirror image of an all-gather, and as long."""
    return all_gather_s(num_bytes=num_bytes, span=span)


def all_reduce_s(*, num_bytes: Number, span: Span) -> FloatArray:
    """The best of a ring, a double tree and switches that add up, as a library chooses by size.

    Ring: a reduce-scatter and an all-gather. Tree: up and down, logarithmic in domains. In a domain whose switches
    reduce, each rank sends its buffer once, reads 1/m of the sum and has it multicast; between domains, switches that
    reduce take the buffer once instead of twice, up and down a tree of their own. A reduce-scatter or an all-gather
    gains nothing there: a rank's card has to carry the whole buffer one way however it is added up.
    """
    whole = np.asarray(num_bytes, dtype=np.float64)
    alone_C = span.size_C <= 1
    ring_s = 2 * all_gather_s(num_bytes=whole, span=span)
    hops_s = 2 * (
        (span.members_C - 1) * np.asarray(span.inner.latency_s)
        + np.ceil(np.log2(span.domains_C)) * np.asarray(span.outer.latency_s)
    )
    tree_s = hops_s + 2 * _transfer_s(span, whole, whole) / TREE_RATIO
    best_s = np.minimum(ring_s, tree_s)
    if span.inner.reduces or span.outer.reduces:
        share_C = (1 + 1 / span.members_C) / (2 * (span.size_C - 1) / np.maximum(span.size_C, 1) + 1e-12)
        inner_bytes = whole * np.where(span.members_C > 2, np.minimum(share_C, 1), 1) if span.inner.reduces else whole
        outer_bytes = whole / 2 if span.outer.reduces else whole
        inner_hops_C = 1 if span.inner.reduces else span.members_C - 1
        outer_hops_C = np.minimum(span.domains_C - 1, 1) if span.outer.reduces else np.ceil(np.log2(span.domains_C))
        few_hops_s = 2 * (
            inner_hops_C * np.asarray(span.inner.latency_s) + outer_hops_C * np.asarray(span.outer.latency_s)
        )
        best_s = np.minimum(best_s, few_hops_s + 2 * _transfer_s(span, inner_bytes, outer_bytes))
    return np.where(alone_C, 0.0, best_s)


def all_to_all_s(*, num_bytes: Number, span: Span, num_copies: int = 1) -> FloatArray:
    """Every rank sends 1/n of its bytes to every other, over inner links and its own outer one at once.

    Several messages are under way at a time. With ``num_copies`` above 1 the buffer has that many copies of each token,
    for members drawn at random, and a domain gets a token once, however many of its members want it: of d domains
    (d - 1)(1 - (1 - 1/d)^copies) on average.
    """
    n, m, d = span.size_C.astype(np.float64), span.members_C, span.domains_C
    whole = np.asarray(num_bytes, dtype=np.float64)
    inside_s = (m - 1) / m * whole / np.asarray(span.inner.bytes_per_s)
    outside_bytes = whole * np.where(
        num_copies > 1, (d - 1) * (1 - (1 - 1 / d) ** num_copies) / num_copies, (n - m) / n
    )
    direct_s = (m - 1) / n * whole / np.asarray(span.inner.bytes_per_s)
    hops_s = np.where(n > 1, np.ceil((n - 1) / NUM_CHANNELS), 0.0) * np.asarray(span.farthest.latency_s)
    outside_s = outside_bytes / np.asarray(span.outer.bytes_per_s)
    return np.asarray(hops_s + np.maximum(np.where(num_copies > 1, inside_s, direct_s), outside_s))


def point_to_point_s(*, num_bytes: Number, link: Link) -> FloatArray:
    """One message, over what joins the two that exchange it."""
    return np.asarray(link.latency_s + np.asarray(num_bytes) / (link.bytes_per_s * np.asarray(link.pair_ratio)))


def _ring_hops_s(span: Span) -> FloatArray:
    return np.asarray(
        (span.size_C - span.domains_C) * np.asarray(span.inner.latency_s)
        + (span.domains_C - 1) * np.asarray(span.outer.latency_s)
    )


def _transfer_s(span: Span, inner_bytes: Number, outer_bytes: Number) -> FloatArray:
    """One way around: the slower of what passes each inner link and what passes the outer links of a domain."""
    n, m, d = span.size_C.astype(np.float64), span.members_C, span.domains_C
    inner_s = np.where(m > 1, (n - 1) / n * np.asarray(inner_bytes) / np.asarray(span.inner.bytes_per_s), 0.0)
    outer_s = (d - 1) / d * np.asarray(outer_bytes) / (m * np.asarray(span.outer.bytes_per_s))
    return np.asarray(np.maximum(inner_s, outer_s))
