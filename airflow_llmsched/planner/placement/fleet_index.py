"""What is free in a fleet, as arrays beside the shared read-only tree, changed in place. Pure.

A tree of thousands of nodes is laid out once. What one gang takes or gives back, or one node that changes, costs the
number of levels, whatever the number of nodes. Axes: N = node in path order, as in ``feasible.NodeTable``; D = domain
of a level of the tree, in path order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import NodeCosts, Placement
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.placement.feasible import NODE_LEVEL, NodeTable, ordered
from airflow_llmsched.planner.placement.score import CostColumns


class FleetIndex:
    """Free slots, whole nodes and whole domains of a fleet, and what its nodes cost.

    A node or domain is whole when all of its slots are free and may be used.

    Attributes:
        levels: the tree's, with nodes below them, as in a table.
        ids: nodes in path order.
        domain_LN: number of each node's domain on each level.
        free_N: usable slots of each node.
        num_slots_N: all slots of each node.
        free_D: usable slots of each domain, by level of the tree.
        num_slots_D: all slots of each domain, by level.
        num_whole_nodes_D: whole nodes of each domain, by level.
        num_whole_inner_D: whole domains of the next inner level (of the last, nodes) in each domain, by level.
        costs: price, risk and missing data of each node.
    """

    def __init__(self, tree: TopologyTree, node_costs: Mapping[NodeId, NodeCosts] | None = None) -> None:
        """Lay ``tree`` out; of ``node_costs``, a node that is not named costs nothing."""
        columns = ordered(tree)
        self.tree = tree
        self._columns = columns
        self.levels = columns.levels
        self.ids: tuple[NodeId, ...] = tuple(node.id for node in columns.nodes)
        self.domain_LN = columns.domain_LN
        self.num_slots_N = columns.num_slots_N
        self.free_N: IntArray = columns.free_N.copy()
        self.costs = CostColumns.of(self.ids, node_costs or {})
        self._position = {node: number for number, node in enumerate(self.ids)}
        self._reasons = [node.unusable_reason for node in columns.nodes]
        self._free_slots = [_free_slots(node) for node in columns.nodes]
        self._usable_slots = list(columns.slots)
        self._is_whole_N = columns.is_whole_N.copy()
        self._domains = columns.domain_LN[: len(tree.levels)].T.tolist()
        self._aggregate()

    def position(self, node: NodeId) -> int:
        """Return where a node is in the arrays. Raises ``KeyError`` for one that the tree does not have."""
        return self._position[node]

    def update(self, node: TopologyNode) -> None:
        """Take over what is now known of a node.

        Raises:
            KeyError: the tree does not have it.
            ValueError: it is elsewhere, or has more or fewer slots: that is another tree.
        """
        position = self._position[node.id]
        own = self.tree_node(position)
        if (node.path, node.num_slots) != (own.path, own.num_slots):
            raise ValueError(f"node {node.id!r} is not where it was, or not as large: lay the tree out again")
        self._reasons[position] = node.unusable_reason
        self._set(position, _free_slots(node))

    def set_costs(self, node: NodeId, costs: NodeCosts) -> None:
        """Take over what a node costs now. Raises ``KeyError`` for one that the tree does not have."""
        position = self._position[node]
        self.costs.usd_per_hour_N[position] = costs.usd_per_hour
        self.costs.failures_per_hour_N[position] = costs.failures_per_hour
        self.costs.missing_data_bytes_N[position] = costs.missing_data_bytes

    def take(self, placement: Placement) -> None:
        """Book what a gang holds, or nothing of it.

        Raises:
            KeyError: a node is not in the tree.
            ValueError: a slot is not free.
        """
        held = _held(placement)
        for node, slots in held.items():
            taken = slots - set(self._free_slots[self._position[node]])
            if taken:
                raise ValueError(f"node {node!r}: slots {sorted(taken)} are not free")
        for node, slots in held.items():
            position = self._position[node]
            self._set(position, tuple(slot for slot in self._free_slots[position] if slot not in slots))

    def give_back(self, placement: Placement) -> None:
        """Free what a gang held, or nothing of it.

        Raises:
            KeyError: a node is not in the tree.
            ValueError: a slot is free already.
        """
        held = _held(placement)
        for node, slots in held.items():
            free = slots & set(self._free_slots[self._position[node]])
            if free:
                raise ValueError(f"node {node!r}: slots {sorted(free)} are free already")
        for node, slots in held.items():
            position = self._position[node]
            self._set(position, tuple(sorted({*self._free_slots[position], *slots})))

    def table(self, *, group_size: int, excluded: Collection[NodeId] = frozenset()) -> NodeTable:
        """Return the table of what is free now, for gangs whose groups of ``group_size`` ranks must not be torn."""
        usable_N = self.free_N.copy()
        usable_N[[self._position[node] for node in excluded if node in self._position]] = 0
        inside_node = self.tree.scale_up_level is None
        return NodeTable(
            levels=self.levels,
            num_tree_levels=len(self.tree.levels),
            ids=self.ids,
            slots=tuple(self._usable_slots),
            capacity_N=usable_N // group_size * group_size if inside_node else usable_N,
            is_whole_N=self._is_whole_N.copy(),
            free_N=self.free_N.copy(),
            num_slots_N=self.num_slots_N,
            domain_LN=self.domain_LN,
            outer_LD=self._columns.outer_LD,
            first_LD=self._columns.first_LD,
            wirings=self._columns.wirings,
            group_size=group_size,
            group_depth=self.levels.index(self.tree.scale_up_level or NODE_LEVEL),
        )

    def tree_node(self, position: int) -> TopologyNode:
        """Return a node as the tree has it, whatever became of it since."""
        return self._columns.nodes[position]

    def tree_now(self) -> TopologyTree:
        """Return the tree with what is free now: all nodes are made anew."""
        now = zip(self._columns.nodes, self._free_slots, self._reasons, strict=True)
        return replace(
            self.tree,
            nodes=tuple(
                replace(node, num_free_slots=len(slots), free_slots=slots, unusable_reason=reason)
                for node, slots, reason in now
            ),
        )

    def _aggregate(self) -> None:
        depths = range(len(self.tree.levels))
        whole_N = self.free_N == self.num_slots_N
        self.free_D = [_sums(self.domain_LN[depth], self.free_N) for depth in depths]
        self.num_slots_D = [_sums(self.domain_LN[depth], self.num_slots_N) for depth in depths]
        self.num_whole_nodes_D = [_sums(self.domain_LN[depth], whole_N) for depth in depths]
        self.num_whole_inner_D = [
            self.num_whole_nodes_D[depth]
            if depth == depths[-1]
            else _sums(self._columns.outer_LD[depth + 1], self.free_D[depth + 1] == self.num_slots_D[depth + 1])
            for depth in depths
        ]

    def _set(self, position: int, free_slots: tuple[int, ...]) -> None:
        """Change one node, and what is known of the domains around it, from the inside out."""
        before, num_slots = int(self.free_N[position]), int(self.num_slots_N[position])
        usable = () if self._reasons[position] else free_slots
        self._free_slots[position], self._usable_slots[position] = free_slots, usable
        self._is_whole_N[position] = len(free_slots) == num_slots
        self.free_N[position] = len(usable)
        more = len(usable) - before
        node_flip = inner_flip = (len(usable) == num_slots) - (before == num_slots)
        domains = self._domains[position]
        for depth in reversed(range(len(domains))):
            domain, free_D = domains[depth], self.free_D[depth]
            all_slots, was_free = int(self.num_slots_D[depth][domain]), int(free_D[domain])
            free_D[domain] = was_free + more
            self.num_whole_nodes_D[depth][domain] += node_flip
            if depth < len(domains) - 1:
                self.num_whole_inner_D[depth][domain] += inner_flip
            inner_flip = (was_free + more == all_slots) - (was_free == all_slots)


def _free_slots(node: TopologyNode) -> tuple[int, ...]:
    named: Sequence[int] = range(node.num_free_slots) if node.free_slots is None else sorted(node.free_slots)
    return tuple(named)


def _held(placement: Placement) -> dict[NodeId, set[int]]:
    held: dict[NodeId, set[int]] = {}
    for slot in placement.slots:
        held.setdefault(slot.node, set()).add(slot.slot)
    for helper in placement.helpers:
        held.setdefault(helper.node, set()).update(helper.slots)
    return held


def _sums(domain_N: IntArray, number_N: IntArray) -> IntArray:
    return np.bincount(domain_N, weights=number_N).astype(np.int64)
