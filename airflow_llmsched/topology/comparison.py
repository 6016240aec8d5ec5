"""What differs between two topologies: nodes that came, went, moved or changed, levels, and links. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.node_topology import NodeTopology
from airflow_llmsched.domain.topology import Division, NetworkLevel, NodeTerms, TopologyNode, TopologyTree


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """One node before and after; None where it was not there. Equal paths: only the node itself changed."""

    id: NodeId
    before: TopologyNode | None
    after: TopologyNode | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Changes, each kind in the order of names. ``moved`` nodes may have changed as well."""

    added: tuple[NodeChange, ...] = ()
    gone: tuple[NodeChange, ...] = ()
    moved: tuple[NodeChange, ...] = ()
    changed: tuple[NodeChange, ...] = ()
    facts: tuple[tuple[str, str, str], ...] = ()
    """What is said of all nodes at once, and what it was before and is after."""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return self == Comparison()


def compare(before: TopologyTree, after: TopologyTree) -> Comparison:
    """Return what differs, whatever order the nodes come in.

    Where the levels differ, places cannot be compared: the levels are told then, and no node counts as moved.
    """
    old = {node.id: node for node in before.nodes}
    new = {node.id: node for node in after.nodes}
    every = sorted(old.keys() | new.keys())
    changes = [NodeChange(id=name, before=old.get(name), after=new.get(name)) for name in every]
    both = [each for each in changes if each.before is not None and each.after is not None]
    are_alike = before.levels == after.levels
    moved = [each for each in both if are_alike and _path(each.before) != _path(each.after)]
    return Comparison(
        added=tuple(each for each in changes if each.before is None),
        gone=tuple(each for each in changes if each.after is None),
        moved=tuple(moved),
        changed=tuple(each for each in both if each not in moved and words_of(each.before) != words_of(each.after)),
        facts=tuple(_facts(before, after)),
    )


def words_of(node: TopologyNode | None) -> str:
    """Return what is said of a node beside its place."""
    if node is None:
        return "none"
    free = "" if node.free_slots is None else f" ({','.join(map(str, sorted(node.free_slots)))})"
    unusable = f", {node.unusable_reason}" if node.unusable_reason else ""
    divided = "".join(map(_division_words, node.divisions))
    said = f"{node.num_free_slots} of {node.num_slots} free{free}{divided}{unusable}{terms_words(node.terms)}"
    return f"{node.shape}, {said}"


def terms_words(terms: NodeTerms) -> str:
    """Return what sets a node apart from others of its shape, behind commas."""
    price = "" if terms.usd_per_hour is None else f", {terms.usd_per_hour:g} USD/h"
    risk = f", {terms.failures_per_hour:g} failures/h" if terms.failures_per_hour else ""
    return f"{price}{risk}" + (f", has {', '.join(terms.data)}" if terms.data else "")


def link_words(link: NetworkLevel | None) -> str:
    """Return what is said of a level's links."""
    if link is None:
        return "not told"
    return f"{link.bandwidth_bytes_per_s / 1e9:.4g} GB/s{', measured' * link.is_measured}"


def _division_words(division: Division) -> str:
    free = f" ({','.join(map(str, sorted(division.free)))})" if division.free else ""
    return f", {len(division.free)} of {len(division.slices)} {division.kind} slices of {division.slot} free{free}"


def _wiring_words(wiring: NodeTopology | None) -> str:
    if wiring is None:
        return "not told"
    numa = {gpu.numa_index for gpu in wiring.gpus if gpu.numa_index is not None}
    links = sum(link.num_links for others in wiring.gpu_links.values() for link in others.values())
    return f"{len(wiring.gpus)} GPUs, {len(numa)} NUMA nodes, {len(wiring.nics)} cards, {links} NVLinks"


def _wirings(before: TopologyTree, after: TopologyTree) -> Iterator[tuple[str, str, str]]:
    for shape in sorted(before.wirings.keys() | after.wirings.keys()):
        old, new = before.wirings.get(shape), after.wirings.get(shape)
        was, now = _wiring_words(old), _wiring_words(new)
        if old != new:
            yield f"inside of {shape}", was, f"{now}, joined otherwise" if was == now else now


def _path(node: TopologyNode | None) -> tuple[str, ...]:
    return () if node is None else node.path


def _moved_by(tree: TopologyTree) -> str:
    transport = tree.facts.transport
    return "as shapes say" if transport is None else transport.value


def _class(tree: TopologyTree) -> str:
    told = (("traffic class", tree.facts.traffic_class), ("service level", tree.facts.service_level))
    return ", ".join(f"{name} {value}" for name, value in told if value is not None) or "none"


def _facts(before: TopologyTree, after: TopologyTree) -> list[tuple[str, str, str]]:
    told = [
        ("levels", ", ".join(before.levels), ", ".join(after.levels)),
        ("scale-up level", before.scale_up_level or "the node", after.scale_up_level or "the node"),
        ("rails", str(before.facts.num_rails), str(after.facts.num_rails)),
        ("moved by", _moved_by(before), _moved_by(after)),
        ("class of collectives", _class(before), _class(after)),
        ("switches reduce", str(before.switches_reduce).lower(), str(after.switches_reduce).lower()),
    ]
    old = {link.level: link for link in before.network}
    new = {link.level: link for link in after.network}
    for level in dict.fromkeys((*old, *new)):
        name = "links of the whole" if level is None else f"links of {level}"
        told.append((name, link_words(old.get(level)), link_words(new.get(level))))
    return [*((name, was, now) for name, was, now in told if was != now), *_wirings(before, after)]
