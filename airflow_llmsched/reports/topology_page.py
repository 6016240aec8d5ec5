"""A topology as one HTML file that needs nothing from anywhere else: what is free where, links, and what is odd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from airflow_llmsched.domain.topology import NetworkLevel, TopologyTree
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.links import check_words
from airflow_llmsched.reports import words
from airflow_llmsched.reports.files import replace_file
from airflow_llmsched.reports.page import render_page
from airflow_llmsched.topology.comparison import link_words
from airflow_llmsched.topology.summary import Domain, summarise

MAX_ROWS = 500
"""Domains and nodes that tables list; there may be tens of thousands."""


def write(
    tree: TopologyTree,
    path: Path,
    *,
    source: str,
    warnings: Mapping[str, int],
    measured: Mapping[str, Sequence[NetworkLevel]] = MappingProxyType({}),
) -> None:
    """Write the page to ``path``. Raises ``SpecError`` when that is not possible.

    ``measured`` is what checks of nodes measured of links, by the shape of nodes.
    """
    try:
        replace_file(path, render(tree, source=source, warnings=warnings, measured=measured).encode())
    except OSError as error:
        raise SpecError(path=str(path), hint=f"cannot be written: {error.strerror}") from None


def render(
    tree: TopologyTree,
    *,
    source: str,
    warnings: Mapping[str, int],
    measured: Mapping[str, Sequence[NetworkLevel]] = MappingProxyType({}),
) -> str:
    """Return the page of a topology that was read from ``source``."""
    from airflow_llmsched.reports.topology_figures import figures  # noqa: PLC0415 - loads Plotly

    whole = summarise(tree)
    inside = [each for each in whole.walk() if each.path]
    return render_page(
        "topology.html.j2",
        figures(tree),
        words=words,
        source=source,
        levels=tree.levels,
        cards=_cards(tree, whole),
        links=[("all nodes" if link.level is None else link.level, link_words(link)) for link in tree.network],
        checked=[(shape, check_words(link)) for shape, links in measured.items() for link in links],
        domains=inside[:MAX_ROWS],
        num_domains=len(inside),
        unusable=[node for node in tree.nodes if node.unusable_reason][:MAX_ROWS],
        warnings=warnings,
    )


def _cards(tree: TopologyTree, whole: Domain) -> list[tuple[str, str, str]]:
    shapes = Counter(node.shape for node in tree.nodes)
    counted = ", ".join(f"{number:,} {shape}" for shape, number in shapes.most_common(3))
    more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
    joined = f"within each {tree.scale_up_level}" if tree.scale_up_level else "within each node"
    return [
        ("Nodes", f"{whole.num_nodes:,}", counted + more),
        ("Slots", f"{whole.num_slots:,}", f"{whole.num_free_slots:,} of them free"),
        ("Not usable", f"{whole.num_unusable:,}", "nodes, the reasons are below" if whole.num_unusable else "nodes"),
        ("Levels", f"{len(tree.levels)}", ", ".join(tree.levels)),
        ("Fastest links", joined, "switches add up (SHARP)" if tree.switches_reduce else ""),
    ]
