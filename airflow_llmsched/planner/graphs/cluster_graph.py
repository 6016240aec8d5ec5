"""The cluster as a graph: bandwidth and latency between any two accelerators, which their levels decide. Pure.

Never a matrix: what two accelerators have between them depends only on the innermost domain that holds both.
Axes: N = node in path order, L = level, outermost first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.network_levels import HOP_S, joined_depth, levels_over
from airflow_llmsched.planner.perf.placed_machine import network_rate
from airflow_llmsched.planner.placement.feasible import NodeTable

FLEET = "fleet"
"""Name of the one domain around all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelLink:
    """What two accelerators have between them whose innermost common domain is of ``level``: one way, in bulk."""

    level: str
    bytes_per_s: float
    latency_s: float


class ClusterGraph:
    """Nodes of one shape under a tree.

    Attributes:
        shape: that of the nodes.
        serves_collectives_first: whether collectives have a class of their own in the network.
        table: the nodes, in path order.
        links: by depth of the innermost common domain: the fleet first, then each level, the node last.
    """

    def __init__(self, tree: TopologyTree, shape: NodeShape) -> None:
        self.shape = shape
        self.serves_collectives_first = tree.facts.serves_collectives_first
        self.table = NodeTable.of(tree, group_size=1)
        self._position = {node: number for number, node in enumerate(self.table.ids)}
        self._machine = Machine(
            shape=shape,
            ranks_per_node_C=np.array([shape.num_accelerators], dtype=np.int64),
            switches_reduce=tree.switches_reduce,
        )
        self._joined = joined_depth(tree, self.table.levels, shape)
        levels = (FLEET, *self.table.levels)
        self.links = tuple(self._link(tree, level, depth) for depth, level in enumerate(levels, start=-1))

    def depth_between(self, one: NodeId, other: NodeId) -> int:
        """Return the depth of the innermost domain that holds both nodes, -1 where only the fleet does.

        Raises:
            KeyError: a node is not in the tree.
        """
        same_L = self.table.domain_LN[:, self._position[one]] == self.table.domain_LN[:, self._position[other]]
        return int(np.flatnonzero(same_L).max(initial=-1))

    def link(self, one: NodeId, other: NodeId) -> LevelLink:
        """Return what two accelerators on these nodes have between them. Raises as :meth:`depth_between`."""
        return self.links[self.depth_between(one, other) + 1]

    def domains_of(self, nodes: list[NodeId]) -> IntArray:
        """Return the domain of each node by level (axes L, N). Raises ``KeyError`` as :meth:`depth_between`."""
        return np.asarray(self.table.domain_LN[:, [self._position[node] for node in nodes]])

    @property
    def own_bytes_per_s(self) -> float:
        """What one accelerator's share of its node's network cards moves one way, whatever lies beyond."""
        return float(self._machine.outer.bytes_per_s)

    def uplink_bytes_per_s(self, depth: int) -> FloatArray:
        """Return what all accelerators of each domain at ``depth`` have together towards others of the next level.

        One way; 0 for domains whose inside is one domain of the fastest links, which have no such uplink.
        """
        slots_D = np.bincount(self.table.domain_LN[depth], weights=self.table.num_slots_N.astype(np.float64))
        return np.asarray(slots_D * (self.links[depth].bytes_per_s if depth <= self._joined else 0.0))

    def _link(self, tree: TopologyTree, level: str, depth: int) -> LevelLink:
        if depth >= self._joined:
            inner = self._machine.inner
            return LevelLink(level=level, bytes_per_s=float(inner.bytes_per_s), latency_s=float(inner.latency_s))
        beyond = self._joined - 1 - depth
        return LevelLink(
            level=level,
            bytes_per_s=network_rate(self._machine, levels_over(tree, depth)),
            latency_s=float(self._machine.outer.latency_s) + beyond * HOP_S,
        )
