"""Placed gangs as one HTML file that needs nothing from elsewhere: where they are, what they do to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.graphs.job_graph import JobGraph
from airflow_llmsched.reports import words
from airflow_llmsched.reports.files import replace_file
from airflow_llmsched.reports.page import render_page


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGang:
    """One gang of the page."""

    name: str
    plan: Plan
    job: JobGraph


def write(tree: TopologyTree, gangs: Sequence[PlacedGang], told: Sequence[str], path: Path) -> None:
    """Write the page to ``path``. Raises ``SpecError`` when that is not possible."""
    try:
        replace_file(path, render(tree, gangs, told).encode())
    except OSError as error:
        raise SpecError(path=str(path), hint=f"cannot be written: {error.strerror}") from None


def render(tree: TopologyTree, gangs: Sequence[PlacedGang], told: Sequence[str]) -> str:
    """Return the page; ``told`` are sentences on what gangs do to each other."""
    from airflow_llmsched.reports.placement_figures import traffic, where  # noqa: PLC0415 - loads Plotly

    figures = {"where": where(tree, {gang.name: gang.plan.placement for gang in gangs})}
    titles = {}
    for number, gang in enumerate(gangs):
        drawn = traffic(gang.job, gang.plan.placement)
        if drawn is not None:
            figures[f"traffic{number}"] = drawn
            titles[f"traffic{number}"] = gang.name
    return render_page(
        "placement.html.j2",
        figures,
        words=words,
        gangs=[_row(gang) for gang in gangs],
        spans=[(gang.name, gang.plan.spans) for gang in gangs],
        told=told,
        titles=titles,
    )


def _row(gang: PlacedGang) -> tuple[str, ...]:
    plan = gang.plan
    return (
        gang.name,
        plan.layout.describe(),
        f"{plan.layout.world_size}/{len(plan.placement.nodes)}",
        words.duration(plan.prediction.step_s),
        str(plan.num_domains),
    )
