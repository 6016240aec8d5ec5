"""How busy gangs keep the links above each node: what whoever places others is told of those that run already. Pure.

Axes: N = node and L = level, as in the cluster's graph; D = domain of a level.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.network_load import NetworkLoad
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.contention.loads import GangLoad, LinkId
from airflow_llmsched.planner.contention.network_loads import gang_loads
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from airflow_llmsched.planner.links import AsMeasured, as_claimed
from airflow_llmsched.planner.perf.network_levels import of_shape


def with_busy_links(
    tree: TopologyTree,
    loads: Mapping[str, NetworkLoad],
    shapes: Mapping[str, NodeShape],
    *,
    as_measured: AsMeasured = as_claimed,
) -> TopologyTree:
    """Return a whole tree whose nodes say how busy gangs keep the links above them (``TopologyNode.busy_ratios``).

    Links are as they were ``as_measured``, for those that were. Of nodes that are left out of a tree nobody knows what
    they bring to a link: narrow it afterwards. Gangs on machines
    of different shapes are not looked at together.
    """
    found: dict[NodeId, tuple[float, ...]] = {}
    for name in sorted({each.shape for each in loads.values()} & shapes.keys()):
        own = as_measured(of_shape(tree, name, shapes[name]), name)
        if own.nodes:
            cluster = ClusterGraph(own, shapes[name])
            found |= busy_ratios(gang_loads(loads, own, cluster), cluster)
    if not found:
        return tree
    nodes = (replace(node, busy_ratios=found[node.id]) if node.id in found else node for node in tree.nodes)
    return replace(tree, nodes=tuple(nodes))


def busy_ratios(gangs: Sequence[GangLoad], cluster: ClusterGraph) -> Mapping[NodeId, tuple[float, ...]]:
    """Return, of each node below a link that a gang uses, the share of time for which each link above it is full.

    Outermost level first, the node's own last; at most 1.
    """
    sent_bytes_per_s: dict[LinkId, float] = defaultdict(float)
    for gang in gangs:
        for link, use in gang.uses.items():
            sent_bytes_per_s[link] += use.bytes_per_step / gang.step_s
    busy_LN = np.zeros(cluster.table.domain_LN.shape)
    for depth, domain_N in enumerate(cluster.table.domain_LN):
        capacity_D = cluster.uplink_bytes_per_s(depth)
        busy_D = np.zeros(len(capacity_D))
        for link, rate in sent_bytes_per_s.items():
            if link.depth == depth:
                busy_D[link.domain] = min(1.0, rate / capacity_D[link.domain])
        busy_LN[depth] = busy_D[domain_N]
    busy = np.flatnonzero(busy_LN.any(axis=0))
    return {cluster.table.ids[node]: tuple(busy_LN[:, node].tolist()) for node in busy.tolist()}
