"""``llmsched reap``: find, and with ``--yes`` end, gangs and rented machines that have outlived their runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airflow_llmsched.cli.airflow_word import RestWord
from airflow_llmsched.cli.engines import json_object, open_engine, read_fleet_file
from airflow_llmsched.cli.fleet_commands import FleetOption
from airflow_llmsched.cli.state_root import state_root_option
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_ground import Ground
from airflow_llmsched.control.claim_reaping import ClaimFinding, ClaimReaped, ClaimReaper
from airflow_llmsched.control.deployment import known_deployment_id
from airflow_llmsched.control.lease_reaping import LeaseFinding, LeaseReaped, LeaseReaper
from airflow_llmsched.control.open_arbiter import open_ground, open_grounds
from airflow_llmsched.control.open_clouds import open_adapter
from airflow_llmsched.control.open_fleet import clusters_of, names_cluster
from airflow_llmsched.control.reaper import AirflowWord, AskAirflow, Reap, Spare
from airflow_llmsched.control.reaping import Finding, Reaped, Reaper
from airflow_llmsched.domain.fleet import Fleet
from airflow_llmsched.errors import LlmschedError, PartlySeenError, SpecError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.ports import Engine, ObjectStore
from airflow_llmsched.telemetry.channel import open_witness

EXIT_FAILED = 1
EXIT_WOULD_REAP = 3
TOKEN_VARIABLE = "LLMSCHED_AIRFLOW_TOKEN"  # noqa: S105 - a name, not a token


def reap(  # noqa: PLR0917 - options, all of them given by name
    state_root: Annotated[Path, state_root_option()],
    engine: Annotated[
        str, typer.Option("--engine", help="Engine adapter to look at, a cluster of --fleet, or fleet for all of them.")
    ] = "local",
    engine_options: Annotated[
        str, typer.Option("--engine-options", help="Its options, a JSON object; as in the DAG.")
    ] = "{}",
    fleet: Annotated[Path | None, FleetOption] = None,
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
        options = json_object(engine_options, option="--engine-options", example='{"num_nodes": 2}')
        read = read_fleet_file(fleet)
        ask = _asker(airflow_api, token, without_airflow=without_airflow)
        reapers = _reapers(engine, options, state_root, read, store, owner, ask)
        gangs = [_reap(console, reaper, _gangs(name), yes=yes) for name, reaper in reapers.items()]
        claimed = _claim_reapers(engine, options, state_root, read, store, ask)
        claims = [_reap(console, reaper, _claims(engine), yes=yes) for reaper in claimed]
        leases = [_reap(console, reaper, _leases(name), yes=yes) for name, reaper in lease_reapers.items()]
    except LlmschedError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    if any(each.has_trouble for each in (*gangs, *claims, *leases)):
        raise typer.Exit(EXIT_FAILED)
    would = "" if yes else _would(*(sum(each.num_condemned for each in found) for found in (gangs, claims, leases)))
    if would:
        console.print(f"would {would}: repeat with --yes", soft_wrap=True)
        raise typer.Exit(EXIT_WOULD_REAP)


def _would(num_runs: int, num_claims: int, num_leases: int) -> str:
    """Return what is left to reap, in words; empty: nothing."""
    if not (num_runs or num_claims or num_leases):
        return ""
    also = f", give back what {num_claims} runs claim" if num_claims else ""
    also += f" and give back {num_leases} leases" if num_leases else ""
    return f"stop what lives of {num_runs} runs{also}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """What came of one engine's gangs or claims, or one cloud's leases."""

    num_condemned: int
    has_trouble: bool


class _Found(Protocol):
    @property
    def verdict(self) -> Reap | Spare: ...


class _Ended(Protocol):
    @property
    def trouble(self) -> str: ...


_F = TypeVar("_F", bound=_Found)
_D = TypeVar("_D", bound=_Ended)
_D_co = TypeVar("_D_co", bound=_Ended, covariant=True)


class _Reaper(Protocol[_F, _D_co]):
    def look(self) -> Sequence[_F]: ...

    def reap(self, finding: _F, /) -> _D_co: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind(Generic[_F, _D]):
    """How one kind is shown: cells by ``columns``, then its DAG and DAG run; ``told``: its name and what ended."""

    where: str
    nothing: str = ""
    columns: tuple[str, ...]
    row: Callable[[_F], tuple[str | None, ...]]
    told: Callable[[_D], tuple[str, Sequence[str]]]


def _reapers(  # noqa: PLR0917 - what one call of the command has opened
    name: str,
    options: dict[str, Any],
    state_root: Path,
    fleet: Fleet | None,
    store: ObjectStore,
    owner: str,
    ask: AskAirflow,
) -> dict[str, Reaper]:
    """Return a reaper for each engine, each by itself: a cluster that is silent keeps nobody from the others."""
    names = [each.name for each in clusters_of(name, fleet)] if names_cluster(name, fleet) else [name]
    opened = {each: open_engine(each, options, state_root=state_root, fleet=fleet) for each in names}
    return {
        each: _reaper(store, owner, engine, ask, open_ground(engine, each, fleet, store=store, clock=SystemClock()))
        for each, engine in opened.items()
    }


def _reaper(store: ObjectStore, owner: str, engine: Engine, ask: AskAirflow, ground: Ground | None) -> Reaper:
    return Reaper(
        store=store,
        deployment_id=owner,
        engine=engine,
        open_witness=open_witness,
        ask=ask,
        clock=SystemClock(),
        ground=ground,
    )


def _claim_reapers(  # noqa: PLR0917 - what one call of the command has opened
    name: str, options: dict[str, Any], state_root: Path, fleet: Fleet | None, store: ObjectStore, ask: AskAirflow
) -> list[ClaimReaper]:
    """Return a reaper for all claims to an engine's machines. All clusters of a fleet are looked at as one."""
    opened = open_engine(name, options, state_root=state_root, fleet=fleet)
    grounds = open_grounds(opened, name, fleet, store=store, clock=SystemClock())
    return [ClaimReaper(each, store=store, engine=opened, ask=ask, clock=SystemClock()) for each in grounds]


def _reap(console: Console, reaper: _Reaper[_F, _D], kind: _Kind[_F, _D], *, yes: bool) -> _Done:
    """Show what one reaper finds, and have it end what nobody needs where that is asked for."""
    is_whole = True
    try:
        findings = reaper.look()
    except PartlySeenError as error:
        typer.echo(f"error: {kind.where}: could not look everywhere: {error}", err=True)
        findings, is_whole = error.seen, False
    except LlmschedError as error:
        typer.echo(f"error: {kind.where}: {error}", err=True)
        return _Done(num_condemned=0, has_trouble=True)
    if findings:
        console.print(_table(kind, findings))
    elif kind.nothing and is_whole:
        console.print(escape(kind.nothing))
    condemned = [finding for finding in findings if isinstance(finding.verdict, Reap)]
    reaped = [reaper.reap(finding) for finding in condemned] if yes else []
    for each in reaped:
        name, ended = kind.told(each)
        for line in ended:
            console.print(escape(line), soft_wrap=True)
        if each.trouble:
            console.print(f"[yellow]{escape(name)}: {escape(each.trouble)}[/yellow]", soft_wrap=True)
    return _Done(num_condemned=len(condemned), has_trouble=not is_whole or any(each.trouble for each in reaped))


def _table(kind: _Kind[_F, _D], findings: Sequence[_F]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in (*kind.columns, "DAG", "DAG run", "verdict", "why"):
        table.add_column(escape(name), overflow="fold")
    for finding in findings:
        verdict = "[red]reap[/red]" if isinstance(finding.verdict, Reap) else "[green]spare[/green]"
        cells = (escape(cell or "?") for cell in kind.row(finding))
        table.add_row(*cells, verdict, escape(finding.verdict.reason))
    return table


def _gangs(engine: str) -> _Kind[Finding, Reaped]:
    return _Kind(
        where=engine,
        nothing=f"nothing lives on {engine}",
        columns=(f"what lives on {engine}",),
        row=lambda found: (
            "\n".join(handle.key.name for handle in found.handles),
            found.facts.dag_id,
            found.facts.run_id,
        ),
        told=lambda done: (done.run_key, [f"stopped {each}" for each in done.stopped]),
    )


def _claims(engine: str) -> _Kind[ClaimFinding, ClaimReaped]:
    return _Kind(
        where=engine,
        columns=(f"who claims {engine}", "accelerators"),
        row=lambda found: (
            found.run,
            "waits" if found.claim.waits else str(found.claim.num_held),
            found.claim.dag_id,
            found.claim.run_id,
        ),
        told=lambda done: (done.run, [f"gave back what {done.run} claimed"] if done.is_gone else []),
    )


def _leases(cloud: str) -> _Kind[LeaseFinding, LeaseReaped]:
    return _Kind(
        where=cloud,
        nothing=f"nothing is rented in {cloud}",
        columns=(f"rented in {cloud}", "nodes"),
        row=lambda found: (
            found.lease.id,
            str(found.lease.num_nodes),
            found.lease.origin.dag_id if found.lease.origin else None,
            found.lease.origin.run_id if found.lease.origin else None,
        ),
        told=lambda done: (done.lease_id, [f"gave back {done.lease_id}"] if done.is_gone else []),
    )


def _asker(airflow_api: str, token: str, *, without_airflow: bool) -> AskAirflow:
    if airflow_api and without_airflow:
        raise SpecError(path="--without-airflow", hint="contradicts --airflow-api: give one of them")
    if airflow_api:
        return RestWord(airflow_api, token=token)
    word = AirflowWord.UNKNOWN if without_airflow else AirflowWord.COULD_NOT_ASK
    return lambda _dag_id, _run_id: word


def _lease_reapers(clouds: str, store: ObjectStore, owner: str) -> dict[str, LeaseReaper]:
    """Return a reaper for each cloud. Connections are Airflow's: here the SDKs find credentials their own way."""
    example = '{"aws": {"regions": ["us-east-1"]}}'
    reapers = {}
    for name, options in json_object(clouds, option="--clouds", example=example).items():
        if not isinstance(options, dict):
            raise SpecError(path=f"clouds.{name}", value=options, hint=f"must be a JSON object as in {example}")
        if "conn_id" in options:
            hint = "is for Airflow: leave it out, and give credentials in the cloud's own way, such as its environment"
            raise SpecError(path=f"clouds.{name}.conn_id", value=options["conn_id"], hint=hint)
        cloud = open_adapter(name, options, store=store, clock=SystemClock())
        reapers[name] = LeaseReaper(store=store, deployment_id=owner, cloud=cloud, clock=SystemClock())
    return reapers
