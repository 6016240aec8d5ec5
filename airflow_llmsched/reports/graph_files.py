"""The cluster and a job as GraphML files, for Gephi, yEd, networkx and whatever else reads graphs.

A fleet's graph has its domains, and for each the link to the domain around it: what two accelerators have between them
is the thinnest link on the way. Needs the extra ``graphs``.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.graphs.cluster_graph import FLEET, ClusterGraph
from airflow_llmsched.planner.graphs.job_graph import JobGraph

MAX_RANKS = 2048
"""Gangs of more ranks are drawn node by node."""

_FLEET_ID = "fleet"


def cluster_graphml(cluster: ClusterGraph) -> bytes:
    """Return the fleet: domains and nodes, each with its link upwards. Raises ``SpecError`` without the extra."""
    networkx = _networkx()
    graph = networkx.Graph()
    graph.add_node(_FLEET_ID, level=FLEET)
    table = cluster.table
    for depth, level in enumerate(table.levels):
        capacity_D = cluster.uplink_bytes_per_s(depth)
        domain_N, first_N = np.unique(table.domain_LN[depth], return_index=True)
        slots_D = np.bincount(table.domain_LN[depth], weights=table.num_slots_N).astype(int)
        free_D = np.bincount(table.domain_LN[depth], weights=table.free_N).astype(int)
        for domain, node in zip(domain_N.tolist(), first_N.tolist(), strict=True):
            parent = _FLEET_ID if depth == 0 else _domain_id(depth - 1, int(table.domain_LN[depth - 1, node]))
            label = table.ids[node] if depth == len(table.levels) - 1 else f"{level} of {table.ids[node]}"
            graph.add_node(
                _domain_id(depth, domain),
                level=level,
                label=label,
                slots=int(slots_D[domain]),
                free_slots=int(free_D[domain]),
            )
            # Inside a domain of the fastest links it is each accelerator's own that counts: nothing is shared.
            rate = float(capacity_D[domain]) or float(slots_D[domain]) * cluster.links[depth].bytes_per_s
            graph.add_edge(
                _domain_id(depth, domain), parent, bytes_per_s=rate, latency_s=cluster.links[depth].latency_s
            )
    return _written(networkx, graph)


def job_graphml(job: JobGraph, placement: Placement) -> bytes:
    """Return who sends how much to whom in a step: ranks, or nodes for more than ``MAX_RANKS``.

    Raises:
        SpecError: the extra is not installed.
    """
    networkx = _networkx()
    graph = networkx.DiGraph()
    by_node = job.num_ranks > MAX_RANKS
    names = [slot.node if by_node else str(slot.rank) for slot in placement.slots]
    for slot in placement.slots:
        more: Mapping[str, Any] = {} if by_node else {"node": slot.node, "slot": slot.slot}
        graph.add_node(slot.node if by_node else str(slot.rank), **more)
    for exchange in job.exchanges:
        edges = job.edges([exchange])
        triples = zip(edges.source_E.tolist(), edges.target_E.tolist(), edges.bytes_E.tolist(), strict=True)
        for source, target, num_bytes in triples:
            one, other = names[source], names[target]
            if one == other:
                continue
            if not graph.has_edge(one, other):
                graph.add_edge(one, other, bytes_per_step=0.0)
            sent = graph[one][other]
            sent["bytes_per_step"] += num_bytes
            sent[exchange.group] = sent.get(exchange.group, 0.0) + num_bytes
    return _written(networkx, graph)


def _domain_id(depth: int, domain: int) -> str:
    return f"{depth}.{domain}"


def _networkx() -> Any:
    try:
        return import_module("networkx")
    except ImportError:
        raise SpecError(
            path="--graphs", hint="GraphML needs networkx: install airflow-provider-llmsched[graphs]"
        ) from None


def _written(networkx: Any, graph: Any) -> bytes:
    file = io.BytesIO()
    networkx.write_graphml(graph, file)
    return file.getvalue()
