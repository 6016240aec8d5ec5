"""``llmsched reap``: find, and with ``--yes`` end, gangs and rented machines that have outlived their runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airflow_llmsched.cli.airflow_word import RestWord
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.deployment import known_deployment_id
from airflow_llmsched.control.lease_reaping import LeaseFinding, LeaseReaper
from airflow_llmsched.control.open_clouds import open_adapter
from airflow_llmsched.control.reaper import AirflowWord, AskAirflow, Reap
from airflow_llmsched.control.reaping import Finding, Reaped, Reaper
from airflow_llmsched.errors import LlmschedError, SpecError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.ports import Engine, ObjectStore
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
    clouds: Annotated[
        str,
        typer.Option("--clouds", help="Options of each cloud to look at by its name, a JSON object; as in the DAG."),
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
    """Show gangs and rented machines that have outlived their runs, and end them with --yes.

    A gang is reaped only if it has expired, its agents are silent, and Airflow calls its run finished or does not know
    it. Without --airflow-api or --without-airflow nobody can be asked, and every gang is spared. Rented machines are
    reaped once their lease has run out: whoever needs one renews it.

    Exit code: 0 nothing is left to reap; 1 something could not be asked, or does not end; 3 something would be reaped.
    """
    console = Console()
    try:
        store = open_store(str(state_root))
        owner = known_deployment_id(store)
        lease_reapers = _lease_reapers(clouds, store, owner)
        reaper = Reaper(
            store=store,
            deployment_id=owner,
            engine=_open_engine(engine, engine_options, state_root),
            open_witness=open_witness,
            ask=_asker(airflow_api, token, without_airflow=without_airflow),
            clock=SystemClock(),
        )
        findings = reaper.look()
        console.print(_table(findings) if findings else "nothing lives on this engine")
        condemned = [finding for finding in findings if isinstance(finding.verdict, Reap)]
        reaped = [reaper.reap(finding) for finding in condemned] if yes else []
        leases = [_reap_leases(console, name, each, yes=yes) for name, each in lease_reapers.items()]
    except LlmschedError as error:
        Console(stderr=True).print(f"[red]{escape(str(error))}[/red]", soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    _say(console, condemned, reaped, num_leases=sum(each.num_condemned for each in leases), yes=yes)
    if any(each.has_trouble for each in leases):
        raise typer.Exit(EXIT_FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leases:
    """What came of one cloud's leases."""

    num_condemned: int
    has_trouble: bool


def _reap_leases(console: Console, cloud: str, reaper: LeaseReaper, *, yes: bool) -> _Leases:
    findings = reaper.look()
    console.print(_lease_table(cloud, findings) if findings else f"nothing is rented in {escape(cloud)}")
    condemned = [finding for finding in findings if isinstance(finding.verdict, Reap)]
    reaped = [reaper.reap(finding) for finding in condemned] if yes else []
    for each in reaped:
        said = f"gave back {escape(each.lease_id)}" if each.is_gone else ""
        trouble = f"[yellow]{escape(each.lease_id)}: {escape(each.trouble)}[/yellow]" if each.trouble else ""
        console.print(said or trouble, soft_wrap=True)
    return _Leases(num_condemned=len(condemned), has_trouble=any(each.trouble for each in reaped))


def _say(console: Console, condemned: list[Finding], reaped: list[Reaped], *, num_leases: int, yes: bool) -> None:
    for each in reaped:
        for name in each.stopped:
            console.print(f"stopped {escape(name)}", soft_wrap=True)
        if each.trouble:
            console.print(f"[yellow]{escape(each.run_key)}: {escape(each.trouble)}[/yellow]", soft_wrap=True)
    if (condemned or num_leases) and not yes:
        leases = f" and give back {num_leases} leases" if num_leases else ""
        console.print(f"would stop what lives of {len(condemned)} runs{leases}: repeat with --yes", soft_wrap=True)
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
    given = _object(options, path="engine-options", example='{"num_nodes": 2}')
    adapter = load(AdapterGroup.ENGINES, name)
    try:
        engine: Engine = adapter(**{"root": str(state_root.expanduser().resolve() / "engines" / name), **given})
    except TypeError as error:
        raise SpecError(path="engine-options", value=options, hint=str(error)) from error
    return engine


def _lease_reapers(clouds: str, store: ObjectStore, owner: str) -> dict[str, LeaseReaper]:
    """Return a reaper for each cloud. Connections are Airflow's: here the SDKs find credentials their own way."""
    example = '{"aws": {"regions": ["us-east-1"]}}'
    reapers = {}
    for name, options in _object(clouds, path="clouds", example=example).items():
        if not isinstance(options, dict):
            raise SpecError(path=f"clouds.{name}", value=options, hint=f"must be a JSON object as in {example}")
        if "conn_id" in options:
            hint = "is for Airflow: leave it out, and give credentials in the cloud's own way, such as its environment"
            raise SpecError(path=f"clouds.{name}.conn_id", value=options["conn_id"], hint=hint)
        cloud = open_adapter(name, options, store=store, clock=SystemClock())
        reapers[name] = LeaseReaper(store=store, deployment_id=owner, cloud=cloud, clock=SystemClock())
    return reapers


def _object(text: str, *, path: str, example: str) -> dict[str, Any]:
    try:
        given: Any = json.loads(text)
    except ValueError as error:
        raise SpecError(path=path, value=text, hint=f"must be a JSON object: {error}") from error
    if not isinstance(given, dict):
        raise SpecError(path=path, value=text, hint=f"must be a JSON object such as {example}")
    return given


def _lease_table(cloud: str, findings: Sequence[LeaseFinding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in (f"rented in {cloud}", "nodes", "DAG", "DAG run", "verdict", "why"):
        table.add_column(escape(name), overflow="fold")
    for finding in findings:
        lease, origin = finding.lease, finding.lease.origin
        table.add_row(
            escape(lease.id),
            str(lease.num_nodes),
            escape(origin.dag_id if origin else "?"),
            escape(origin.run_id if origin else "?"),
            "[red]reap[/red]" if isinstance(finding.verdict, Reap) else "[green]spare[/green]",
            escape(finding.verdict.reason),
        )
    return table


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
