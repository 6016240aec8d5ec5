"""Figure of what differs between two topologies: all domains, coloured by what became of their nodes.

Importing this loads Plotly, which takes a while: only what draws does.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

import plotly.graph_objects as go

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.reports.topology_figures import Look, domains
from airflow_llmsched.topology.comparison import Comparison, NodeChange, words_of
from airflow_llmsched.topology.summary import Domain


class Became(StrEnum):
    """What became of a node."""

    GONE = "gone"
    MOVED = "moved"
    CHANGED = "changed"
    SAME = "the same"
    ADDED = "added"


COLOURS = {
    Became.GONE: "#d64f4a",
    Became.MOVED: "#b06ab3",
    Became.CHANGED: "#e3a12f",
    Became.SAME: "#8a929c",
    Became.ADDED: "#2f9e6e",
}
"""Mid tones, so that they read on light and on dark."""

_NUMBER = {became: at / (len(COLOURS) - 1) for at, became in enumerate(COLOURS)}


def figures(before: TopologyTree, after: TopologyTree, comparison: Comparison) -> dict[str, go.Figure]:
    """Return the figure by its name; none where no node has any slot, as boxes are as wide as those."""
    both = together(before, after, comparison)
    if not any(node.num_slots for node in both.nodes):
        return {}
    became = {each.id: kind for kind, changes in _kinds(comparison) for each in changes}
    told = {each.id: each for _, changes in _kinds(comparison) for each in changes}
    inside = _counts(both, became)
    look = Look(
        colours=tuple(COLOURS.values()),
        domain=lambda domain: _domain_look(domain, inside.get(domain.path, Counter())),
        node=lambda node: _node_look(node, became.get(node.id, Became.SAME), told.get(node.id)),
    )
    return {"changes": domains(both, look)}


def together(before: TopologyTree, after: TopologyTree, comparison: Comparison) -> TopologyTree:
    """Return the topology after, with the nodes that are gone where they were; without them where levels differ."""
    gone = {each.id for each in comparison.gone} if before.levels == after.levels else set()
    were = tuple(node for node in before.nodes if node.id in gone)
    return replace(after, nodes=(*after.nodes, *were))


def _kinds(comparison: Comparison) -> Iterator[tuple[Became, tuple[NodeChange, ...]]]:
    yield Became.GONE, comparison.gone
    yield Became.MOVED, comparison.moved
    yield Became.CHANGED, comparison.changed
    yield Became.ADDED, comparison.added


def _counts(tree: TopologyTree, became: dict[NodeId, Became]) -> dict[tuple[str, ...], Counter[Became]]:
    """Count what became of the nodes of each domain, by its path; domains in which all are the same are left out."""
    found: dict[tuple[str, ...], Counter[Became]] = {}
    for node in tree.nodes:
        if node.id in became:
            for depth in range(len(node.path) + 1):
                found.setdefault(node.path[:depth], Counter())[became[node.id]] += 1
    return found


def _domain_look(domain: Domain, counts: Counter[Became]) -> tuple[str, float]:
    """A domain whose nodes all became one thing is that; one in which some did has changed."""
    if not counts:
        return f"{domain.num_nodes:,} nodes, all the same", _NUMBER[Became.SAME]
    words = ", ".join(f"{counts[each]:,} {each}" for each in Became if counts[each])
    (most, number), *_ = counts.most_common(1)
    return f"{domain.num_nodes:,} nodes: {words}", _NUMBER[most if number == domain.num_nodes else Became.CHANGED]


def _node_look(node: TopologyNode, became: Became, change: NodeChange | None) -> tuple[str, float]:
    told = f"{became}: {html.escape(words_of(node))}"
    if change is not None and change.before is not None and change.after is not None:
        was = f"{' / '.join(change.before.path)}: {words_of(change.before)}"
        told += f"<br>before: {html.escape(was)}"
    return told, _NUMBER[became]
