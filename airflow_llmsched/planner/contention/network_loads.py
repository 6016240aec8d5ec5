"""Loads of gangs by the paths of domains: as they are kept with claims, and read again on another tree. Pure.

Axes: N = node, as in the cluster's graph; D = domain of a level.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from airflow_llmsched.domain.network_load import LinkLoad, NetworkLoad, is_plausible
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.contention.loads import GangLoad, LinkId, LinkUse
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from airflow_llmsched.planner.layout_table import IntArray

MAX_LINKS = 256
"""Links of one gang that are kept, those that it fills most first. A gang on thousands of nodes holds most of its
domains whole, and their links are no one else's; its claim names all of its nodes anyhow."""

Path = tuple[str, ...]


def network_load(gang: GangLoad, placement: Placement, tree: TopologyTree, cluster: ClusterGraph) -> NetworkLoad | None:
    """Return what is kept of a gang's load: three digits of what it puts on the links that others may use, too.

    None where it is not known how long a step takes, as of a job that says nothing of what it computes and exchanges,
    or where that is beyond all machines, as over links whose rate somebody mistyped.
    ``tree`` is what ``cluster`` was made of. Raises ``KeyError`` for a node of the placement that it does not have.
    """
    if not is_plausible(gang.step_s):
        return None
    others_too = set(_shared(placement, cluster))
    shared = [(each, use) for each, use in gang.uses.items() if each in others_too and _can_be_kept(use)]
    capacity = [cluster.uplink_bytes_per_s(depth) for depth in range(len(cluster.table.levels))]
    shared.sort(key=lambda pair: (-pair[1].bytes_per_step / capacity[pair[0].depth][pair[0].domain], pair[0]))
    path_of = {link: path for path, link in _links(tree, cluster)}
    alike: dict[tuple[float, float], list[Path]] = defaultdict(list)
    for link, use in shared[:MAX_LINKS]:
        alike[_rounded(use.bytes_per_step), _rounded(use.alone_bytes_per_s)].append(path_of[link])
    return NetworkLoad(
        shape=cluster.shape.name,
        step_s=_rounded(gang.step_s),
        links=tuple(
            LinkLoad(domains=tuple(sorted(domains)), bytes_per_step=num_bytes, alone_bytes_per_s=alone)
            for (num_bytes, alone), domains in sorted(alike.items())
        ),
    )


def gang_loads(loads: Mapping[str, NetworkLoad], tree: TopologyTree, cluster: ClusterGraph) -> list[GangLoad]:
    """Return gangs by their names on nodes of the cluster's shape, in the order of names.

    ``tree`` is what ``cluster`` was made of. A domain that it does not have, or that has no link there, is passed over:
    the load was told of another tree.
    """
    own = sorted(name for name, load in loads.items() if load.shape == cluster.shape.name)
    link_of = dict(_links(tree, cluster)) if own else {}
    return [GangLoad(name=name, step_s=loads[name].step_s, uses=_uses(loads[name], link_of)) for name in own]


def _uses(load: NetworkLoad, link_of: Mapping[Path, LinkId]) -> dict[LinkId, LinkUse]:
    return {
        link_of[path]: LinkUse(bytes_per_step=each.bytes_per_step, alone_bytes_per_s=each.alone_bytes_per_s)
        for each in load.links
        for path in each.domains
        if path in link_of
    }


def _links(tree: TopologyTree, cluster: ClusterGraph) -> Iterator[tuple[Path, LinkId]]:
    """Yield the links of a cluster by the paths of the domains below them."""
    path_of = {node.id: node.path for node in tree.nodes}
    ids = cluster.table.ids
    for depth, first_D in enumerate(cluster.table.first_LD):
        has_link_D = cluster.uplink_bytes_per_s(depth) > 0
        for domain in np.flatnonzero(has_link_D).tolist():
            node = ids[int(first_D[domain])]
            path = (*path_of[node], node) if depth >= len(tree.levels) else path_of[node][: depth + 1]
            yield path, LinkId(depth=depth, domain=domain)


def _shared(placement: Placement, cluster: ClusterGraph) -> Iterator[LinkId]:
    """Yield the links above domains of which a gang does not hold every accelerator."""
    held_N = _held_N(placement, cluster)
    for depth, domain_N in enumerate(cluster.table.domain_LN):
        held_D = np.bincount(domain_N, weights=held_N)
        slots_D = np.bincount(domain_N, weights=cluster.table.num_slots_N)
        for domain in np.flatnonzero((held_D > 0) & (held_D < slots_D)).tolist():
            yield LinkId(depth=depth, domain=domain)


def _held_N(placement: Placement, cluster: ClusterGraph) -> IntArray:
    """Count the accelerators that a gang's ranks and helpers hold. A node of helpers alone need not be of the shape."""
    position = {node: number for number, node in enumerate(cluster.table.ids)}
    held_N = np.zeros(len(position), dtype=np.int64)
    for slot in placement.slots:
        held_N[position[slot.node]] += 1
    for helper in placement.helpers:
        if helper.node in position:
            held_N[position[helper.node]] += len(helper.slots)
    return held_N


def _can_be_kept(use: LinkUse) -> bool:
    return is_plausible(use.bytes_per_step) and is_plausible(use.alone_bytes_per_s)


def _rounded(value: float) -> float:
    """Return three digits of a number: a prediction has no more."""
    return float(f"{value:.2e}")
