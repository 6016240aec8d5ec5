"""The report's figures. Text, grid and background take their colours from the page, which follows the reader's theme.

Importing this loads Plotly, which takes a while: only what draws does.
"""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from airflow_llmsched.domain.ledger import Bucket, Span
from airflow_llmsched.domain.run_report import AttemptRow, CheckpointState, RunReport, StepRow
from airflow_llmsched.reports.palette import ATTEMPT_COLOURS, BUCKET_COLOUR
from airflow_llmsched.reports.words import duration, loss, percent
from airflow_llmsched.units import DAY_S, HOUR_S, MINUTE_S

MAX_POINTS = 4000
MAX_SPANS = 2000
MAX_LABELLED_RESUMES = 6
MAX_LEGEND_ENTRIES = 24
MIN_LABELLED_RATIO = 0.06
LOG_SCALE_FROM_RATIO = 8.0

_NOT_KEPT = (CheckpointState.TORN, CheckpointState.DAMAGED, CheckpointState.GIVEN_UP)


def figures(report: RunReport) -> dict[str, go.Figure]:
    """Return the figures there is something to show in, by name."""
    found: dict[str, go.Figure] = {}
    if report.ledger.wall_s > 0:
        found["ledger"] = ledger_bar(report)
        found["timeline"] = timeline(report)
    if any(row.loss is not None for row in report.steps):
        found["loss"] = loss_curve(report)
    if report.steps:
        found["step_time"] = step_times(report)
    return found


def ledger_bar(report: RunReport) -> go.Figure:
    """One bar as long as the run, split by bucket."""
    traces = []
    for bucket, colour in BUCKET_COLOUR.items():
        total_s = report.ledger.totals_s.get(bucket, 0.0)
        if total_s <= 0:
            continue
        ratio = report.ledger.ratio(bucket)
        traces.append(
            go.Bar(
                name=bucket.value,
                x=[ratio * 100],
                y=[""],
                orientation="h",
                marker={"color": colour, "line": {"width": 0}},
                text=[f"{bucket.value}<br>{percent(ratio)}" if ratio >= MIN_LABELLED_RATIO else ""],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                textfont={"color": "#ffffff", "size": 12},
                hovertemplate=f"{bucket.value}: {duration(total_s)} ({percent(ratio)})<extra></extra>",
            )
        )
    figure = blank_figure(traces, height=92, margin={"l": 14, "r": 18, "t": 4, "b": 28})
    figure.update_layout(barmode="stack", showlegend=False, bargap=0.05)
    figure.update_xaxes(range=[0, 100.01], tickvals=list(range(0, 101, 20)), ticksuffix="%", showgrid=False)
    figure.update_yaxes(visible=False)
    return figure


def timeline(report: RunReport) -> go.Figure:
    """The run's spans over time: a row for each attempt, and one for what belongs to none."""
    unit_s, unit = _time_unit(report.ledger.wall_s)
    rows = [_row_name(None), *(_row_name(row.attempt) for row in report.attempts)]
    by_bucket: dict[Bucket, list[Span]] = defaultdict(list)
    # Beyond a few thousand bars a page gets slow, and the shortest could not be seen anyway
    shown = sorted(report.ledger.spans, key=lambda span: span.start_s - span.end_s)[:MAX_SPANS]
    for span in sorted(shown, key=lambda span: span.start_s):
        by_bucket[span.bucket].append(span)
    traces = [
        go.Bar(
            name=bucket.value,
            base=[(span.start_s - report.ledger.start_s) / unit_s for span in by_bucket[bucket]],
            x=[(span.end_s - span.start_s) / unit_s for span in by_bucket[bucket]],
            y=[_row_name(span.attempt) for span in by_bucket[bucket]],
            orientation="h",
            width=0.62,
            marker={"color": colour, "line": {"width": 0}},
            customdata=[
                [_safe(span.label or bucket.value), duration(span.end_s - span.start_s)] for span in by_bucket[bucket]
            ],
            hovertemplate=f"<b>{bucket.value}</b>: %{{customdata[0]}}<br>%{{customdata[1]}}, "
            f"from %{{base:.2f}} {unit}<extra>%{{y}}</extra>",
        )
        for bucket, colour in BUCKET_COLOUR.items()
        if by_bucket[bucket]
    ]
    figure = blank_figure(traces, height=118 + 44 * len(rows))
    figure.update_layout(barmode="overlay", bargap=0.3, legend={"traceorder": "normal"})
    figure.update_xaxes(title_text=f"time since the run began ({unit})", range=[0, report.ledger.wall_s / unit_s])
    figure.update_yaxes(categoryorder="array", categoryarray=rows, autorange="reversed", showgrid=False)
    return figure


def loss_curve(report: RunReport) -> go.Figure:
    """Training loss by step: what was kept as a line, what was thrown away faint, resumes and evaluation marked."""
    traces: list[Any] = []
    lost_traces: list[Any] = []
    rows_of = _by_attempt(report.steps)
    for index, attempt in enumerate(report.attempts):
        colour = ATTEMPT_COLOURS[index % len(ATTEMPT_COLOURS)]
        rows = rows_of[attempt.attempt]
        kept, lost = [row for row in rows if row.kept], [row for row in rows if not row.kept]
        hover = "step %{x}<br>loss %{y:.4f}<extra>%{fullData.name}</extra>"
        if kept:
            shown = _thinned(kept)
            traces.append(
                go.Scatter(
                    name=f"attempt {attempt.attempt}, {attempt.placement.world_size} ranks",
                    x=[row.step for row in shown],
                    y=[row.loss for row in shown],
                    mode="lines" if len(shown) > 1 else "markers",
                    line={"color": colour, "width": 2},
                    hovertemplate=hover,
                )
            )
        if lost:
            shown = _thinned(lost)
            lost_traces.append(
                go.Scatter(
                    name=f"attempt {attempt.attempt}, lost",
                    x=[row.step for row in shown],
                    y=[row.loss for row in shown],
                    mode="lines+markers",
                    opacity=0.65,
                    line={"color": colour, "width": 1.5, "dash": "dot"},
                    marker={"color": colour, "size": 5, "symbol": "circle-open"},
                    hovertemplate=hover,
                )
            )
    traces = [*traces, *lost_traces, *_checkpoint_trace(report), *_evaluation_trace(report)]
    figure = blank_figure(traces, height=420)
    figure.update_xaxes(title_text="optimizer step", rangemode="tozero")
    figure.update_yaxes(title_text="training loss (mean over the global batch)")
    _mark_resumes(figure, report.attempts)
    gate = report.evaluation.max_loss if report.evaluation else None
    if gate is not None:
        figure.add_hline(
            y=gate,
            line={"dash": "dash", "width": 1, "color": BUCKET_COLOUR[Bucket.EVALUATE]},
            annotation={"text": f"gate {loss(gate)}", "font": {"size": 11}, "showarrow": False},
            annotation_position="top right",
        )
    return figure


def step_times(report: RunReport) -> go.Figure:
    """Time of each step by step number; stalls and lost steps stand out."""
    traces: list[Any] = []
    rows_of = _by_attempt(report.steps)
    for index, attempt in enumerate(report.attempts):
        colour = ATTEMPT_COLOURS[index % len(ATTEMPT_COLOURS)]
        rows = rows_of[attempt.attempt]
        for name, chosen, style in (
            (f"attempt {attempt.attempt}, {attempt.placement.world_size} ranks", _steady(rows, kept=True), "circle"),
            (f"attempt {attempt.attempt}, lost", _steady(rows, kept=False), "circle-open"),
            (f"attempt {attempt.attempt}, stalled", [row for row in rows if row.stall_s > 0], "x"),
        ):
            if chosen:
                shown = _thinned(chosen)
                traces.append(
                    go.Scatter(
                        name=name,
                        x=[row.step for row in shown],
                        y=[row.step_s for row in shown],
                        mode="markers",
                        marker={"color": colour, "size": 9 if style == "x" else 5, "symbol": style},
                        hovertemplate="step %{x}<br>%{y:.3f} s<extra>%{fullData.name}</extra>",
                    )
                )
    figure = blank_figure(traces, height=340)
    figure.update_xaxes(title_text="optimizer step", rangemode="tozero")
    _scale_step_time(figure, report)
    _mark_resumes(figure, report.attempts)
    return figure


def blank_figure(traces: Sequence[Any], *, height: int, margin: dict[str, int] | None = None) -> go.Figure:
    """Return a figure that leaves colours to the page and names its traces above. Height and margins in pixels."""
    figure = go.Figure(list(traces))
    figure.update_layout(
        template="none",
        height=height,
        margin=margin or {"l": 64, "r": 20, "t": 44, "b": 52},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"align": "left"},
        showlegend=1 < len(traces) <= MAX_LEGEND_ENTRIES,
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": {"size": 12}},
    )
    figure.update_xaxes(automargin=True, zeroline=False, title_font_size=13)
    figure.update_yaxes(automargin=True, zeroline=False, title_font_size=13)
    return figure


def _scale_step_time(figure: go.Figure, report: RunReport) -> None:
    """Go logarithmic when a stall would press everything else to the floor."""
    times_s = [row.step_s for row in report.steps if row.step_s > 0]
    slowest_s, fastest_s = max(times_s, default=0.0), min(times_s, default=0.0)
    if not times_s or slowest_s <= LOG_SCALE_FROM_RATIO * (report.step_s_median or slowest_s):
        figure.update_yaxes(title_text="step time (s)", range=[0, max(slowest_s * 1.25, 1e-6)])
        return
    low, high = math.log10(fastest_s) - 0.2, math.log10(slowest_s) + 0.35
    ticks_s = [digit * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for digit in (1, 2, 5)]
    figure.update_yaxes(
        title_text="step time (s, log scale)",
        type="log",
        range=[low, high],
        tickvals=ticks_s,
        ticktext=[f"{tick_s:g}" for tick_s in ticks_s],
    )


def _checkpoint_trace(report: RunReport) -> list[Any]:
    good = [row for row in report.checkpoints if row.state not in _NOT_KEPT]
    loss_at = {row.step: row.loss for row in report.steps if row.kept}
    shown = [row for row in good if loss_at.get(row.step) is not None]
    if not shown:
        return []
    return [
        go.Scatter(
            name="checkpoint",
            x=[row.step for row in shown],
            y=[loss_at[row.step] for row in shown],
            mode="markers",
            marker={"symbol": "diamond", "size": 8, "color": BUCKET_COLOUR[Bucket.SAVE], "line": {"width": 0}},
            customdata=[[row.state.value] for row in shown],
            hovertemplate="checkpoint of step %{x} (%{customdata[0]})<extra></extra>",
        )
    ]


def _evaluation_trace(report: RunReport) -> list[Any]:
    result = report.evaluation
    if result is None:
        return []
    return [
        go.Scatter(
            name="held-out loss",
            x=[result.checkpoint_step],
            y=[result.loss],
            mode="markers",
            marker={"symbol": "star", "size": 13, "color": BUCKET_COLOUR[Bucket.EVALUATE], "line": {"width": 0}},
            hovertemplate="held-out loss of step %{x}: %{y:.4f}<extra></extra>",
        )
    ]


def _mark_resumes(figure: go.Figure, attempts: Sequence[AttemptRow]) -> None:
    """Draw a line where each later attempt took over; with many attempts the words would hide the curve."""
    for earlier, later in pairwise(attempts):
        ended = earlier.phase.value if earlier.phase else "end unknown"
        step = later.resumed_from_step or 0
        figure.add_vline(x=step + 0.5, line={"dash": "dash", "width": 1, "color": BUCKET_COLOUR[Bucket.LOST]})
        if len(attempts) <= MAX_LABELLED_RESUMES:
            figure.add_annotation(
                x=step + 0.5,
                y=1 - 0.09 * ((later.attempt - 2) % 3),
                yref="paper",
                xanchor="left",
                yanchor="top",
                showarrow=False,
                align="left",
                text=f" attempt {earlier.attempt} {ended}, attempt {later.attempt} resumes after step {step}",
                font={"size": 11},
            )


def _by_attempt(steps: Sequence[StepRow]) -> dict[int, list[StepRow]]:
    rows_of: dict[int, list[StepRow]] = defaultdict(list)
    for row in steps:
        rows_of[row.attempt].append(row)
    return rows_of


def _steady(rows: Sequence[StepRow], *, kept: bool) -> list[StepRow]:
    return [row for row in rows if row.kept is kept and row.stall_s <= 0]


def _thinned(rows: Sequence[StepRow]) -> list[StepRow]:
    """At most about ``MAX_POINTS`` rows, evenly chosen, always with the last."""
    stride = -(-len(rows) // MAX_POINTS)
    shown = list(rows[::stride])
    return shown if shown[-1] is rows[-1] else [*shown, rows[-1]]


def _row_name(attempt: int | None) -> str:
    return "tasks" if attempt is None else f"attempt {attempt}"


def _time_unit(wall_s: float) -> tuple[float, str]:
    for unit_s, name, at_least in ((DAY_S, "days", 3), (HOUR_S, "h", 3), (MINUTE_S, "min", 10)):
        if wall_s >= at_least * unit_s:
            return unit_s, name
    return 1.0, "s"


def _safe(text: str) -> str:
    """Plotly reads a little markup in hover text; names are data."""
    return html.escape(text)
