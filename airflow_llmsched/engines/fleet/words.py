"""What a cluster says of its own nodes, in the fleet's names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_llmsched.domain.fleet import FLEET, cluster_of, fleet_node, own_name
from airflow_llmsched.domain.gang import Closeness, GangHandle, GangPhase, GangStatus, NodeStatus
from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.engines.fleet.book import Entry


def named_in_fleet(text: str, cluster: str, nodes: Iterable[NodeId]) -> str:
    """Return a message of a cluster with every name of these nodes as the fleet's."""
    names = sorted({re.escape(node) for node in nodes}, key=len, reverse=True)
    if not names:
        return text
    pattern = re.compile(rf"(?<![\w./-])(?:{'|'.join(names)})(?![\w-])")
    return pattern.sub(lambda found: fleet_node(cluster, NodeId(found.group())), text)


def own_placement(placement: Placement) -> Placement:
    """Return a placement of one cluster by the names that it knows."""
    return Placement(
        slots=tuple(replace(slot, node=own_name(slot.node)) for slot in placement.slots),
        helpers=tuple(replace(helper, node=own_name(helper.node)) for helper in placement.helpers),
    )


def own_closeness(close: Iterable[Closeness], level_names: Mapping[str, str]) -> tuple[Closeness, ...]:
    """Return what is to be kept together by the names that a cluster itself has for its levels."""
    own = {name: level for level, name in level_names.items()}
    return tuple(replace(each, level=own.get(each.level, each.level)) for each in close)


def own_nodes(nodes: Iterable[NodeId], cluster: str) -> tuple[NodeId, ...]:
    """Return those of the fleet's nodes that are a cluster's, by the names that it knows."""
    return tuple(own_name(node) for node in nodes if cluster_of(node) == cluster)


def fleet_status(status: GangStatus, cluster: str) -> GangStatus:
    """Return what a cluster says of a gang, by the names of the fleet."""
    known = [node.node for node in status.nodes]

    def told(text: str) -> str:
        return named_in_fleet(text, cluster, known)

    nodes = tuple(replace(node, node=fleet_node(cluster, node.node), reason=told(node.reason)) for node in status.nodes)
    end = status.first_end
    return replace(
        status,
        nodes=nodes,
        reason=told(status.reason),
        first_end=None if end is None else replace(end, node=fleet_node(cluster, end.node)),
        unconfirmed_nodes=tuple(fleet_node(cluster, node) for node in status.unconfirmed_nodes),
    )


def lost_with_cluster(entry: Entry, *, now_s: float, reason: str) -> GangStatus:
    """Return the status of a gang of which, and of whose cluster, nothing is seen any more: it may be alive."""
    nodes = tuple(fleet_node(entry.cluster, node) for node in entry.nodes)
    return GangStatus(
        phase=GangPhase.LOST,
        observed_at_s=now_s,
        nodes=tuple(NodeStatus(node=node, phase=GangPhase.LOST, reason=reason) for node in nodes),
        reason=reason,
        fault=FaultKind.NODE_LOST,
        ended_at_s=now_s,
        unconfirmed_nodes=nodes,
    )


def heard_by_agents(entry: Entry, *, now_s: float, reason: str) -> GangStatus:
    """Return the status of a gang whose agents report while its cluster does not answer."""
    nodes = tuple(fleet_node(entry.cluster, node) for node in entry.nodes)
    return GangStatus(
        phase=GangPhase.RUNNING,
        observed_at_s=now_s,
        nodes=tuple(NodeStatus(node=node, phase=GangPhase.RUNNING) for node in nodes),
        reason=reason,
    )


def fleet_handle(cluster: str, key: AttemptKey, native_id: str) -> GangHandle:
    """Return the fleet's handle of a cluster's gang; an empty cluster is that of an attempt given up without one."""
    return GangHandle(engine=FLEET, key=key, native_id=f"{cluster}/{native_id}")


def parted(handle: GangHandle) -> tuple[str, str] | None:
    """Return the cluster and the gang's id there, None for a handle that no fleet made."""
    cluster, separator, native_id = handle.native_id.partition("/")
    return (cluster, native_id) if separator else None
