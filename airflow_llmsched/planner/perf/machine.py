"""Where candidates run, and so which links a group of their ranks spans. Pure. Axis: C = candidate layout.

Ranks are numbered with tensor parallelism fastest, then context, data (with experts inside) and pipeline parallelism,
and fill nodes in order, as in Megatron-LM: so a group's stride and size say which links it crosses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.planner.layout_table import BoolArray, IntArray
from airflow_llmsched.planner.perf.calibration import packaged, rates_of
from airflow_llmsched.planner.perf.collectives import Link, Span
from airflow_llmsched.planner.perf.rates import Rates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    """A flat machine: one node shape, and how many consecutive ranks share a node.

    ``ranks_per_node_C`` is the smallest such number of a placement: the node with fewest ranks has fewest links.
    ``rates`` are what the accelerator and its links reach; None: what is known of its kind. ``error_ratio`` is the
    half-width of the band about predictions with them; None: that of the packaged calibration.
    """

    shape: NodeShape
    ranks_per_node_C: IntArray
    rates: Rates | None = None
    error_ratio: float | None = None

    @property
    def reached(self) -> Rates:
        """Rates to reckon with."""
        return rates_of(self.shape.accelerator) if self.rates is None else self.rates

    @property
    def domain_ranks_C(self) -> IntArray:
        """Consecutive ranks that the fastest links join: those of a node, or of a rack that is one NVLink domain.

        Of a rack a power of two is used: groups of ranks are such, and would straddle racks of 72 otherwise.
        """
        island = self.shape.island
        if island is None or (island.num_accelerators or 0) <= self.shape.num_accelerators:
            return self.ranks_per_node_C
        whole = 1 << (island.num_accelerators or 1).bit_length() - 1
        return np.where(self.ranks_per_node_C == self.shape.num_accelerators, whole, self.ranks_per_node_C)

    @property
    def claimed_error_ratio(self) -> float:
        """Half-width of the band to claim for predictions."""
        return packaged().error_ratio(self.shape.accelerator) if self.error_ratio is None else self.error_ratio

    def take(self, chosen: IntArray) -> Machine:
        """Return the machine of some candidates, by index."""
        return replace(self, ranks_per_node_C=self.ranks_per_node_C[chosen])

    def span(self, *, stride_C: IntArray, size_C: IntArray) -> Span:
        """Return where groups of ``size_C`` ranks, ``stride_C`` apart, have their members."""
        ranks_C = self.domain_ranks_C
        members_C = np.clip(ranks_C // np.maximum(stride_C, 1), 1, size_C)
        # A group whose reach does not divide the node may straddle its end however few members it has.
        straddles_C = (stride_C * size_C > ranks_C) | (ranks_C % np.maximum(stride_C * size_C, 1) != 0)
        members_C = np.where(straddles_C & (members_C == size_C) & (size_C > 1), np.maximum(size_C // 2, 1), members_C)
        return Span(
            size_C=size_C,
            members_C=members_C,
            domains_C=-(-size_C // members_C),
            inner=self.inner_of(self._bridged_C(stride_C * size_C)),
            outer=self.outer,
        )

    def inner_of(self, bridged_C: BoolArray) -> Link:
        """Return the links inside a node; those of its islands for groups that lie within one each."""
        island, rates, inner = self.shape.island, self.reached, self.inner
        if island is None or not bridged_C.any():
            return inner
        return Link(
            bytes_per_s=np.where(bridged_C, island.bandwidth_bytes_per_s * rates.node_link_ratio, inner.bytes_per_s),
            latency_s=np.where(bridged_C, island.fabric.latency_s * rates.latency_ratio, inner.latency_s),
            reduces=inner.reduces,
        )

    def _bridged_C(self, reach_C: IntArray) -> BoolArray:
        """Return which groups, of ``reach_C`` consecutive ranks from first to last, lie within an island each."""
        size = bridged_size(self.shape)
        fits_C = (reach_C <= size) & (size % np.maximum(reach_C, 1) == 0)
        return np.asarray(fits_C & (size > 1) & (self.ranks_per_node_C % size == 0))

    @property
    def inner(self) -> Link:
        """Links inside a node."""
        shape, rates = self.shape, self.reached
        return Link(
            bytes_per_s=shape.intra_node_bandwidth_bytes_per_s * rates.node_link_ratio,
            latency_s=shape.intra_node_latency_s * rates.latency_ratio,
            reduces=shape.intra_node.reduces_in_network,
        )

    @property
    def outer(self) -> Link:
        """Links between nodes."""
        shape, rates = self.shape, self.reached
        return Link(
            bytes_per_s=shape.inter_node_bandwidth_bytes_per_s * rates.network_ratio,
            latency_s=shape.inter_node_latency_s * rates.latency_ratio,
        )


def bridged_size(shape: NodeShape) -> int:
    """Return the size of islands smaller than the node, as of two cards with a bridge; 1 where there are none."""
    num = (shape.island.num_accelerators or 1) if shape.island else 1
    return num if num < shape.num_accelerators else 1
