"""Many clusters' trees as one, whose outermost level is the cluster. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_llmsched.domain.fleet import CLUSTER_LEVEL, Cluster, fleet_node
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.node_topology import NodeTopology
from airflow_llmsched.domain.topology import AS_SHAPES_SAY, NetworkLevel, TopologyNode, TopologyTree


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """One cluster's nodes, None where nobody has ever seen them.

    ``silence`` says why they are an old picture of which nothing may be used; empty: they are as they are now.
    """

    cluster: Cluster
    tree: TopologyTree | None
    silence: str = ""


def fleet_tree(views: Sequence[ClusterView]) -> TopologyTree:
    """Return all nodes under their fleet names.

    A cluster's levels keep their order, and those that other clusters have beside them hold no more in it than its next
    finer one does: a wish for nodes of one block is never granted where nobody knows of blocks. A cluster whose levels
    cannot be put in order with the others' is there, and unusable.
    """
    levels: tuple[str, ...] = ()
    shown: list[ClusterView] = []
    for view in views:
        own = None if view.tree is None else _named(view.tree.levels, view.cluster.level_names)
        together = None if own is None else _together(levels, own)
        if own is None or together is None:
            levels_of = "" if own is None else ", ".join(own)
            reason = view.silence or f"its levels ({levels_of}) contradict other clusters': set level_names"
            shown.append(replace(view, tree=None, silence=reason))
            continue
        levels = together
        shown.append(view)
    seen = [view.tree for view in shown if view.tree is not None]
    return TopologyTree(
        levels=(CLUSTER_LEVEL, *levels),
        nodes=tuple(node for view in shown for node in _nodes(view, levels)),
        scale_up_level=_scale_up_level(shown),
        network=_network(shown, levels),
        switches_reduce=bool(seen) and all(tree.switches_reduce for tree in seen),
        facts=seen[0].facts if seen and all(tree.facts == seen[0].facts for tree in seen) else AS_SHAPES_SAY,
        wirings=_wirings(seen),
    )


def _wirings(trees: Sequence[TopologyTree]) -> dict[str, NodeTopology]:
    """Return what is known of inside nodes of each shape, but for shapes that are wired unlike in two clusters."""
    told: dict[str, list[NodeTopology]] = {}
    for tree in trees:
        for shape in {node.shape for node in tree.nodes} & tree.wirings.keys():
            told.setdefault(shape, []).append(tree.wirings[shape])
    having = Counter(shape for tree in trees for shape in {node.shape for node in tree.nodes})
    return {
        shape: found[0]
        for shape, found in told.items()
        if len(found) == having[shape] and all(each == found[0] for each in found)
    }


def _scale_up_level(views: Sequence[ClusterView]) -> str | None:
    """Return the level whose domains fast links join, where all clusters that have such a level say so of it."""
    trees = [(view.tree, view.cluster.level_names) for view in views if view.tree is not None]
    told = {names.get(tree.scale_up_level, tree.scale_up_level) for tree, names in trees if tree.scale_up_level}
    if len(told) != 1:
        return None
    (level,) = told
    silent = any(tree.scale_up_level is None and level in _named(tree.levels, names) for tree, names in trees)
    return None if silent else level


def _network(views: Sequence[ClusterView], levels: Sequence[str]) -> tuple[NetworkLevel, ...]:
    """Return what every cluster that has a level says of it, the lowest of them, so that it holds wherever a gang goes.

    What joins all nodes of a cluster is of the level of clusters.
    """
    trees = [(view.tree, view.cluster.level_names) for view in views if view.tree is not None]
    told: dict[str, list[NetworkLevel]] = {}
    having = Counter([CLUSTER_LEVEL] * len(trees))
    for tree, names in trees:
        having.update(_named(tree.levels, names))
        for link in tree.network:
            level = CLUSTER_LEVEL if link.level is None else names.get(link.level, link.level)
            told.setdefault(level, []).append(replace(link, level=level))
    return tuple(
        min(told[level], key=lambda link: (link.bandwidth_bytes_per_s, link.is_measured))
        for level in (CLUSTER_LEVEL, *levels)
        if level in told and len(told[level]) == having[level]
    )


def _named(levels: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(names.get(level, level) for level in levels)


def _together(levels: tuple[str, ...], own: Sequence[str]) -> tuple[str, ...] | None:
    """Return ``levels`` with those of ``own`` put in between; None where the two orders contradict each other."""
    if CLUSTER_LEVEL in own or len(set(own)) < len(own):
        return None
    found = list(levels)
    position = 0
    for level in own:
        if level in found:
            if found.index(level) < position:
                return None
            position = found.index(level) + 1
        else:
            found.insert(position, level)
            position += 1
    return tuple(found)


def _nodes(view: ClusterView, levels: tuple[str, ...]) -> list[TopologyNode]:
    name = view.cluster.name
    if view.tree is None:
        return [
            TopologyNode(
                id=fleet_node(name, NodeId("?")),
                path=(name, *("?" for _ in levels)),
                shape="unknown",
                num_slots=0,
                num_free_slots=0,
                unusable_reason=f"cluster {name}: {view.silence}",
            )
        ]
    own = _named(view.tree.levels, view.cluster.level_names)
    nodes = [
        replace(node, id=fleet_node(name, node.id), path=(name, *_path(node, own, levels))) for node in view.tree.nodes
    ]
    if not view.silence:
        return nodes
    reason = f"cluster {name}: {view.silence}"
    return [replace(node, num_free_slots=0, free_slots=None, unusable_reason=reason) for node in nodes]


def _path(node: TopologyNode, own: tuple[str, ...], levels: tuple[str, ...]) -> tuple[str, ...]:
    parts: list[str] = []
    finer: str = node.id
    for level in reversed(levels):
        if level in own:
            finer = node.path[own.index(level)]
        parts.append(finer)
    return tuple(reversed(parts))
