"""The tree of domains that nodes hang in. Path is identity: rack names repeat between zones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from airflow_llmsched.domain.hardware import Transport
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.node_topology import NodeTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTerms:
    """What makes a machine better or worse than another of its shape, as far as its owner says.

    Attributes:
        usd_per_hour: price of the whole machine; None: that of its shape.
        failures_per_hour: failures and interruptions to expect, each of which takes a gang down.
        data: sources of data (``data.source`` of a spec) that it has at hand, so that nothing has to be fetched.
    """

    usd_per_hour: float | None = None
    failures_per_hour: float = 0.0
    data: tuple[str, ...] = ()


NO_TERMS = NodeTerms()
"""Of a machine of which its owner says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """An accelerator that is given out in slices (``mig`` instances, or turns in ``time``) and to nobody as a whole.

    ``slices`` are the slots that gangs hold of it, numbered beside the node's whole accelerators; ``free`` those that
    nobody holds.
    """

    slot: int
    kind: str
    slices: tuple[int, ...]
    free: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyNode:
    """A machine and what is free on it.

    ``free_slots`` names the free accelerators, None where the source only counts them: then they are taken to be the
    first ones. ``path`` runs from the outermost level to the one that holds the node. ``terms`` is what sets it apart
    from others of its shape. ``divisions`` are its divided accelerators, which are not among the free ones.
    ``busy_ratios`` are the shares of time for which running gangs fill the link above each domain that the node is in,
    outermost first, its own last; empty where no gang is known to send there.
    """

    id: NodeId
    path: tuple[str, ...]
    shape: str
    num_slots: int
    num_free_slots: int
    unusable_reason: str | None = None
    free_slots: tuple[int, ...] | None = None
    terms: NodeTerms = NO_TERMS
    divisions: tuple[Division, ...] = ()
    busy_ratios: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse names of free slots that do not agree with their count."""
        if self.free_slots is not None and len(set(self.free_slots)) != self.num_free_slots:
            raise ValueError(f"node {self.id!r}: {self.num_free_slots} slots are free, but named: {self.free_slots}")

    @property
    def whole_slots(self) -> tuple[int, ...]:
        """Accelerators that are not divided, whether or not they are free."""
        divided = {each.slot for each in self.divisions}
        return tuple(slot for slot in range(self.num_slots) if slot not in divided)

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
class MeasuredOn:
    """When (Unix seconds) links were measured, and between which nodes."""

    at_s: float
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    """What joins the nodes inside one domain of ``level`` that no inner level joins; None: those of the whole fleet.

    ``bandwidth_bytes_per_s`` is one-way and what each accelerator has when all use it at once. ``is_measured`` says
    that collectives were seen to reach it: then nothing is taken off it, and it overrides what a node's shape states.
    ``measured_on`` is which, where they were checks of nodes that a run made here.
    """

    level: str | None
    bandwidth_bytes_per_s: float
    is_measured: bool = False
    measured_on: MeasuredOn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """What is known of a network as a whole, beside the rates of its levels.

    Attributes:
        num_rails: planes of the network; the card of slot i is on plane i modulo this. On one plane, nodes below the
            same leaf switches are one hop apart, and between planes the way leads farther up.
        transport: who moves the bytes, where it is not as the shape of nodes says, e.g. processors on the cards (DPU).
        traffic_class: the class of RoCE traffic that switches serve first, which collectives are to use.
        service_level: the same on InfiniBand.
    """

    num_rails: int = 1
    transport: Transport | None = None
    traffic_class: int | None = None
    service_level: int | None = None

    @property
    def serves_collectives_first(self) -> bool:
        """Whether collectives have a class of their own, before other traffic."""
        return self.traffic_class is not None or self.service_level is not None


AS_SHAPES_SAY = NetworkFacts()
"""Nothing is known of the network that the shapes of nodes do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyTree:
    """Nodes under named levels, outermost first, e.g. ``("zone", "block", "rack")``. Shared read-only.

    ``scale_up_level`` is the level whose domains the fastest links join across nodes (an NVLink domain, as
    ``nvidia.com/gpu.clique`` names it); None: they end with the node, for all that the source says. ``network`` is what
    is known of the network's levels, none of it where the shapes of nodes say it all. ``switches_reduce``: the
    operator has switched on reduction in the network's switches (SHARP). ``facts`` is what else is known of them.
    ``wirings``: what joins the devices inside a node, by node shape, as far as somebody looked: one node stands for all
    of its shape.
    """

    levels: tuple[str, ...]
    nodes: tuple[TopologyNode, ...]
    scale_up_level: str | None = None
    network: tuple[NetworkLevel, ...] = ()
    switches_reduce: bool = False
    facts: NetworkFacts = AS_SHAPES_SAY
    wirings: Mapping[str, NodeTopology] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse a node whose path does not have one part per level, two nodes with one id, or an unknown level."""
        self._check_levels()
        seen: set[NodeId] = set()
        for node in self.nodes:
            if len(node.path) != len(self.levels):
                raise ValueError(f"node {node.id!r}: path {node.path} does not match levels {self.levels}")
            if node.id in seen:
                raise ValueError(f"node {node.id!r} appears twice in the topology")
            seen.add(node.id)

    def _check_levels(self) -> None:
        told = [each.level for each in self.network]
        for level in (self.scale_up_level, *told):
            if level is not None and level not in self.levels:
                raise ValueError(f"unknown level {level!r}: the topology has {', '.join(self.levels) or 'none'}")
        if len(set(told)) < len(told):
            raise ValueError(f"the network of one level is told twice: {told}")

    def domains(self, level: str) -> Mapping[tuple[str, ...], tuple[TopologyNode, ...]]:
        """Nodes by domain of ``level``, in path order. Raises ``ValueError`` for an unknown level."""
        if level not in self.levels:
            raise ValueError(f"unknown level {level!r}: the topology has {', '.join(self.levels) or 'none'}")
        depth = self.levels.index(level) + 1
        grouped: dict[tuple[str, ...], list[TopologyNode]] = {}
        for node in sorted(self.nodes, key=lambda each: (each.path, each.id)):
            grouped.setdefault(node.path[:depth], []).append(node)
        return MappingProxyType({path: tuple(nodes) for path, nodes in grouped.items()})

    def wired(self, wiring: NodeTopology | None) -> TopologyTree:
        """Return the tree with what joins the devices inside each node, all alike; as it is where that is not known."""
        return self if wiring is None else replace(self, wirings={node.shape: wiring for node in self.nodes})

    @property
    def num_usable_slots(self) -> int:
        """Free slots on nodes that may be used."""
        return sum(node.usable_slots for node in self.nodes)
