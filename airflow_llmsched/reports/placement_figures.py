"""Figures of placed gangs: where they are in the fleet, and which nodes send to which. Loads Plotly."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.graphs.job_graph import JobGraph
from airflow_llmsched.reports.figures import blank_figure
from airflow_llmsched.reports.plan_figures import COLOURS

MAX_NODES = 128
"""Nodes of a gang between which traffic is drawn."""

FREE, BUSY, MIXED = "#9aa7b4", "#5d6874", "#b58a63"


def where(tree: TopologyTree, gangs: Mapping[str, Placement]) -> go.Figure:
    """Draw the fleet as nested domains, nodes in the colour of the gang that is on them."""
    colour_of = {name: COLOURS[number % (len(COLOURS) - 2)] for number, name in enumerate(gangs)}
    on: dict[str, list[str]] = {}
    for name, placement in gangs.items():
        for node_id in placement.nodes:
            on.setdefault(node_id, []).append(name)
    ids, labels, parents, values, colours, words = [], [], [], [], [], []
    for depth in range(len(tree.levels)):
        for path, nodes in tree.domains(tree.levels[depth]).items():
            ids.append("/".join(path))
            labels.append(html.escape(path[-1]))
            parents.append("/".join(path[:-1]))
            values.append(sum(node.num_slots for node in nodes))
            colours.append("rgba(127,127,127,0.15)")
            words.append(f"{html.escape(tree.levels[depth])}: {len(nodes)} nodes")
    for node in tree.nodes:
        names = on.get(node.id, [])
        ids.append(f"node {node.id}")
        labels.append(html.escape(node.id))
        parents.append("/".join(node.path))
        values.append(node.num_slots)
        free = FREE if node.usable_slots else BUSY
        colours.append(free if not names else colour_of[names[0]] if len(names) == 1 else MIXED)
        words.append(html.escape(" and ".join(names)) or ("free" if node.usable_slots else "not usable"))
    trace = go.Icicle(
        ids=ids,
        labels=labels,
        parents=parents,
        values=values,
        branchvalues="total",
        marker={"colors": colours},
        text=words,
        hovertemplate="%{label}<br>%{text}<br>%{value} accelerators<extra></extra>",
        tiling={"orientation": "v"},
    )
    return blank_figure([trace], height=460, margin={"l": 8, "r": 8, "t": 12, "b": 8})


def traffic(job: JobGraph, placement: Placement) -> go.Figure | None:
    """Draw gigabytes of a step between nodes in the order of their ranks; None for a gang on one node, or too many."""
    nodes = list(dict.fromkeys(slot.node for slot in placement.slots))
    if not 1 < len(nodes) <= MAX_NODES:
        return None
    number = {node: index for index, node in enumerate(nodes)}
    node_R = np.array([number[slot.node] for slot in placement.slots])
    edges = job.edges()
    sent = np.zeros((len(nodes), len(nodes)))
    np.add.at(sent, (node_R[edges.source_E], node_R[edges.target_E]), edges.bytes_E)
    np.fill_diagonal(sent, 0.0)
    names: Sequence[str] = [html.escape(node) for node in nodes]
    trace = go.Heatmap(
        z=sent / 1e9,
        x=names,
        y=names,
        colorscale="Blues",
        colorbar={"title": "GB"},
        hovertemplate="%{y} to %{x}: %{z:.3g} GB a step<extra></extra>",
    )
    figure = blank_figure([trace], height=420)
    figure.update_xaxes(title_text="to")
    figure.update_yaxes(title_text="from", autorange="reversed")
    return figure
