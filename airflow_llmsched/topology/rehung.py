"""Nodes of one source in the network of another: a cluster knows its nodes, the fabric how they are joined. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from airflow_llmsched.domain.topology import AS_SHAPES_SAY, TopologyNode, TopologyTree
from airflow_llmsched.topology.reading import Oddities, Reading, refusal, short_name


def rehung(nodes: TopologyTree, network: TopologyTree) -> Reading:
    """Return the nodes of one tree at the places, and with the links, of another. Names are compared without domain.

    The level that the fastest links join stays, innermost, as no fabric tells it. A node that the network does not have
    is alone there. Raises ``DataError`` where two nodes have one name, or none is in the network.
    """
    odd = Oddities()
    paths = _by_short_name(network)
    own = _by_short_name(nodes)
    if not paths.keys() & own.keys():
        hint = "Are they sources of one cluster, which call nodes alike?"
        raise refusal("network", "has none of the nodes", hint=hint)
    odd.note("node that the network does not have: it is alone there", len(own.keys() - paths.keys()))
    odd.note("host of the network that is none of the nodes", len(paths.keys() - own.keys()))
    joined = nodes.scale_up_level
    levels = network.levels if joined is None else (*network.levels, joined)
    if len(set(levels)) < len(levels):
        raise refusal("network", f"has a level {joined!r} as the nodes have", hint="Give one of them another name")
    placed = [_at(node, paths, nodes, num_levels=len(network.levels)) for node in nodes.nodes]
    return Reading(
        tree=TopologyTree(
            levels=levels,
            nodes=tuple(sorted(placed, key=lambda node: (node.path, node.id))),
            scale_up_level=joined,
            network=network.network,
            switches_reduce=nodes.switches_reduce or network.switches_reduce,
            facts=nodes.facts if network.facts == AS_SHAPES_SAY else network.facts,
            wirings=nodes.wirings,
        ),
        warnings=odd.counted(),
    )


def usual_slots(tree: TopologyTree) -> int:
    """Return how many slots most nodes have, by which a fabric's rates are shared out."""
    counts = Counter(node.num_slots for node in tree.nodes if node.num_slots)
    return max(counts, key=lambda number: (counts[number], number), default=1)


def _by_short_name(tree: TopologyTree) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for node in tree.nodes:
        short = short_name(node.id)
        if short in found:
            raise refusal("network", f"two nodes are called {short!r}", hint="Tell them apart by their host names")
        found[short] = node.path
    return found


def _at(
    node: TopologyNode, paths: Mapping[str, tuple[str, ...]], nodes: TopologyTree, *, num_levels: int
) -> TopologyNode:
    path = paths.get(short_name(node.id)) or (node.id,) * num_levels
    if nodes.scale_up_level is None:
        return replace(node, path=path)
    depth = nodes.levels.index(nodes.scale_up_level) + 1
    return replace(node, path=(*path, "/".join(node.path[:depth])))
