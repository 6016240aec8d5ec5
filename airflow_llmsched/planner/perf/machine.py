"""Where candidates run, and so which links a group of their ranks spans. Pure. Axis: C = candidate layout.

Ranks are numbered with tensor parallelism fastest, then context, data (with experts inside) and pipeline parallelism,
and fill nodes in order, as in Megatron-LM: so a group's stride and size say which links it crosses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.hardware import Fabric, FabricTopology, NodeShape
from airflow_llmsched.planner.layout_table import BoolArray, IntArray
from airflow_llmsched.planner.perf.calibration import Calibration, StepKind, packaged, rates_of
from airflow_llmsched.planner.perf.collectives import Link, Number, Span
from airflow_llmsched.planner.perf.rates import Rates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    """A flat machine: one node shape, and how many consecutive ranks share a node.

    ``ranks_per_node_C`` is the smallest such number of a placement: the node with fewest ranks has fewest links.
    ``joined_ranks_C`` are how many consecutive ranks the fastest links join; None: as many as the shape says.
    ``rates`` are what the accelerator and its links reach; None: what ``calibration`` says, and without one what comes
    with the package. ``switches_reduce`` says that the operator has switched reduction on in the network's switches.
    """

    shape: NodeShape
    ranks_per_node_C: IntArray
    rates: Rates | None = None
    calibration: Calibration | None = None
    joined_ranks_C: IntArray | None = None
    switches_reduce: bool = False

    @property
    def reached(self) -> Rates:
        """Rates to reckon with."""
        if self.rates is not None:
            return self.rates
        chip = self.shape.accelerator
        return rates_of(chip) if self.calibration is None else self.calibration.rates_of(chip)

    @property
    def places_C(self) -> tuple[IntArray, ...]:
        """Columns by which candidates differ in where they run; the same arrays each time."""
        return (self.ranks_per_node_C, *([] if self.joined_ranks_C is None else [self.joined_ranks_C]))

    @property
    def domain_ranks_C(self) -> IntArray:
        """Consecutive ranks that the fastest links join: those of a node, or of a rack that is one NVLink domain.

        Of a rack a power of two is used: groups of ranks are such, and would straddle racks of 72 otherwise.
        """
        if self.joined_ranks_C is not None:
            return self.joined_ranks_C
        if not self.shape.island_joins_nodes:
            return self.ranks_per_node_C
        whole = power_of_two_within(self.shape.scale_up_size)
        return np.where(self.ranks_per_node_C == self.shape.num_accelerators, whole, self.ranks_per_node_C)

    def claimed_error_ratio(self, of: StepKind) -> float:
        """Half-width of the band to claim for predictions of steps of a kind."""
        return (self.calibration or packaged()).error_ratio(self.shape.accelerator, of)

    def take(self, chosen: IntArray) -> Machine:
        """Return the machine of some candidates, by index."""
        joined_C = None if self.joined_ranks_C is None else self.joined_ranks_C[chosen]
        return replace(self, ranks_per_node_C=self.ranks_per_node_C[chosen], joined_ranks_C=joined_C)

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
            inner=self.inner_of(members_C=members_C, bridged_C=self._bridged_C(stride_C * size_C)),
            outer=self.outer,
        )

    def inner_of(self, *, members_C: IntArray, bridged_C: BoolArray) -> Link:
        """Return the links of groups inside a node; those of its islands for groups that lie within one each.

        Where each accelerator has a link to each other, a group has those between its members.
        """
        shape, rates, inner = self.shape, self.reached, self.inner
        used, pair = _links_used(shape.intra_node, members_C, of=shape.num_accelerators)
        inner = replace(inner, bytes_per_s=inner.bytes_per_s * used, pair_ratio=pair)
        island = shape.island
        if island is None or not bridged_C.any():
            return inner
        used, pair = _links_used(island.fabric, members_C, of=island.num_accelerators or 1)
        bridge_bytes_per_s = island.bandwidth_bytes_per_s * rates.node_link_ratio * used
        return Link(
            bytes_per_s=np.where(bridged_C, bridge_bytes_per_s, inner.bytes_per_s),
            latency_s=np.where(bridged_C, island.fabric.latency_s * rates.latency_ratio, inner.latency_s),
            reduces=inner.reduces,
            pair_ratio=np.where(bridged_C, pair, inner.pair_ratio),
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
            reduces=self.switches_reduce and shape.inter_node.reduces_in_network,
        )


LINKS_OF_A_CHIP = {FabricTopology.TORUS_2D: 4, FabricTopology.TORUS_3D: 6}
"""Links of a chip on a torus, of which one leads to each neighbour."""


def _links_used(fabric: Fabric, members_C: IntArray, *, of: int) -> tuple[Number, Number]:
    """Return the share of its links that an accelerator uses in a group, and the share of those that one pair has.

    On a full mesh of ``of`` accelerators these are the links to the other members, one to each. On a torus a group is
    taken to lie so that it uses all, and a pair to be neighbours, with one link.
    """
    if fabric.topology is FabricTopology.FULL_MESH and of > 1:
        peers_C = np.clip(members_C - 1, 1, of - 1)
        return peers_C / (of - 1), 1 / peers_C
    return 1.0, 1 / LINKS_OF_A_CHIP.get(fabric.topology, 1)


def power_of_two_within(number: int) -> int:
    """Return the largest power of two that is not above a positive number."""
    return 1 << number.bit_length() - 1


def bridged_size(shape: NodeShape) -> int:
    """Return the size of islands smaller than the node, as of two cards with a bridge; 1 where there are none."""
    num = (shape.island.num_accelerators or 1) if shape.island else 1
    return num if num < shape.num_accelerators else 1
