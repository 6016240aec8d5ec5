"""Which rank runs on which slot of which node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.topology import TopologyTree


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSlot:
    """One rank's place. ``slot`` is the accelerator index within the node, ``local_rank`` the rank's index there."""

    rank: int
    node: NodeId
    slot: int
    local_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """All ranks in rank order; the ranks of one node are consecutive."""

    slots: tuple[RankSlot, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.slots)

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Nodes in order of their first rank: the node rank is the index here."""
        return tuple(dict.fromkeys(slot.node for slot in self.slots))

    def on(self, node: NodeId) -> tuple[RankSlot, ...]:
        """Return the ranks of one node, by local rank."""
        return tuple(slot for slot in self.slots if slot.node == node)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProblem:
    """What to place, where, and under which rules. A required level is hard, a preferred one is a cost."""

    layout: ParallelLayout
    tree: TopologyTree
    required_level: str | None = None
    preferred_level: str | None = None
    excluded: frozenset[NodeId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A solution. ``num_domains`` counts the domains of the innermost level that the gang spans."""

    placement: Placement
    num_domains: int
    kind: Literal["placed"] = "placed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlaced:
    """A refusal that counts its reasons (in nodes) and says the smallest relaxation known to fit, if any is."""

    summary: str
    reasons: Mapping[str, int] = field(default_factory=dict)
    relaxation: str | None = None
    kind: Literal["not_placed"] = "not_placed"
