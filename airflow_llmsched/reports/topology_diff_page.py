"""What differs between two topologies as one HTML file that needs nothing from anywhere else."""

from __future__ import annotations

from pathlib import Path

from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import SpecError
from airflow_llmsched.reports import words
from airflow_llmsched.reports.files import replace_file
from airflow_llmsched.reports.page import render_page
from airflow_llmsched.topology.comparison import compare, words_of

MAX_ROWS = 500
"""Nodes that a table lists; there may be tens of thousands."""


def write(before: TopologyTree, after: TopologyTree, path: Path, *, names: tuple[str, str]) -> None:
    """Write the page to ``path``. Raises ``SpecError`` when that is not possible."""
    try:
        replace_file(path, render(before, after, names=names).encode())
    except OSError as error:
        raise SpecError(path=str(path), hint=f"cannot be written: {error.strerror}") from None


def render(before: TopologyTree, after: TopologyTree, *, names: tuple[str, str]) -> str:
    """Return the page of two topologies that were read from sources of these ``names``."""
    from airflow_llmsched.reports.topology_diff_figures import COLOURS, figures  # noqa: PLC0415 - loads Plotly

    found = compare(before, after)
    kinds = (("added", found.added), ("gone", found.gone), ("moved", found.moved), ("changed", found.changed))
    return render_page(
        "topology_diff.html.j2",
        figures(before, after, found),
        words=words,
        names=names,
        facts=found.facts,
        kinds=[(kind, len(changes), changes[:MAX_ROWS]) for kind, changes in kinds],
        is_same=found.is_same,
        keys=[(became.value, colour) for became, colour in COLOURS.items()],
        words_of=words_of,
    )
