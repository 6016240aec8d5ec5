"""Figure of a topology: domains inside domains, as wide as their slots, coloured by what is free.

Importing this loads Plotly, which takes a while: only what draws does.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.reports.figures import blank_figure
from airflow_llmsched.topology.summary import Domain, summarise

MAX_BOXES = 6000
"""Beyond that many a page gets slow: then inner levels are left out until it holds."""

MANY_BOXES = 400
"""From here on lines between boxes are thin: they would hide the colours of small ones."""

COLOURS = ("#d64f4a", "#e3a12f", "#2f9e6e")
"""From nothing free to everything. Mid tones, so that they read on light and on dark."""

NO_SLOTS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How boxes look: words, and a number from 0 to 1 that ``colours`` stand for, evenly, of domains and of nodes."""

    colours: Sequence[str]
    domain: Callable[[Domain], tuple[str, float]]
    node: Callable[[TopologyNode], tuple[str, float]]


def figures(tree: TopologyTree) -> dict[str, go.Figure]:
    """Return the figure by its name; none of a topology without slots."""
    return {"domains": domains(tree)} if any(node.num_slots for node in tree.nodes) else {}


def domains(tree: TopologyTree, look: Look | None = None) -> go.Figure:
    """Draw the domains, outermost to the left, by default by what is free; nodes where there are few enough."""
    look = look or Look(colours=COLOURS, domain=lambda each: (words(each), _share(each)), node=_free_on)
    whole = summarise(tree)
    depth = _deepest(whole, len(tree.levels))
    boxes = list(_boxes(whole, look, depth=depth))
    icicle = go.Icicle(
        ids=[box[0] for box in boxes],
        parents=[box[1] for box in boxes],
        labels=[box[2] for box in boxes],
        values=[box[3] for box in boxes],
        customdata=[[box[4]] for box in boxes],
        branchvalues="total",
        sort=False,
        marker={
            "colors": [box[5] for box in boxes],
            "colorscale": [[at / (len(look.colours) - 1), colour] for at, colour in enumerate(look.colours)],
            "cmin": 0,
            "cmax": 1,
            "line": {"width": 1 if len(boxes) < MANY_BOXES else 0.3, "color": "rgba(255,255,255,0.6)"},
        },
        textfont={"color": "#ffffff"},
        hovertemplate="%{label}<br>%{customdata[0]}<extra></extra>",
        maxdepth=6,
    )
    height = min(2400, 320 + 12 * sum(1 for each in whole.walk() if len(each.path) == min(depth, len(tree.levels))))
    return blank_figure([icicle], height=height, margin={"l": 8, "r": 8, "t": 8, "b": 8})


def _deepest(whole: Domain, num_levels: int) -> int:
    """Return how many levels are drawn; one more than there are: nodes as well."""
    counts = [0] * (num_levels + 2)
    for domain in whole.walk():
        counts[len(domain.path)] += 1
        counts[num_levels + 1] += len(domain.nodes)
    total = 0
    for depth, count in enumerate(counts):
        total += count
        if total > MAX_BOXES:
            return max(1, depth - 1)
    return num_levels + 1


def _boxes(whole: Domain, look: Look, *, depth: int) -> Iterator[tuple[str, str, str, float, str, float]]:
    """Yield id, id of the parent, label, width, words and colour of each box. Ids are numbers: names repeat."""
    ids: dict[tuple[str, ...], str] = {}
    for number, domain in enumerate(whole.walk()):
        if len(domain.path) > depth:
            continue
        ids[domain.path] = f"d{number}"
        parent = ids[domain.path[:-1]] if domain.path else ""
        yield f"d{number}", parent, _label(domain), _width(domain), *look.domain(domain)
        if len(domain.path) >= depth:
            continue
        for index, node in enumerate(domain.nodes):
            yield f"d{number}n{index}", f"d{number}", html.escape(node.id), node.num_slots or NO_SLOTS, *look.node(node)


def words(domain: Domain) -> str:
    """Return what is free in a domain, and what of it cannot be used."""
    unusable = f", {domain.num_unusable} of them not usable" if domain.num_unusable else ""
    return f"{domain.num_free_slots:,} of {domain.num_slots:,} slots free on {domain.num_nodes:,} nodes{unusable}"


def _free_on(node: TopologyNode) -> tuple[str, float]:
    told = f"{node.usable_slots} of {node.num_slots} slots free, {html.escape(node.shape)}"
    if node.unusable_reason:
        told += f"<br>not usable: {html.escape(node.unusable_reason)}"
    return told, node.usable_slots / node.num_slots if node.num_slots else 0.0


def _label(domain: Domain) -> str:
    return html.escape(domain.name) if domain.path else "all"


def _width(domain: Domain) -> float:
    """Return the slots inside; a node without any still has a place, and widths must add up."""
    return float(sum(_width(each) for each in domain.domains) or sum(n.num_slots or NO_SLOTS for n in domain.nodes))


def _share(domain: Domain) -> float:
    return domain.num_free_slots / domain.num_slots if domain.num_slots else 0.0
