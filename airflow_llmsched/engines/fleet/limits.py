"""What of a cluster may still be used, given what our live gangs have of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_llmsched.domain.fleet import ClusterLimits
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.engines.fleet.book import Entry


def refusal(entry: Entry, limits: ClusterLimits, live: Sequence[Entry]) -> str | None:
    """Return which limit a gang would break beside the ``live`` ones, None if none."""
    beside = [each for each in live if each.key != entry.key]
    runs = {each.key.run for each in (*beside, entry)}
    nodes = {node for each in (*beside, entry) for node in each.nodes}
    num_slots = sum(each.num_slots for each in (*beside, entry))
    for name, most, wanted in (
        ("max_runs", limits.max_runs, len(runs)),
        ("max_nodes", limits.max_nodes, len(nodes)),
        ("max_slots", limits.max_slots, num_slots),
    ):
        if most is not None and wanted > most:
            return f"it would make {wanted}, and {name} is {most}"
    return None


def within_limits(tree: TopologyTree, limits: ClusterLimits, live: Sequence[Entry]) -> TopologyTree:
    """Return the tree with what no more gang may use marked as unusable, with the limit as reason.

    What is left of ``max_nodes`` goes to the nodes with most free slots, in the order of their paths: neighbours stay
    neighbours.
    """
    if not limits.are_set:
        return tree
    num_runs = len({each.key.run for each in live})
    if limits.max_runs is not None and num_runs >= limits.max_runs:
        reason = f"beyond max_runs={limits.max_runs} of the cluster: as many are live"
        return replace(tree, nodes=tuple(_unusable(node, reason) for node in tree.nodes))
    used = {node for each in live for node in each.nodes}
    kept = tree.nodes if limits.max_nodes is None else _nodes_within(tree.nodes, used, limits.max_nodes)
    if limits.max_slots is not None:
        kept = _slots_within(kept, limits.max_slots - sum(each.num_slots for each in live), limits.max_slots)
    return replace(tree, nodes=kept)


def _nodes_within(nodes: Sequence[TopologyNode], used: set[NodeId], max_nodes: int) -> tuple[TopologyNode, ...]:
    left = max(0, max_nodes - len(used))
    others = [node for node in nodes if node.id not in used and node.usable_slots]
    best = sorted(others, key=lambda node: (-node.usable_slots, node.path, node.id))[:left]
    allowed = used | {node.id for node in best}
    reason = f"beyond max_nodes={max_nodes} of the cluster, of which {len(used)} are in use"
    return tuple(node if node.id in allowed or node.unusable_reason else _unusable(node, reason) for node in nodes)


def _slots_within(nodes: Sequence[TopologyNode], left: int, max_slots: int) -> tuple[TopologyNode, ...]:
    reason = f"beyond max_slots={max_slots} of the cluster"
    kept = {}
    for node in sorted(nodes, key=lambda each: (-each.usable_slots, each.path, each.id)):
        taken = max(0, min(left, node.usable_slots))
        left -= taken
        is_whole = taken == node.usable_slots
        kept[node.id] = node if is_whole else _with_slots(node, taken) if taken else _unusable(node, reason)
    return tuple(kept[node.id] for node in nodes)


def _with_slots(node: TopologyNode, num_slots: int) -> TopologyNode:
    return replace(node, num_free_slots=num_slots, free_slots=node.usable_slot_indexes[:num_slots])


def _unusable(node: TopologyNode, reason: str) -> TopologyNode:
    return node if node.unusable_reason else replace(node, unusable_reason=reason)
