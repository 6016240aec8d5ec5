"""What runs' own checks measured of links: which of it counts, and what it makes of a tree that is planned on. Pure.

Nodes of one shape send what their own cards can: what was measured between them says nothing of other shapes, though
these hang on the same switches.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.preflight import PreflightRound
from airflow_llmsched.domain.topology import MeasuredOn, NetworkLevel, TopologyNode, TopologyTree
from airflow_llmsched.topology.measured import Measurement, level_of, overridden, read_round
from airflow_llmsched.topology.reading import Oddities
from airflow_llmsched.units import DAY_S

COUNTS_FOR_S = 7 * DAY_S
"""Age from which on a measurement counts no more: cables and switches are repaired, and others break."""

MAX_KEPT = 64
"""Measurements kept of one cluster, the newest: more than it has racks that anybody checks in an age limit."""

LEAST_BYTES_PER_S, MOST_BYTES_PER_S = 1e3, 1e15
"""Rates beyond these are no link's, whatever a check says: one that is far too low would decide every plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord:
    """What each accelerator of ``nodes``, all of them of ``shape``, could send to other nodes while all did.

    ``level`` is the innermost that holds them in one domain, ``domain`` that domain's path (None and empty: they have
    only the whole in common). ``at_s`` is Unix seconds.
    """

    level: str | None
    domain: tuple[str, ...]
    shape: str
    bytes_per_s: float
    at_s: float
    nodes: tuple[NodeId, ...]

    def __post_init__(self) -> None:
        """Refuse a rate that no plan could be reckoned with."""
        if not LEAST_BYTES_PER_S <= self.bytes_per_s <= MOST_BYTES_PER_S or not math.isfinite(self.at_s):
            raise ValueError(f"a link of {self.bytes_per_s} bytes/s at {self.at_s} s was measured by nobody")

    @property
    def at_one_place(self) -> tuple[str | None, tuple[str, ...], str]:
        """What measurements have in common that may replace one another."""
        return self.level, self.domain, self.shape


def record_of(
    found: PreflightRound, tree: TopologyTree, *, at_s: float, others: Mapping[RunKey, Collection[NodeId]]
) -> LinkRecord | str:
    """Return what a round of checks measured of the network's links, or in words why it does not count.

    Args:
        found: The round.
        tree: The engine's nodes, all of them.
        at_s: When it ended, Unix seconds.
        others: Nodes that other gangs held meanwhile, by who: what they send is missing from what was measured.
    """
    measured = None if found.unfit else read_round(found)
    if measured is None:
        return "a node is unfit" if found.unfit else "no collective over all nodes was timed"
    if not LEAST_BYTES_PER_S <= measured.bytes_per_s <= MOST_BYTES_PER_S:
        return f"{measured.bytes_per_s:.3g} bytes/s of each accelerator is no link's rate"
    odd = Oddities()
    levels = list(level_of(measured, tree, odd))
    if not levels:
        return ", ".join(odd.counted())
    nodes = {node.id: node for node in tree.nodes if node.id in measured.nodes}
    (level,) = levels
    reason = _unlike(measured, nodes)
    if reason:
        return reason
    path = next(iter(nodes.values())).path
    record = LinkRecord(
        level=level,
        domain=() if level is None else path[: tree.levels.index(level) + 1],
        shape=next(iter(nodes.values())).shape,
        bytes_per_s=measured.bytes_per_s,
        at_s=at_s,
        nodes=tuple(sorted(measured.nodes)),
    )
    busy = sorted(run for run, held in others.items() if _goes_over(held, record.domain, tree))
    return f"others were on the same links meanwhile ({', '.join(busy[:3])})" if busy else record


def kept_with(records: Iterable[LinkRecord], new: LinkRecord) -> tuple[LinkRecord, ...]:
    """Return the measurements to keep, oldest first: those of ``new``'s own nodes, or of some of them, it replaces."""
    nodes = set(new.nodes)
    others = [each for each in records if each.at_one_place != new.at_one_place or not nodes.issuperset(each.nodes)]
    return tuple(sorted([*others, new], key=lambda each: each.at_s)[-MAX_KEPT:])


def links_on(records: Sequence[LinkRecord], tree: TopologyTree, shape: str) -> TopologyTree:
    """Return a tree of nodes of one ``shape`` with what was measured in place of what it claims.

    What counts was measured between such nodes, in a domain that the tree has nodes of, and none of them has been moved
    out of it since; of several of one level the lowest does: a plan must hold on every domain of it. Without any, the
    tree is returned as it is.
    """
    lowest: dict[str | None, LinkRecord] = {}
    path_of = {node.id: node.path for node in tree.nodes} if records else {}
    for each in records:
        if each.shape == shape and _has_domain(tree, path_of, each):
            lowest[each.level] = min(lowest.get(each.level, each), each, key=lambda one: (one.bytes_per_s, -one.at_s))
    links = [
        NetworkLevel(
            level=level,
            bandwidth_bytes_per_s=each.bytes_per_s,
            is_measured=True,
            measured_on=MeasuredOn(at_s=each.at_s, nodes=each.nodes),
        )
        for level, each in lowest.items()
    ]
    return overridden(tree, links) if links else tree


def measured_by_shape(records: Sequence[LinkRecord], tree: TopologyTree) -> dict[str, tuple[NetworkLevel, ...]]:
    """Return what was measured of a tree's links, by the shape of nodes that it counts for; only shapes with any."""
    found = {}
    for shape in sorted({node.shape for node in tree.nodes}):
        nodes = tuple(node for node in tree.nodes if node.shape == shape)
        network = links_on(records, replace(tree, nodes=nodes), shape).network
        found[shape] = tuple(link for link in network if link.measured_on is not None)
    return {shape: links for shape, links in found.items() if links}


def _unlike(measured: Measurement, nodes: Mapping[NodeId, TopologyNode]) -> str:
    """Say why nodes cannot stand for others: they are of several shapes, or not all of their accelerators sent."""
    if len(nodes) < len(measured.nodes):
        return "it was on nodes that the topology does not have"
    if len({node.shape for node in nodes.values()}) > 1:
        return "it was on nodes of several shapes"
    num_local = measured.num_ranks // len(nodes)
    partly = [node for _, node in sorted(nodes.items()) if num_local < node.num_slots]
    if not partly:
        return ""
    return f"{num_local} of {partly[0].num_slots} accelerators of {partly[0].id} sent, which have more than all would"


def _goes_over(held: Collection[NodeId], domain: tuple[str, ...], tree: TopologyTree) -> bool:
    """Whether a gang on nodes ``held`` uses links that join a domain: not if all are in one finer one, or are one."""
    depth = len(domain)
    paths = [(*node.path, node.id) for node in tree.nodes if node.id in held]
    return any(path[:depth] == domain for path in paths) and len({path[: depth + 1] for path in paths}) > 1


def _has_domain(tree: TopologyTree, path_of: Mapping[NodeId, tuple[str, ...]], record: LinkRecord) -> bool:
    if record.level is None:
        return True
    depth = len(record.domain)
    if record.level not in tree.levels or tree.levels.index(record.level) + 1 != depth:
        return False
    if any(path_of[node][:depth] != record.domain for node in record.nodes if node in path_of):
        return False
    return any(path[:depth] == record.domain for path in path_of.values())
