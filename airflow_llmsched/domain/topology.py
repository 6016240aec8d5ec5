"""The tree of domains that nodes hang in. Path is identity: rack names repeat between zones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from airflow_llmsched.domain.identity import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyNode:
    """A machine and what is free on it.

    ``free_slots`` names the free accelerators, None where the source only counts them: then they are taken to be the
    first ones. ``path`` runs from the outermost level to the one that holds the node.
    """

    id: NodeId
    path: tuple[str, ...]
    shape: str
    num_slots: int
    num_free_slots: int
    unusable_reason: str | None = None
    free_slots: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse names of free slots that do not agree with their count."""
        if self.free_slots is not None and len(set(self.free_slots)) != self.num_free_slots:
            raise ValueError(f"node {self.id!r}: {self.num_free_slots} slots are free, but named: {self.free_slots}")

    @property
    def usable_slots(self) -> int:
        """Free slots, or 0 when the node must not be used."""
        return 0 if self.unusable_reason else self.num_free_slots

    @property
    def usable_slot_indexes(self) -> tuple[int, ...]:
        """Which slots may be used, in ascending order."""
        named = range(self.num_free_slots) if self.free_slots is None else sorted(self.free_slots)
        return () if self.unusable_reason else tuple(named)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyTree:
    """Nodes under named levels, outermost first, e.g. ``("zone", "block", "rack")``. Shared read-only."""

    levels: tuple[str, ...]
    nodes: tuple[TopologyNode, ...]

    def __post_init__(self) -> None:
        """Refuse a node whose path does not have one part per level, or two nodes with one id."""
        seen: set[NodeId] = set()
        for node in self.nodes:
            if len(node.path) != len(self.levels):
                raise ValueError(f"node {node.id!r}: path {node.path} does not match levels {self.levels}")
            if node.id in seen:
                raise ValueError(f"node {node.id!r} appears twice in the topology")
            seen.add(node.id)

    def domains(self, level: str) -> Mapping[tuple[str, ...], tuple[TopologyNode, ...]]:
        """Nodes by domain of ``level``, in path order. Raises ``ValueError`` for an unknown level."""
        if level not in self.levels:
            raise ValueError(f"unknown level {level!r}: the topology has {', '.join(self.levels) or 'none'}")
        depth = self.levels.index(level) + 1
        grouped: dict[tuple[str, ...], list[TopologyNode]] = {}
        for node in sorted(self.nodes, key=lambda each: (each.path, each.id)):
            grouped.setdefault(node.path[:depth], []).append(node)
        return MappingProxyType({path: tuple(nodes) for path, nodes in grouped.items()})

    @property
    def num_usable_slots(self) -> int:
        """Free slots on nodes that may be used."""
        return sum(node.usable_slots for node in self.nodes)
