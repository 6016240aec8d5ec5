"""``llmsched reap``: find, and with ``--yes`` stop, gangs that have outlived their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airflow_llmsched.cli.airflow_word import RestWord
from airflow_llmsched.control.clock import SystemClock
from airflow_llmsched.control.deployment import known_deployment_id
from airflow_llmsched.control.reaper import AirflowWord, AskAirflow, Reap
from airflow_llmsched.control.reaping import Finding, Reaped, Reaper
from airflow_llmsched.errors import LlmschedError, SpecError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.ports import Engine
from airflow_llmsched.registry import AdapterGroup, load
from airflow_llmsched.telemetry.channel import open_witness

EXIT_FAILED = 1
EXIT_WOULD_REAP = 3
TOKEN_VARIABLE = "LLMSCHED_AIRFLOW_TOKEN"  # noqa: S105 - a name, not a token


def reap(  # noqa: PLR0917 - options, all of them given by name
    state_root: Annotated[
        Path, typer.Option("--state-root", envvar="AIRFLOW__LLMSCHED__STATE_ROOT", help="The deployment's state root.")
    ],
    engine: Annotated[str, typer.Option("--engine", help="Name of the engine adapter to look at.")] = "local",
    engine_options: Annotated[
        str, typer.Option("--engine-options", help="Its options, a JSON object; as in the DAG.")
    ] = "{}",
    airflow_api: Annotated[
        str,
        typer.Option("--airflow-api", help=f"Address of Airflow's API server; a bearer token in {TOKEN_VARIABLE}."),
    ] = "",
    token: Annotated[str, typer.Option(envvar=TOKEN_VARIABLE, hidden=True)] = "",
    without_airflow: Annotated[
        bool, typer.Option("--without-airflow", help="Airflow is gone for good: take every DAG run for unknown to it.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Stop them. Without this, only show what would be stopped.")
    ] = False,
) -> None:
    """Show gangs that have outlived their runs, and stop them with --yes.

    A gang is reaped only if it has expired, its agents are silent, and Airflow calls its run finished or does not know
    it. Without --airflow-api or --without-airflow nobody can be asked, and everything is spared.

    Exit code: 0 nothing is left to reap; 1 something could not be asked, or does not end; 3 something would be reaped.
    """
    console = Console()
    try:
        reaper = Reaper(
            store=open_store(str(state_root)),
            deployment_id=known_deployment_id(open_store(str(state_root))),
            engine=_open_engine(engine, engine_options, state_root),
            open_witness=open_witness,
            ask=_asker(airflow_api, token, without_airflow=without_airflow),
            clock=SystemClock(),
        )
        findings = reaper.look()
        console.print(_table(findings) if findings else "nothing lives on this engine")
        condemned = [finding for finding in findings if isinstance(finding.verdict, Reap)]
        reaped = [reaper.reap(finding) for finding in condemned] if yes else []
    except LlmschedError as error:
        Console(stderr=True).print(f"[red]{escape(str(error))}[/red]", soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    _say(console, condemned, reaped, yes=yes)


def _say(console: Console, condemned: list[Finding], reaped: list[Reaped], *, yes: bool) -> None:
    for each in reaped:
        for name in each.stopped:
            console.print(f"stopped {escape(name)}", soft_wrap=True)
        if each.trouble:
            console.print(f"[yellow]{escape(each.run_key)}: {escape(each.trouble)}[/yellow]", soft_wrap=True)
    if condemned and not yes:
        console.print(f"would stop what lives of {len(condemned)} runs: repeat with --yes", soft_wrap=True)
        raise typer.Exit(EXIT_WOULD_REAP)
    if any(each.trouble for each in reaped):
        raise typer.Exit(EXIT_FAILED)


def _asker(airflow_api: str, token: str, *, without_airflow: bool) -> AskAirflow:
    if airflow_api and without_airflow:
        raise SpecError(path="without-airflow", hint="contradicts --airflow-api: give one of them")
    if airflow_api:
        return RestWord(airflow_api, token=token)
    word = AirflowWord.UNKNOWN if without_airflow else AirflowWord.COULD_NOT_ASK
    return lambda _dag_id, _run_id: word


def _open_engine(name: str, options: str, state_root: Path) -> Engine:
    try:
        given: Any = json.loads(options)
    except ValueError as error:
        raise SpecError(path="engine-options", value=options, hint=f"must be a JSON object: {error}") from error
    if not isinstance(given, dict):
        raise SpecError(path="engine-options", value=options, hint='must be a JSON object such as {"num_nodes": 2}')
    adapter = load(AdapterGroup.ENGINES, name)
    try:
        engine: Engine = adapter(**{"root": str(state_root.expanduser().resolve() / "engines" / name), **given})
    except TypeError as error:
        raise SpecError(path="engine-options", value=options, hint=str(error)) from error
    return engine


def _table(findings: tuple[Finding, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("what lives", "DAG", "DAG run", "verdict", "why"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        reap_it = isinstance(finding.verdict, Reap)
        table.add_row(
            escape("\n".join(handle.key.name for handle in finding.handles)),
            escape(finding.facts.dag_id or "?"),
            escape(finding.facts.run_id or "?"),
            "[red]reap[/red]" if reap_it else "[green]spare[/green]",
            escape(finding.verdict.reason),
        )
    return table
