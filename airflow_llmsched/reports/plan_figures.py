"""Figures of a plan search: where each plan's step goes, what fills its memory, and what plans trade for what.

Importing this loads Plotly, which takes a while: only what draws does.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence

import plotly.graph_objects as go

from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.planner.explain import STEP_TERMS
from airflow_llmsched.reports.figures import blank_figure
from airflow_llmsched.units import GIB

MAX_BARS = 12
"""Plans whose breakdowns are drawn."""

COLOURS = (
    "#3f83d6", "#2f9e6e", "#e08a2e", "#8a79e0", "#c073b4", "#4fb0c6", "#d64f4a", "#e3a12f", "#2f7f8c", "#b58a63",
    "#9aa7b4", "#5d6874",
)  # fmt: skip
"""Of the terms of a breakdown, largest first. Mid tones, so that they read on light and on dark."""


def figures(found: PlanSearch) -> dict[str, go.Figure]:
    """Return the figures there is something to show in, by name."""
    drawn: dict[str, go.Figure] = {}
    plans = found.plans[:MAX_BARS]
    if any(plan.prediction.step_s for plan in plans):
        drawn["step"] = step_bars(plans)
        drawn["trade"] = trade_off(found.plans)
    if plans:
        drawn["memory"] = memory_bars(plans)
    return drawn


def step_bars(plans: Sequence[Plan]) -> go.Figure:
    """One bar a plan, as long as its step, split by term."""
    figure = _bars(plans, lambda plan: plan.prediction.step_breakdown_s, unit="s")
    figure.update_xaxes(title_text="seconds of one step")
    return figure


def memory_bars(plans: Sequence[Plan]) -> go.Figure:
    """One bar a plan, as long as what its fullest rank needs, split by term."""
    figure = _bars(plans, _memory_gib, unit="GiB")
    figure.update_xaxes(title_text="GiB on the fullest rank")
    return figure


def trade_off(plans: Sequence[Plan]) -> go.Figure:
    """Every plan by step time and memory; larger marks cost more a step."""
    usd = [plan.prediction.usd_per_hour * plan.prediction.step_s / 3600 for plan in plans]
    dearest = max(usd) or 1.0
    trace = go.Scatter(
        x=[plan.prediction.step_s for plan in plans],
        y=[plan.prediction.memory_bytes_per_rank / GIB for plan in plans],
        mode="markers+text",
        text=[str(number) for number in range(1, len(plans) + 1)],
        textposition="top center",
        marker={
            "size": [8 + 16 * each / dearest for each in usd],
            "color": [COLOURS[1] if number == 0 else COLOURS[0] for number in range(len(plans))],
            "opacity": 0.75,
        },
        customdata=[[html.escape(plan.layout.describe()), each] for plan, each in zip(plans, usd, strict=True)],
        hovertemplate="%{customdata[0]}<br>%{x:.3g} s, %{y:.1f} GiB, $%{customdata[1]:.3g} a step<extra></extra>",
    )
    figure = blank_figure([trace], height=380)
    figure.update_xaxes(title_text="seconds of one step")
    figure.update_yaxes(title_text="GiB on the fullest rank", rangemode="tozero")
    return figure


def _memory_gib(plan: Plan) -> dict[str, float]:
    return {name: num_bytes / GIB for name, num_bytes in plan.prediction.memory_breakdown_bytes.items()}


def _bars(plans: Sequence[Plan], parts: Callable[[Plan], Mapping[str, float]], *, unit: str) -> go.Figure:
    totals: dict[str, float] = {}
    for plan in plans:
        for name, amount in parts(plan).items():
            totals[name] = totals.get(name, 0.0) + amount
    names = sorted(totals, key=lambda name: (-totals[name], name))
    rows = [f"{number}: {html.escape(plan.layout.describe())}" for number, plan in enumerate(plans, start=1)]
    traces = [
        go.Bar(
            name=name.replace("_", " "),
            x=[parts(plan).get(name, 0.0) for plan in plans],
            y=rows,
            orientation="h",
            marker={"color": COLOURS[index % len(COLOURS)], "line": {"width": 0}},
            hovertemplate=f"{STEP_TERMS.get(name, name.replace('_', ' '))}: %{{x:.3g}} {unit}<extra></extra>",
        )
        for index, name in enumerate(names)
    ]
    figure = blank_figure(traces, height=140 + 34 * len(plans))
    figure.update_layout(barmode="stack", bargap=0.35, legend={"traceorder": "normal"})
    figure.update_yaxes(categoryorder="array", categoryarray=rows, autorange="reversed", showgrid=False)
    return figure
