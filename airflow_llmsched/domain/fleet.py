"""A fleet: clusters and clouds under names of their own, and how names of nodes in it say their cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.queue_rules import QueueRules

FLEET = "fleet"
"""The engine that is all clusters of a fleet together."""

CLUSTER_LEVEL = "cluster"
"""Outermost level of a fleet's topology."""

_SEPARATOR = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLimits:
    """The most that a deployment's live gangs may have of one cluster together; None: as much as there is."""

    max_nodes: int | None = None
    max_slots: int | None = None
    max_runs: int | None = None

    @property
    def are_set(self) -> bool:
        """Whether anything is limited, so that what is in use has to be counted."""
        return (self.max_nodes, self.max_slots, self.max_runs) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A file system that clusters share. Airflow's workers reach it at ``mounted_at``, an absolute path."""

    name: str
    mounted_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One cluster and what may be done with it.

    ``usd_per_hour`` are prices of nodes by shape, instead of list prices. Of clusters with different ``preference`` the
    higher one is planned on while a run fits there. Gangs on a cluster that has not answered for ``silent_after_s``
    seconds, and whose agents have been silent as long, count as lost. ``level_names`` rename levels of its topology.
    ``checkpoint_root`` is where its nodes see the ``shared_storage`` (a name in ``Fleet.storages``; empty: they see
    what Airflow's workers see, at the same paths).
    """

    name: str
    engine: str
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: ClusterLimits = field(default_factory=ClusterLimits)
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    region: str = ""
    jurisdiction: str = ""
    preference: int = 0
    silent_after_s: float = 120.0
    level_names: Mapping[str, str] = field(default_factory=dict)
    shared_storage: str = ""
    checkpoint_root: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Clusters by name in the order of the file, options of clouds by their adapters' names, and shared storages.

    ``queue`` is by which rules runs share nodes, of these clusters or of any engine without a scheduler of its own.
    """

    clusters: tuple[Cluster, ...]
    clouds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    storages: tuple[Storage, ...] = ()
    queue: QueueRules = field(default_factory=QueueRules)

    def cluster(self, name: str) -> Cluster | None:
        """Return a cluster by its name."""
        return next((each for each in self.clusters if each.name == name), None)

    def storage(self, name: str) -> Storage | None:
        """Return a storage by its name."""
        return next((each for each in self.storages if each.name == name), None)


def fleet_node(cluster: str, node: NodeId) -> NodeId:
    """Return what a fleet calls a cluster's node, ``cluster/node``: nodes of two clusters may be named alike."""
    return NodeId(f"{cluster}{_SEPARATOR}{node}")


def cluster_of(node: NodeId) -> str:
    """Return the cluster that a node's name says, empty for a node of no fleet."""
    cluster, separator, _ = node.partition(_SEPARATOR)
    return cluster if separator else ""


def own_name(node: NodeId) -> NodeId:
    """Return what a node calls itself: the name without its cluster. Agents and their channel know no other."""
    _, separator, name = node.partition(_SEPARATOR)
    return NodeId(name) if separator else node
