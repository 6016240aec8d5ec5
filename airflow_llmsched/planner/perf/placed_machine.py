"""Where ranks really are: which links a group spans follows from a placement, not from the order of ranks. Pure.

Axes: C = candidate layout, R = rank, G = group of ranks, M = member of a group. Not modelled: which rail of the network
a card is on, and how much narrower a network is towards its core.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.perf.collectives import Span
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.rates import Rates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedMachine(Machine):
    """A machine for candidates that all run on one placement, each with as many ranks as it has.

    ``domain_R`` numbers the domains of fastest links by rank: nodes, or racks that are one NVLink domain. The slowest
    group of each kind decides, since a step waits for all: the one over most domains, and of those with fewest members
    in one.
    """

    domain_R: IntArray

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
        return cls(
            shape=shape, ranks_per_node_C=np.full(num_candidates, smallest, dtype=np.int64), rates=rates,
            domain_R=domain_R,
        )  # fmt: skip

    def take(self, chosen: IntArray) -> PlacedMachine:
        """Return the machine of some candidates, by index."""
        return PlacedMachine(
            shape=self.shape, ranks_per_node_C=self.ranks_per_node_C[chosen], rates=self.rates, domain_R=self.domain_R
        )

    def span(self, *, stride_C: IntArray, size_C: IntArray) -> Span:
        """Return where the slowest group of ``size_C`` ranks, ``stride_C`` apart, has its members."""
        pairs, pair_C = np.unique(np.stack([stride_C, size_C]), axis=1, return_inverse=True)
        worst = np.array([self._worst(int(stride), int(size)) for stride, size in pairs.T], dtype=np.int64)
        domains_C, members_C = worst[pair_C.ravel()].T
        return Span(size_C=size_C, members_C=members_C, domains_C=domains_C, inner=self.inner, outer=self.outer)

    def _worst(self, stride: int, size: int) -> tuple[int, int]:
        """Return how many domains the slowest group is in, and its fewest members in one of them."""
        first_G = np.arange(len(self.domain_R) - stride * (size - 1))
        first_G = first_G[first_G // stride % size == 0]
        if size == 1 or not first_G.size:
            return 1, 1
        domain_GM = np.sort(self.domain_R[first_G[:, None] + stride * np.arange(size)], axis=1)
        begins_GM = np.ones(domain_GM.shape, dtype=np.bool_)
        begins_GM[:, 1:] = domain_GM[:, 1:] != domain_GM[:, :-1]
        domains_G = begins_GM.sum(axis=1)
        begin = np.flatnonzero(begins_GM)
        run = np.diff(np.append(begin, domain_GM.size))
        fewest_G = np.minimum.reduceat(run, np.append(0, np.cumsum(domains_G)[:-1]))
        most = int(domains_G.max())
        return most, int(fewest_G[domains_G == most].min())
