"""From Slurm's nodes and its network to the tree that gangs are placed in. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.engines.slurm.gres import Slots, slots_of
from airflow_llmsched.engines.slurm.nodes import NodeRecord
from airflow_llmsched.engines.slurm.options import SlurmOptions
from airflow_llmsched.topology.reading import Network
from airflow_llmsched.topology.slurm import network_of


def tree_of(nodes: Sequence[NodeRecord], *, switches: str, options: SlurmOptions) -> TopologyTree:
    """Return the nodes of the options' partitions that have slots, with what is free on each.

    ``switches`` is the network in any form that ``network_of`` takes; empty: every node is on its own. Raises
    ``DataError`` for a network that is not understood, and ``ValueError`` where no node is what the options ask for: a
    name that is mistyped would else look like a cluster that is full.
    """
    network = Network() if options.flat else network_of(switches, name=options.topology_name)
    wanted = set() if options.partition is None else set(options.partition.split(","))
    found = [node for node in nodes if not wanted or wanted & set(node.partitions)]
    if nodes and not found:
        known = ", ".join(sorted({name for node in nodes for name in node.partitions}))
        raise ValueError(f"no node is in partition {options.partition}; Slurm has nodes in {known or 'none'}")
    placed = [_node(node, network, slots, options) for node in found if (slots := _slots(node, options)).num > 0]
    if found and not placed:
        known = ", ".join(sorted({node.gres or "none" for node in found}))
        raise ValueError(f"no node here has the resource {options.gres!r}; what they have: {known[:300]}")
    return TopologyTree(
        levels=network.levels,
        nodes=tuple(placed),
        scale_up_level=options.scale_up_level,
        network=options.network,
        switches_reduce=options.switches_reduce,
        facts=options.fabric,
    )


def _slots(node: NodeRecord, options: SlurmOptions) -> Slots:
    wanted = options.gres_of(node.name)
    if wanted:
        slots = slots_of(node.gres, node.in_use, wanted=wanted)
        is_shared_out = options.exclusive and node.is_taken
        return Slots(num=slots.num, num_free=0, free=()) if is_shared_out else slots
    num = options.slots_per_node
    return Slots(num=num, num_free=0 if node.is_taken else num)


def _node(node: NodeRecord, network: Network, slots: Slots, options: SlurmOptions) -> TopologyNode:
    reason = node.unusable_reason(has_reservation=options.reservation is not None)
    if node.name in options.exclude:
        reason = "excluded by the engine's options"
    return TopologyNode(
        id=NodeId(node.name),
        path=network.path_of(node.name),
        shape=options.shape_of(node.name),
        num_slots=slots.num,
        num_free_slots=slots.num_free,
        unusable_reason=reason,
        free_slots=slots.free,
        terms=options.terms_of(node.name),
    )
