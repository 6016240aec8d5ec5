"""Where ranks really are: which links a group spans follows from a placement, not from the order of ranks. Pure.

Axes: C = candidate layout, R = rank, G = group of ranks, M = member of a group. Not modelled: which rail of the network
a card is on, and how much narrower a network is towards its core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.perf.collectives import Span
from airflow_llmsched.planner.perf.machine import Machine, bridged_size
from airflow_llmsched.planner.perf.rates import Rates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedMachine(Machine):
    """A machine for candidates that all run on one placement, each with as many ranks as it has.

    ``domain_R`` numbers the domains of fastest links by rank: nodes, or racks that are one NVLink domain. The slowest
    group of each kind decides, since a step waits for all: the one over most domains, and of those with fewest members
    in one. ``bridge_R`` numbers islands smaller than a node in the same way: pairs of cards with a bridge.
    """

    domain_R: IntArray
    bridge_R: IntArray

    @classmethod
    def of(
        cls, placement: Placement, *, tree: TopologyTree, shape: NodeShape, num_candidates: int = 1,
        rates: Rates | None = None,
    ) -> PlacedMachine:  # fmt: skip
        """Build the machine of ``num_candidates`` layouts. Raises ``KeyError`` for a node that is not in the tree."""
        nodes = {node.id: node for node in tree.nodes}
        island = shape.island
        joins_nodes = island is not None and (island.num_accelerators or 0) > shape.num_accelerators and tree.levels
        places = [nodes[slot.node].path if joins_nodes else (slot.node,) for slot in placement.slots]
        numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
        domain_R = np.array([numbers[place] for place in places], dtype=np.int64)
        smallest = int(np.bincount(domain_R).min())
        bridges = [(slot.node, slot.slot // bridged_size(shape)) for slot in placement.slots]
        bridge_numbers = {bridge: number for number, bridge in enumerate(dict.fromkeys(bridges))}
        return cls(
            shape=shape, ranks_per_node_C=np.full(num_candidates, smallest, dtype=np.int64), rates=rates,
            domain_R=domain_R, bridge_R=np.array([bridge_numbers[each] for each in bridges], dtype=np.int64),
        )  # fmt: skip

    def take(self, chosen: IntArray) -> PlacedMachine:
        """Return the machine of some candidates, by index."""
        return replace(self, ranks_per_node_C=self.ranks_per_node_C[chosen])

    def span(self, *, stride_C: IntArray, size_C: IntArray) -> Span:
        """Return where the slowest group of ``size_C`` ranks, ``stride_C`` apart, has its members."""
        pairs, pair_C = np.unique(np.stack([stride_C, size_C]), axis=1, return_inverse=True)
        worst = np.array([_worst(self.domain_R, int(stride), int(size)) for stride, size in pairs.T], dtype=np.int64)
        domains_C, members_C = worst[pair_C.ravel()].T
        within = [_worst(self.bridge_R, int(stride), int(size))[0] == 1 for stride, size in pairs.T]
        bridged_C = np.array(within)[pair_C.ravel()] & (bridged_size(self.shape) > 1)
        return Span(
            size_C=size_C, members_C=members_C, domains_C=domains_C, inner=self.inner_of(bridged_C), outer=self.outer
        )


def _worst(domain_R: IntArray, stride: int, size: int) -> tuple[int, int]:
    """Return how many domains the slowest group is in, and its fewest members in one of them."""
    first_G = np.arange(len(domain_R) - stride * (size - 1))
    first_G = first_G[first_G // stride % size == 0]
    if size == 1 or not first_G.size:
        return 1, 1
    domain_GM = np.sort(domain_R[first_G[:, None] + stride * np.arange(size)], axis=1)
    begins_GM = np.ones(domain_GM.shape, dtype=np.bool_)
    begins_GM[:, 1:] = domain_GM[:, 1:] != domain_GM[:, :-1]
    domains_G = begins_GM.sum(axis=1)
    begin = np.flatnonzero(begins_GM)
    run = np.diff(np.append(begin, domain_GM.size))
    fewest_G = np.minimum.reduceat(run, np.append(0, np.cumsum(domains_G)[:-1]))
    most = int(domains_G.max())
    return most, int(fewest_G[domains_G == most].min())
