"""What a tree says of its machines as costs of placing a workload on them. Pure.

Axes: D = domain of a level, N = node, B = node below a busy link.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NodeCosts
from airflow_llmsched.domain.topology import NO_TERMS, TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.placement.feasible import NodeTable

BYTES_PER_TOKEN = 4
"""Of text that is staged where the spec does not bound it: English words have about four letters a token. An
assumption, which decides only how much having the data counts."""


def node_costs_of(
    workload: WorkloadSpec, tree: TopologyTree, told: Mapping[NodeId, NodeCosts]
) -> dict[NodeId, NodeCosts]:
    """Return the costs of nodes that have any: what is ``told`` of them, and what the tree says where that is silent.

    A node lacks the workload's data where others have it and it does not; where nobody has, all are alike.
    """
    source = workload.data.source
    somebody_has = source is not None and any(source in node.terms.data for node in tree.nodes)
    missing_bytes = _data_bytes(workload) if somebody_has else 0
    found = {}
    for node in tree.nodes:
        has_it = not somebody_has or source in node.terms.data
        if node.terms == NO_TERMS and has_it and node.id not in told:
            continue
        found[node.id] = _costs(node, told.get(node.id, NodeCosts()), missing_bytes=0 if has_it else missing_bytes)
    return found


def _costs(node: TopologyNode, told: NodeCosts, *, missing_bytes: int) -> NodeCosts:
    return replace(
        told,
        usd_per_hour=told.usd_per_hour or node.terms.usd_per_hour or 0.0,
        failures_per_hour=told.failures_per_hour or node.terms.failures_per_hour,
        missing_data_bytes=told.missing_data_bytes or missing_bytes,
    )


def _data_bytes(workload: WorkloadSpec) -> int:
    """Return how much a node reads of the data at most: all that is staged, or what the run's tokens are of."""
    a_step = max((phase.tokens_per_step for phase in workload.batch), default=0)
    num_tokens = workload.budget.num_tokens or workload.num_steps * a_step
    return workload.data.max_bytes or num_tokens * BYTES_PER_TOKEN


def crossed_busy_ratios(
    tree: TopologyTree, layout: ParallelLayout, *, excluded: Collection[NodeId] = frozenset()
) -> dict[NodeId, float]:
    """Return for nodes how busy running gangs keep the fullest of those links above them that a gang has to go over.

    Those are the links of domains of which none has room for all of it: inside one that holds it whole it uses none of
    its link. Nodes without any busy one are left out.
    """
    if not any(node.busy_ratios for node in tree.nodes):
        return {}
    table = NodeTable.of(tree, group_size=layout.tp, excluded=excluded)
    rooms = [np.bincount(domain_N, weights=table.capacity_N) for domain_N in table.domain_LN]
    crossed = [depth for depth, room_D in enumerate(rooms) if room_D.max(initial=0) < layout.world_size]
    if not crossed:
        return {}
    busy = [node for node in tree.nodes if node.busy_ratios]
    ratio_B = np.array([node.busy_ratios for node in busy])[:, crossed].max(axis=1)
    return {busy[number].id: float(ratio_B[number]) for number in np.flatnonzero(ratio_B).tolist()}


def beside_others(costs: Mapping[NodeId, NodeCosts], busy_ratios: Mapping[NodeId, float]) -> Mapping[NodeId, NodeCosts]:
    """Return costs of nodes with how busy their links are, where the costs say nothing of it."""
    if not busy_ratios:
        return costs
    known: dict[tuple[NodeCosts, float], NodeCosts] = {}  # nodes of one rack have one link, and mostly one price
    found = dict(costs)
    for node, ratio in busy_ratios.items():
        told = costs.get(node, NodeCosts())
        if not told.busy_network_ratio:
            if (told, ratio) not in known:
                known[told, ratio] = replace(told, busy_network_ratio=ratio)
            found[node] = known[told, ratio]
    return found
