"""Places a gang's helpers beside its ranks: loaders at their replicas, servers and evaluators spread. Pure.

A helper without accelerators goes to a node of the gang and takes no slot. One with accelerators needs all on one node:
of the gang's if there is room, else on one near it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import HelperSlot, Placement
from airflow_llmsched.domain.roles import RoleKind, RoleSpec, helpers_of, replica_of_loader
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.planner.placement.feasible import NODE_LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class _Want:
    """One helper: how many accelerators it needs, and the node where it should stand."""

    role: RoleKind
    index: int
    num_slots: int
    beside: NodeId


def place_helpers(
    roles: Sequence[RoleSpec],
    placement: Placement,
    *,
    layout: ParallelLayout,
    tree: TopologyTree,
    required_level: str | None = None,
    excluded: frozenset[NodeId] = frozenset(),
    max_processes_per_node: int | None = None,
) -> Placement | None:
    """Return ``placement`` with the helpers that ``roles`` ask for; None where they do not all find room.

    Args:
        roles: The workload's roles; trainers among them are left out.
        placement: Where the ranks are.
        layout: How ranks form replicas, each of which has its data loader near.
        tree: Nodes, and what was free on them before the gang.
        required_level: Level of the topology whose one domain holds the whole gang; None: none.
        excluded: Nodes that must not be used.
        max_processes_per_node: Ranks and helpers that a node has processor threads for; None: any number.
    """
    wants = list(_wants(helpers_of(tuple(roles)), placement, layout))
    if not wants:
        return placement
    nodes = {node.id: node for node in _usable(tree, placement, required_level, excluded)}
    room = {
        node.id: [slot for slot in node.usable_slot_indexes if slot not in placement.held_on(node.id)]
        for node in nodes.values()
    }
    spare = {id_: (max_processes_per_node or len(wants)) for id_ in nodes}
    if max_processes_per_node is not None:
        for id_, number in Counter(slot.node for slot in placement.slots).items():
            spare[id_] -= number
    found: dict[tuple[RoleKind, int], HelperSlot] = {}
    for want in sorted(wants, key=lambda each: -each.num_slots):  # stable: alike ones in their order
        node_id = _choose(want, placement, nodes, room, spare)
        if node_id is None:
            return None
        taken, room[node_id] = room[node_id][: want.num_slots], room[node_id][want.num_slots :]
        spare[node_id] -= 1
        found[want.role, want.index] = HelperSlot(role=want.role, index=want.index, node=node_id, slots=tuple(taken))
    return replace(placement, helpers=tuple(found[want.role, want.index] for want in wants))


def _wants(roles: Sequence[RoleSpec], placement: Placement, layout: ParallelLayout) -> Iterator[_Want]:
    for role in roles:
        count = role.num_ranks or 0
        for index in range(count):
            beside = _beside(role.kind, index, count, placement, layout)
            yield _Want(role=role.kind, index=index, num_slots=role.accelerators_per_rank, beside=beside)


def _beside(kind: RoleKind, index: int, count: int, placement: Placement, layout: ParallelLayout) -> NodeId:
    """Return the node that a helper is best off on. Ranks are numbered with tp fastest, then cp, dp, and pp slowest."""
    nodes = tuple(dict.fromkeys(slot.node for slot in placement.slots))
    if kind is RoleKind.DATA_LOADER:
        replica = replica_of_loader(index, num_loaders=count, num_replicas=layout.dp)
        return placement.slots[replica * layout.tp * layout.cp].node
    if kind is RoleKind.PARAMETER_SERVER:
        return nodes[index * len(nodes) // count % len(nodes)]
    return nodes[-1 - index % len(nodes)]


def _usable(
    tree: TopologyTree, placement: Placement, required_level: str | None, excluded: frozenset[NodeId]
) -> list[TopologyNode]:
    """Return nodes that a helper may be on, the gang's first, then those nearest to its first rank."""
    gang = placement.nodes
    home = next(node for node in tree.nodes if node.id == gang[0])
    depth = 0
    if required_level == NODE_LEVEL:
        depth = len(tree.levels) + 1
    elif required_level is not None:
        depth = tree.levels.index(required_level) + 1
    own = [node for id_ in gang for node in tree.nodes if node.id == id_]
    others = [
        node
        for node in tree.nodes
        if node.id not in gang and node.id not in excluded and not node.unusable_reason and _shared(node, home) >= depth
    ]
    return [*own, *sorted(others, key=lambda node: (-_shared(node, home), node.path, node.id))]


def _shared(node: TopologyNode, home: TopologyNode) -> int:
    """Count the outermost levels whose domain two nodes share."""
    pairs = zip(node.path, home.path, strict=True)
    return next((depth for depth, (one, other) in enumerate(pairs) if one != other), len(home.path))


def _choose(
    want: _Want,
    placement: Placement,
    nodes: Mapping[NodeId, TopologyNode],
    room: Mapping[NodeId, Sequence[int]],
    spare: Mapping[NodeId, int],
) -> NodeId | None:
    fits = [id_ for id_ in nodes if len(room[id_]) >= want.num_slots and spare[id_] > 0]
    if want.num_slots == 0:
        fits = [id_ for id_ in fits if placement.on(id_)]
    if want.beside in fits:
        return want.beside
    return fits[0] if fits else None
