"""Which rank runs on which slot of which node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import ObjectiveWeights, WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSlot:
    """One rank's place. ``slot`` is the accelerator index within the node, ``local_rank`` the rank's index there."""

    rank: int
    node: NodeId
    slot: int
    local_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperSlot:
    """The place of one helper, the ``index``-th of its role. ``slots`` are its accelerators: none, one or several."""

    role: RoleKind
    index: int
    node: NodeId
    slots: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """All ranks in rank order, the ranks of one node consecutive; and the helpers beside them, role by role.

    Ranks are the trainers'. A helper's number in the gang is the world size and its position in ``helpers``.
    """

    slots: tuple[RankSlot, ...]
    helpers: tuple[HelperSlot, ...] = ()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.slots)

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Nodes in order of their first rank: the node rank is the index here. Nodes of helpers alone come last."""
        ranks, helpers = (slot.node for slot in self.slots), (helper.node for helper in self.helpers)
        return tuple(dict.fromkeys((*ranks, *helpers)))

    def on(self, node: NodeId) -> tuple[RankSlot, ...]:
        """Return the ranks of one node, by local rank."""
        return tuple(slot for slot in self.slots if slot.node == node)

    def held_on(self, node: NodeId) -> tuple[int, ...]:
        """Return the accelerators that the gang holds of one node, the ranks' first."""
        helpers = (slot for helper in self.helpers if helper.node == node for slot in helper.slots)
        return (*(slot.slot for slot in self.on(node)), *helpers)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCosts:
    """What makes a node better or worse than another that is as free.

    Attributes:
        usd_per_hour: price of the whole node.
        failures_per_hour: failures and interruptions to expect, each of which takes the gang down.
        missing_data_bytes: what a node that joins the gang has to fetch before it can start.
        busy_network_ratio: share of the time that other gangs fill a link between the node and the rest of the fleet.
    """

    usd_per_hour: float = 0.0
    failures_per_hour: float = 0.0
    missing_data_bytes: int = 0
    busy_network_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProblem:
    """What to place, where, and under which rules. A required level is hard, a preferred one is a cost.

    Attributes:
        layout: how ranks form groups.
        tree: nodes with what is free.
        required_level: level of which one domain must hold the whole gang; None: none.
        preferred_level: level of which it should span as few domains as it can; None: none.
        excluded: nodes that must not be used.
        wishes: levels that each group of a kind must, or should, stay inside.
        workload: the job, whose step is then predicted on the very placement; None: a nominal step of a second.
        shape: what the tree's nodes are; None where the workload is.
        weights: what counts how much beside the time of a step.
        node_costs: of all nodes or of none; a node that is not named costs nothing.
    """

    layout: ParallelLayout
    tree: TopologyTree
    required_level: str | None = None
    preferred_level: str | None = None
    excluded: frozenset[NodeId] = frozenset()
    wishes: tuple[PlacementWish, ...] = ()
    workload: WorkloadSpec | None = None
    shape: NodeShape | None = None
    weights: ObjectiveWeights = field(default_factory=ObjectiveWeights)
    node_costs: Mapping[NodeId, NodeCosts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A solution. ``num_domains`` counts the domains of the innermost level that the gang spans.

    ``cost_s`` is what the solver made small (seconds of a step, as ``planner.placement.score`` counts them), and no
    placement costs less than ``bound_s``; None where a solver does not say.
    """

    placement: Placement
    num_domains: int
    cost_s: float | None = None
    bound_s: float | None = None
    kind: Literal["placed"] = "placed"

    @property
    def gap_ratio(self) -> float | None:
        """How much more than the cheapest placement this one may cost at most; None where that is not known."""
        if self.cost_s is None or self.bound_s is None or self.bound_s <= 0:
            return None
        return self.cost_s / self.bound_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlaced:
    """A refusal that counts its reasons (in nodes) and says the smallest relaxation known to fit, if any is."""

    summary: str
    reasons: Mapping[str, int] = field(default_factory=dict)
    relaxation: str | None = None
    kind: Literal["not_placed"] = "not_placed"
