from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from airflow_llmsched.cli.report_commands import app, render_summary
from airflow_llmsched.domain.run_report import RunOutcome, RunReport
from airflow_llmsched.reports import files
from airflow_llmsched.reports.build import build_report
from tests.support.history import preempted_run


@pytest.fixture(scope="module")
def finished() -> RunReport:
    return build_report(**preempted_run())


def summary(report: RunReport, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    render_summary(report, console)
    return console.file.getvalue()


def test_the_summary_fits_one_screen(finished):
    lines = summary(finished).splitlines()
    assert len(lines) < 40
    assert all(len(line) <= 80 for line in lines)


def test_the_summary_says_what_matters(finished):
    shown = summary(finished)
    for words in (
        "tiny-gpt",
        "succeeded",
        "48.6%",
        "lost 41-42",
        "gate 2.8000, passed",
        "preempted",
        "step 40",
        "wall",
    ):
        assert words in shown


def test_a_failed_run_says_why_and_what_is_unknown(finished):
    failed = replace(
        finished, outcome=RunOutcome.FAILED, reason="rank 3 exited 1", evaluation=None, notes=("Nothing is known.",)
    )
    shown = summary(failed)
    for words in ("failed", "rank 3 exited 1", "not evaluated", "note: Nothing is known."):
        assert words in shown


def test_names_are_not_read_as_markup(finished):
    named = replace(finished, names=replace(finished.names, workload="[red]a[/red] [/]"), reason="[/nonsense]")
    shown = summary(named)
    assert "[red]a[/red] [/]" in shown
    assert "[/nonsense]" in shown


def test_the_command_shows_a_run_folder_and_writes_the_page(finished, tmp_path):
    files.write(finished, tmp_path)
    result = CliRunner().invoke(app, [str(tmp_path), "--html", str(tmp_path / "out" / "page.html")])
    assert result.exit_code == 0, result.output
    assert "where the time went" in result.output
    assert (tmp_path / "out" / "page.html").is_file()


def test_the_command_says_when_there_is_no_report(tmp_path):
    result = CliRunner().invoke(app, [str(tmp_path / "absent.json")])
    assert result.exit_code == 1
    assert "no report at" in result.output


def test_rented_capacity_is_told_beside_the_cost_of_launches(finished):
    assert "rented" not in summary(finished)
    shown = summary(replace(finished, rented_usd=12.5, num_rentals=1))
    for words in ("cost of launches", "rented capacity", "$12.50", "1 rental at"):
        assert words in shown
