"""``llmsched report``: a run's report on one screen, or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.run_report import RunOutcome, RunReport
from airflow_llmsched.errors import DataError
from airflow_llmsched.reports import files, words
from airflow_llmsched.reports.palette import BUCKET_COLOUR

app = typer.Typer(add_completion=False)

BAR_WIDTH = 60
CARDS_PER_ROW = 3
_OUTCOME_STYLE = {RunOutcome.SUCCEEDED: "bold green", RunOutcome.UNFINISHED: "bold yellow"}


@app.command("report")
def report_command(
    path: Annotated[Path, typer.Argument(help="Run folder, or the report.json in it.")],
    html: Annotated[Path | None, typer.Option("--html", help="Write the page to this file, too.")] = None,
) -> None:
    """Show a run's report."""
    console = Console()
    try:
        report = files.read(path)
        render_summary(report, console)
        if html is not None:
            files.write_html(report, html)
            console.print(f"page written to {escape(str(html))}", soft_wrap=True)
    except (DataError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def render_summary(report: RunReport, console: Console) -> None:
    """Print the report on one screen."""
    title = Text.assemble(
        (report.names.workload, "bold"), "  ", (report.outcome.value, _OUTCOME_STYLE.get(report.outcome, "bold red"))
    )
    console.print(title)
    if report.reason:
        console.print(Text(report.reason))
    cards = Table.grid(padding=(0, 1))
    shown = [_card(*card) for card in _cards(report)]
    for first in range(0, len(shown), CARDS_PER_ROW):
        cards.add_row(*shown[first : first + CARDS_PER_ROW])
    console.print(cards)
    console.print(_ledger(report))
    if report.attempts:
        console.print(_attempts(report))
    for note in report.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _cards(report: RunReport) -> list[tuple[str, str, str]]:
    result = report.evaluation
    gate = "not evaluated"
    if result is not None:
        asked = "no gate" if result.max_loss is None else f"gate {words.loss(result.max_loss)}"
        gate = f"{asked}, {'passed' if result.passed else 'NOT passed'}"
    kept = words.count(sum(row.kept for row in report.steps))
    lost = f"lost {words.steps(report.lost_steps, limit=2)}"
    return [
        ("ETTR", words.percent(report.ledger.ettr_ratio), f"of {words.duration(report.ledger.wall_s)}"),
        ("steps kept", kept, lost if report.retrained_only_lost else f"{lost}; others trained twice"),
        ("training loss", words.loss(report.final_loss), "last step kept"),
        ("held-out loss", words.loss(result.loss if result else None), gate),
        ("step time", words.duration(report.step_s_median), f"p95 {words.duration(report.step_s_p95)}"),
        ("cost of launches" if report.num_rentals else "cost", words.money(report.usd), _cost_words(report)),
        *_rented(report),
    ]


def _rented(report: RunReport) -> list[tuple[str, str, str]]:
    if not report.num_rentals:
        return []
    return [("rented capacity", words.money(report.rented_usd), words.rented(report))]


def _cost_words(report: RunReport) -> str:
    source = "list price" if report.price_source else "no price list"
    return "; ".join(filter(None, (source, words.earlier(report))))


def _card(title: str, value: str, below: str) -> Panel:
    return Panel(Group(Text(value, style="bold"), Text(below, style="dim")), title=title, title_align="left", width=25)


def _ledger(report: RunReport) -> Table:
    table = Table(title="where the time went", title_justify="left", box=None, pad_edge=False)
    table.add_column("bucket")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for bucket, colour in BUCKET_COLOUR.items():
        total_s = report.ledger.totals_s.get(bucket, 0.0)
        if total_s > 0:
            ratio = report.ledger.ratio(bucket)
            bar = Text("█" * max(1, round(ratio * BAR_WIDTH)), style=colour)
            table.add_row(Text(bucket.value, style=colour), words.duration(total_s), words.percent(ratio), bar)
    table.add_section()
    table.add_row("wall", words.duration(report.ledger.wall_s), words.percent(1.0), "", style="bold")
    return table


def _attempts(report: RunReport) -> Table:
    table = Table(title="attempts", title_justify="left", box=None, pad_edge=False)
    for name in ("attempt", "ranks"):
        table.add_column(name, justify="right")
    for name in ("nodes", "began from", "ended"):
        table.add_column(name)
    for name in ("kept", "lost", "cost"):
        table.add_column(name, justify="right")
    for row in report.attempts:
        good = row.phase in (GangPhase.SUCCEEDED, GangPhase.RUNNING)
        table.add_row(
            str(row.attempt),
            str(row.placement.world_size),
            Text(", ".join(row.placement.nodes)),
            "scratch" if row.resumed_from_step is None else f"step {row.resumed_from_step}",
            Text(row.phase.value if row.phase else "unknown", style="green" if good else "red"),
            str(row.num_steps_kept),
            str(row.num_steps_lost),
            words.money(row.usd),
        )
    return table
