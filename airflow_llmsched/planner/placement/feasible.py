"""Which nodes could take part in a gang, counted: dense arrays beside the shared, read-only tree. Pure.

Axes: N = node in order of path and id, L = level, outermost first. Tensor-parallel groups stay inside a node, so a
node's capacity is its usable slots rounded down to whole groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.planner.layout_table import BoolArray, IntArray

NODE_LEVEL = "node"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeTable:
    """Nodes of one problem. ``domain_LN`` numbers the domains of each level in path order, so that ties break on ids.

    ``levels`` are the tree's, with ``node`` below them unless the tree names a level so. ``slots`` are the
    usable ones of each node, ``capacity_N`` how many of them a gang may take; ``is_whole_N`` says that nothing else
    runs on the node.
    """

    levels: tuple[str, ...]
    num_tree_levels: int
    ids: tuple[NodeId, ...]
    slots: tuple[tuple[int, ...], ...]
    capacity_N: IntArray
    is_whole_N: BoolArray
    domain_LN: IntArray

    @classmethod
    def of(cls, tree: TopologyTree, *, group_size: int, excluded: Collection[NodeId] = frozenset()) -> NodeTable:
        """Lay a tree out for gangs whose groups of ``group_size`` ranks must not be torn apart."""
        ordered = _ordered(tree)
        usable = [0 if node.id in excluded else node.usable_slots for node in ordered.nodes]
        return cls(
            levels=ordered.levels,
            num_tree_levels=len(tree.levels),
            ids=tuple(node.id for node in ordered.nodes),
            slots=ordered.slots,
            capacity_N=np.array(usable, dtype=np.int64) // group_size * group_size,
            is_whole_N=ordered.is_whole_N,
            domain_LN=ordered.domain_LN,
        )

    def depth(self, level: str) -> int:
        """Index of a level. Raises ``ValueError`` that names the known ones."""
        if level not in self.levels:
            raise ValueError(f"no level {level!r} in the topology; known: {', '.join(self.levels)}")
        return self.levels.index(level)

    def domains(self, depth: int | None, within_N: BoolArray) -> list[IntArray]:
        """Positions of nodes by domain, in path order, among ``within_N``; the whole fleet when ``depth`` is None."""
        positions_N = np.flatnonzero(within_N)
        if depth is None:
            return [positions_N] if positions_N.size else []
        domain_N = self.domain_LN[depth, positions_N]
        return [positions_N[domain_N == domain] for domain in np.unique(domain_N)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ordered:
    """What of a table depends on the tree alone."""

    levels: tuple[str, ...]
    nodes: tuple[TopologyNode, ...]
    slots: tuple[tuple[int, ...], ...]
    is_whole_N: BoolArray
    domain_LN: IntArray


@lru_cache(maxsize=16)
def _ordered(tree: TopologyTree) -> _Ordered:
    """Put a tree in order, once for all gangs that are placed on it."""
    nodes = tuple(sorted(tree.nodes, key=lambda node: (node.path, node.id)))
    levels = tree.levels if NODE_LEVEL in tree.levels else (*tree.levels, NODE_LEVEL)
    domain_LN = np.tile(np.arange(len(nodes), dtype=np.int64), (len(levels), 1))
    for depth in range(len(tree.levels)):
        numbers: dict[tuple[str, ...], int] = {}
        for position, node in enumerate(nodes):
            domain_LN[depth, position] = numbers.setdefault(node.path[: depth + 1], len(numbers))
    domain_LN.setflags(write=False)
    return _Ordered(
        levels=levels,
        nodes=nodes,
        slots=tuple(node.usable_slot_indexes for node in nodes),
        is_whole_N=np.array([node.num_free_slots == node.num_slots for node in nodes], dtype=np.bool_),
        domain_LN=domain_LN,
    )


def largest_gang(table: NodeTable, level: str | None) -> int:
    """Most ranks that fit into one domain of ``level``, or into the fleet when None."""
    depth = None if level is None else table.depth(level)
    everywhere_N = np.ones(len(table.ids), dtype=np.bool_)
    return max((int(table.capacity_N[domain].sum()) for domain in table.domains(depth, everywhere_N)), default=0)


def refusal_reasons(problem: PlacementProblem) -> dict[str, int]:
    """Count nodes by what keeps them from helping, most frequent first, ties in the order of the text."""
    counts = Counter(_reason(node, problem) for node in problem.tree.nodes)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _reason(node: TopologyNode, problem: PlacementProblem) -> str:
    if node.id in problem.excluded:
        return "excluded"
    if node.unusable_reason:
        return node.unusable_reason
    if node.num_free_slots == 0:
        return "no free slot"
    if node.num_free_slots < problem.layout.tp:
        return f"fewer free slots than tp={problem.layout.tp}"
    if problem.required_level:
        return f"usable, but its {problem.required_level} is too small"
    return "usable, but the fleet is too small"
