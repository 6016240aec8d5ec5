"""How busy gangs keep the links above each node: what a placement solver is told of those that run already. Pure.

Axes: N = node and L = level, as in the cluster's graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.planner.contention.loads import GangLoad, LinkId
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph


def busy_network_ratios(gangs: Sequence[GangLoad], cluster: ClusterGraph) -> Mapping[NodeId, float]:
    """Return, of each node with any, the share of time for which the busiest link above it is full, at most 1."""
    sent_bytes_per_s: dict[LinkId, float] = defaultdict(float)
    for gang in gangs:
        for link, use in gang.uses.items():
            sent_bytes_per_s[link] += use.bytes_per_step / gang.step_s
    busy_N = np.zeros(len(cluster.table.ids))
    for depth, domain_N in enumerate(cluster.table.domain_LN):
        capacity_D = cluster.uplink_bytes_per_s(depth)
        busy_D = np.zeros(len(capacity_D))
        for link, rate in sent_bytes_per_s.items():
            if link.depth == depth:
                busy_D[link.domain] = min(1.0, rate / capacity_D[link.domain])
        busy_N = np.maximum(busy_N, busy_D[domain_N])
    return {cluster.table.ids[node]: float(busy_N[node]) for node in np.flatnonzero(busy_N).tolist()}
