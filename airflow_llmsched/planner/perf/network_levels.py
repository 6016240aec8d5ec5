"""The levels of a network: which of them what is told is of, and which a message goes over. Pure.

Depths count a tree's levels from the outermost; ``EVERYWHERE`` is that of the one domain around all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.topology import NetworkLevel, TopologyTree

EVERYWHERE = -1

HOP_S = 1e-6
"""Latency of each further level: two switches more, of 0.5 microseconds with their cables. An assumption."""


def told_levels(tree: TopologyTree) -> tuple[tuple[NetworkLevel, int], ...]:
    """Return what is known of the network's levels with their depths, innermost first."""
    depth_of = {level: depth for depth, level in enumerate(tree.levels)}
    told = ((each, EVERYWHERE if each.level is None else depth_of[each.level]) for each in tree.network)
    return tuple(sorted(told, key=lambda pair: pair[1], reverse=True))


def levels_over(tree: TopologyTree, depth: int) -> tuple[NetworkLevel | None, ...]:
    """Return the told levels that lie between ranks of one domain at ``depth``, innermost first.

    None at the end is whatever no level speaks of.
    """
    over: list[NetworkLevel | None] = []
    for level, own_depth in told_levels(tree):
        over.append(level)
        if own_depth <= depth:
            return tuple(over)
    return (*over, None)


def joined_depth(tree: TopologyTree, levels: Sequence[str], shape: NodeShape | None) -> int:
    """Return the depth among ``levels``, nodes last, of the domains of the fastest links.

    That is the nodes', where the tree names no other or the shape's links end with them; None: of an unknown shape.
    """
    level = tree.scale_up_level if shape is None or shape.island_joins_nodes else None
    return len(levels) - 1 if level is None else levels.index(level)


def of_shape(tree: TopologyTree, name: str, shape: NodeShape) -> TopologyTree:
    """Return the nodes of one shape; only of one that has fast links between nodes do these reach beyond them."""
    return replace(
        tree,
        nodes=tuple(node for node in tree.nodes if node.shape == name),
        scale_up_level=tree.scale_up_level if shape.island_joins_nodes else None,
    )
