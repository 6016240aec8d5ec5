"""Which nodes could take part in a gang, counted: dense arrays beside the shared, read-only tree. Pure.

Axes: N = node in order of path and id, L = level, outermost first. Tensor-parallel groups stay where the fastest links
reach: inside a node, or inside a domain of the tree's scale-up level, whose room is rounded down to whole groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.node_topology import NodeTopology
from airflow_llmsched.domain.placement import PlacementProblem
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.planner.layout_table import BoolArray, IntArray

NODE_LEVEL = "node"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeTable:
    """Nodes of one problem. ``domain_LN`` numbers the domains of each level in path order, so that ties break on ids.

    ``levels`` are the tree's, with ``node`` below them unless the tree names a level so. ``slots`` are the
    usable ones of each node, ``capacity_N`` how many of them a gang may take; ``is_whole_N`` says that nothing else
    runs on the node. ``free_N`` and ``num_slots_N`` are what a node has for whoever may use it, and what it has at all.
    ``outer_LD`` says of each domain in which one of the next outer level it is (of the outermost, 0), ``first_LD``
    where its nodes begin. ``wirings`` are what joins the devices of each node, empty where nobody looked at any. A
    group of ``group_size`` ranks must not leave its domain of the level at ``group_depth``.
    """

    levels: tuple[str, ...]
    num_tree_levels: int
    ids: tuple[NodeId, ...]
    slots: tuple[tuple[int, ...], ...]
    capacity_N: IntArray
    is_whole_N: BoolArray
    free_N: IntArray
    num_slots_N: IntArray
    domain_LN: IntArray
    outer_LD: tuple[IntArray, ...]
    first_LD: tuple[IntArray, ...]
    wirings: tuple[NodeTopology | None, ...]
    group_size: int
    group_depth: int

    @classmethod
    def of(cls, tree: TopologyTree, *, group_size: int, excluded: Collection[NodeId] = frozenset()) -> NodeTable:
        """Lay a tree out for gangs whose groups of ``group_size`` ranks must not be torn apart."""
        columns = ordered(tree)
        usable = [0 if node.id in excluded else node.usable_slots for node in columns.nodes]
        usable_N = np.array(usable, dtype=np.int64)
        inside_node = tree.scale_up_level is None
        return cls(
            levels=columns.levels,
            num_tree_levels=len(tree.levels),
            ids=tuple(node.id for node in columns.nodes),
            slots=columns.slots,
            capacity_N=usable_N // group_size * group_size if inside_node else usable_N,
            is_whole_N=columns.is_whole_N,
            free_N=columns.free_N,
            num_slots_N=columns.num_slots_N,
            domain_LN=columns.domain_LN,
            outer_LD=columns.outer_LD,
            first_LD=columns.first_LD,
            wirings=columns.wirings,
            group_size=group_size,
            group_depth=columns.levels.index(tree.scale_up_level or NODE_LEVEL),
        )

    def depth(self, level: str) -> int:
        """Index of a level. Raises ``ValueError`` that names the known ones."""
        if level not in self.levels:
            raise ValueError(f"no level {level!r} in the topology; known: {', '.join(self.levels)}")
        return self.levels.index(level)

    def room(self, nodes: IntArray, *, depth: int | None) -> int:
        """Ranks that nodes, all those of a domain of the level at ``depth``, could take.

        Whole groups only, but for a domain inside one that groups must not leave: others there may have the rest.
        """
        is_inside = depth is not None and depth > self.group_depth
        if is_inside or self.group_depth >= self.num_tree_levels:
            return int(self.capacity_N[nodes].sum())
        return int((self.group_rooms(nodes) // self.group_size).sum()) * self.group_size

    def group_rooms(self, nodes: IntArray) -> IntArray:
        """Usable slots of each domain that groups must not leave, among the nodes of neighbouring ones."""
        domain_N = self.domain_LN[self.group_depth, nodes]
        first = int(domain_N.min()) if domain_N.size else 0
        return np.bincount(domain_N - first, weights=self.capacity_N[nodes]).astype(np.int64)

    def domains(self, depth: int | None, within_N: BoolArray) -> list[IntArray]:
        """Positions of nodes by domain, in path order, among ``within_N``; the whole fleet when ``depth`` is None."""
        positions_N = np.flatnonzero(within_N)
        if depth is None:
            return [positions_N] if positions_N.size else []
        domain_N = self.domain_LN[depth, positions_N]
        return [positions_N[domain_N == domain] for domain in np.unique(domain_N)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderedTree:
    """What of a table depends on the tree alone."""

    levels: tuple[str, ...]
    nodes: tuple[TopologyNode, ...]
    slots: tuple[tuple[int, ...], ...]
    is_whole_N: BoolArray
    free_N: IntArray
    num_slots_N: IntArray
    domain_LN: IntArray
    outer_LD: tuple[IntArray, ...]
    first_LD: tuple[IntArray, ...]
    wirings: tuple[NodeTopology | None, ...]


@lru_cache(maxsize=16)
def ordered(tree: TopologyTree) -> OrderedTree:
    """Put a tree in order, once for all gangs that are placed on it."""
    nodes = tuple(sorted(tree.nodes, key=lambda node: (node.path, node.id)))
    levels = tree.levels if NODE_LEVEL in tree.levels else (*tree.levels, NODE_LEVEL)
    domain_LN = np.tile(np.arange(len(nodes), dtype=np.int64), (len(levels), 1))
    for depth in range(len(tree.levels)):
        numbers: dict[tuple[str, ...], int] = {}
        for position, node in enumerate(nodes):
            domain_LN[depth, position] = numbers.setdefault(node.path[: depth + 1], len(numbers))
    domain_LN.setflags(write=False)
    first_LD = tuple(np.flatnonzero(np.diff(domain_N, prepend=-1)) for domain_N in domain_LN)
    outer_LD = [np.zeros(len(first_LD[0]), dtype=np.int64)]
    outer_LD += [domain_LN[depth, first_D] for depth, first_D in enumerate(first_LD[1:])]
    return OrderedTree(
        levels=levels,
        nodes=nodes,
        slots=tuple(node.usable_slot_indexes for node in nodes),
        is_whole_N=np.array([node.num_free_slots == node.num_slots for node in nodes], dtype=np.bool_),
        free_N=np.array([node.usable_slots for node in nodes], dtype=np.int64),
        num_slots_N=np.array([node.num_slots for node in nodes], dtype=np.int64),
        domain_LN=domain_LN,
        outer_LD=tuple(outer_LD),
        first_LD=first_LD,
        wirings=tuple(tree.wirings.get(node.shape) for node in nodes) if tree.wirings else (),
    )


def largest_gang(table: NodeTable, level: str | None) -> int:
    """Most ranks in whole groups that fit into one domain of ``level``, or into the fleet when None."""
    depth = None if level is None else table.depth(level)
    everywhere_N = np.ones(len(table.ids), dtype=np.bool_)
    most = max((table.room(domain, depth=depth) for domain in table.domains(depth, everywhere_N)), default=0)
    return most // table.group_size * table.group_size


def refusal_reasons(problem: PlacementProblem) -> dict[str, int]:
    """Count nodes by what keeps them from helping, most frequent first, ties in the order of the text."""
    table = NodeTable.of(problem.tree, group_size=problem.layout.tp, excluded=problem.excluded)
    rooms = table.group_rooms(np.arange(len(table.ids)))
    room_of = dict(zip(table.ids, rooms[table.domain_LN[table.group_depth]].tolist(), strict=True))
    counts = Counter(_reason(node, problem, room=room_of[node.id]) for node in problem.tree.nodes)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _reason(node: TopologyNode, problem: PlacementProblem, *, room: int) -> str:
    if node.id in problem.excluded:
        return "excluded"
    if node.unusable_reason:
        return node.unusable_reason
    if node.num_free_slots == 0:
        return "no free slot"
    if room < problem.layout.tp:
        where = f" in its {problem.tree.scale_up_level}" * (problem.tree.scale_up_level is not None)
        return f"fewer free slots{where} than tp={problem.layout.tp}"
    if problem.required_level:
        return f"usable, but its {problem.required_level} is too small"
    return "usable, but the fleet is too small"
