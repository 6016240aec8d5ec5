"""``llmsched budget``: what a run asks for, and what somebody allows it to spend."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from airflow_llmsched.cli.state_root import state_root_option
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control import snapshots
from airflow_llmsched.control.allowances import Allowances
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.errors import LlmschedError
from airflow_llmsched.objects.open import open_store

EXIT_FAILED = 1


def budget(
    run: Annotated[str, typer.Argument(help="Run key, such as ls-2cv4byyv7ykvd6pja3ks.")],
    state_root: Annotated[Path, state_root_option()],
    max_usd: Annotated[
        float | None, typer.Option("--max-usd", help="Dollars it may spend in all from now on. Without it, only look.")
    ] = None,
) -> None:
    """Show whether a run asks about its budget, and answer with --max-usd.

    A run that goes on takes it up at its next review. One that was stopped for its budget goes on from its newest
    checkpoint once its task is cleared.
    """
    console = Console()
    try:
        store = open_store(str(state_root))
        state = snapshots.rebuild(Journal(store, RunKey(run))).state
        if state.phase is RunPhase.NEW:
            typer.echo(f"error: no run {run} below {state_root}: give the run key of a run there", err=True)
            raise typer.Exit(EXIT_FAILED)
        allowances = Allowances(store, state.run)
        if max_usd is not None:
            allowances.allow(max_usd, at_s=SystemClock().now_s(), by=getpass.getuser())
        newest = allowances.newest()
    except LlmschedError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    allowed = "what its spec says" if newest is None else f"${newest.max_usd:,.2f}"
    console.print(f"run {escape(run)} is {state.phase} and may spend {allowed} in all", soft_wrap=True)
    for words in (state.asks and f"it asks: {state.asks}", state.reason):
        if words:
            console.print(escape(words), soft_wrap=True)
