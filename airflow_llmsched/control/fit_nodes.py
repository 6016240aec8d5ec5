"""Which of an engine's nodes are fit to be planned on. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import TopologyTree


def without(tree: TopologyTree, unfit: Collection[NodeId]) -> TopologyTree:
    """Return the tree without nodes that must not be used however long one waits."""
    if not unfit:
        return tree
    return replace(tree, nodes=tuple(node for node in tree.nodes if node.id not in unfit))
