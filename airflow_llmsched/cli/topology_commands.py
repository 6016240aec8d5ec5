"""``llmsched topology``: what a fleet's network looks like by any source, what is free in it, and what has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from airflow_llmsched.cli.engines import json_object, open_engine, open_links, read_fleet_file
from airflow_llmsched.cli.fleet_commands import FleetOption
from airflow_llmsched.cli.state_root import state_root_option
from airflow_llmsched.cli.topology_sources import Asked, Format, override, read_source, read_tree
from airflow_llmsched.cli.topology_view import checked, differences, domains, links, node_links
from airflow_llmsched.codec import to_json
from airflow_llmsched.domain.topology import NetworkLevel
from airflow_llmsched.errors import LlmschedError, SpecError
from airflow_llmsched.reports import topology_diff_page, topology_page
from airflow_llmsched.topology.comparison import compare
from airflow_llmsched.topology.link_records import measured_by_shape
from airflow_llmsched.topology.nvidia_smi import NodeReading
from airflow_llmsched.topology.reading import Machines, Reading

EXIT_BAD_SOURCE = 1
EXIT_DIFFERS = 3


class Action(StrEnum):
    """What to do with the sources."""

    SHOW = "show"
    DIFF = "diff"


_Sources = Annotated[list[Path] | None, typer.Argument(metavar="SOURCE...", help="Files, in any form that is known.")]
_FormatOption = Annotated[Format, typer.Option("--format", help="What the files hold. auto: look into them.")]
_ShapeOption = Annotated[
    str | None, typer.Option("--shape", help="Kind of node, for sources that only name nodes.", show_default=False)
]
_SlotsOption = Annotated[
    int | None, typer.Option("--slots", min=1, help="Slots of each such node. Default: those of the shape.")
]
_NameOption = Annotated[
    str | None, typer.Option("--name", help="Which topology, where a topology.yaml or a list has several.")
]
_ResourceOption = Annotated[
    str | None, typer.Option("--resource", help="Kubernetes resource that is a slot, if none that is known.")
]
_NetworkOption = Annotated[
    Path | None,
    typer.Option("--network", help="Where nodes hang by this file, such as ibnetdiscover's, which names them alike."),
]
_MeasuredOption = Annotated[
    list[Path] | None,
    typer.Option("--measured", help="Output of nccl-tests, or a run's preflight.json: overrides links. Repeatable."),
]
_EngineOption = Annotated[
    str | None, typer.Option("--engine", help="Ask this engine, or cluster of --fleet, as the last source.")
]
_EngineOptions = Annotated[str, typer.Option("--engine-options", help="Its options, a JSON object; as in the DAG.")]
_StateRootOption = Annotated[
    Path | None,
    state_root_option("The state root, for --engine."),
]
_JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the topology as JSON, which is a source as well; of diff, what differs.")
]


def topology(  # noqa: PLR0917 - the options of a command
    action: Annotated[Action, typer.Argument(help="show: draw one source. diff: what changed from one to the other.")],
    sources: _Sources = None,
    format_: _FormatOption = Format.AUTO,
    shape: _ShapeOption = None,
    slots: _SlotsOption = None,
    name: _NameOption = None,
    resource: _ResourceOption = None,
    network: _NetworkOption = None,
    measured: _MeasuredOption = None,
    engine: _EngineOption = None,
    engine_options: _EngineOptions = "{}",
    fleet: Annotated[Path | None, FleetOption] = None,
    state_root: _StateRootOption = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with a figure to this file.")] = None,
    as_json: _JsonOption = False,
    with_nodes: Annotated[bool, typer.Option("--nodes", help="List every node, however many there are.")] = False,
) -> None:
    """Show the topology that a file or an engine tells: domains, what is free in them, and links; or compare two.

    Exit code: 0 done, or nothing differs; 1 a source cannot be read; 3 something differs.
    """
    try:
        asked = Asked(
            format=format_,
            machines=Machines(shape=shape or Machines().shape, num_slots=slots),
            topology=name,
            resource=resource,
            network=network,
            measured=tuple(measured or ()),
        )
        asks = _engine(engine, engine_options, fleet, state_root) if engine is not None else None
        _check_number(action, len(sources or ()) + (asks is not None))
        if action is Action.DIFF:
            differs = _diff(_read_all(sources or (), asked, asks), html=html, as_json=as_json)
        else:
            differs = _show(sources or (), asked, asks, html=html, as_json=as_json, with_nodes=with_nodes)
    except LlmschedError as error:
        for each in error.errors if isinstance(error, SpecError) else (error,):
            typer.echo(f"error: {each}", err=True)
        raise typer.Exit(EXIT_BAD_SOURCE) from None
    if differs:
        raise typer.Exit(EXIT_DIFFERS)


def _check_number(action: Action, number: int) -> None:
    needed = 2 if action is Action.DIFF else 1
    if number != needed:
        hint = f"{action.value} takes {needed}, and --engine counts as one: there are {number}"
        raise typer.BadParameter(hint, param_hint="SOURCE")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asks:
    """What an engine tells, and what checks of nodes measured of its links, by the shape of nodes."""

    reading: Reading
    measured: Mapping[str, Sequence[NetworkLevel]]


def _engine(name: str, options: str, fleet: Path | None, state_root: Path | None) -> _Asks:
    """Ask an engine for its topology. Raises ``SpecError``, or whatever keeps it from looking."""
    given = json_object(options, option="--engine-options", example='{"num_nodes": 2}')
    if state_root is None:
        raise SpecError(path="--state-root", hint="is needed to ask an engine: what its gangs have is noted there")
    known = read_fleet_file(fleet)
    opened = open_engine(name, given, state_root=state_root, fleet=known)
    tree = opened.topology()
    records = open_links(opened, name, given, state_root=state_root, fleet=known).counted()
    return _Asks(reading=Reading(tree=tree), measured=measured_by_shape(records, tree))


def _read_all(sources: Sequence[Path], asked: Asked, asks: _Asks | None) -> list[tuple[str, Reading]]:
    found = [(str(path), read_tree(path, asked)) for path in sources]
    return [*found, *([("the engine", override(asks.reading, asked))] if asks is not None else [])]


def _show(
    sources: Sequence[Path], asked: Asked, asks: _Asks | None, *, html: Path | None, as_json: bool, with_nodes: bool
) -> bool:
    if sources and asks is None:
        source = read_source(sources[0], asked)
        if isinstance(source, NodeReading):
            _show_node(source, html=html, as_json=as_json)
            return False
    [(name, reading)] = _read_all(sources, asked, asks)
    measured = {} if asks is None else asks.measured
    _warn(reading)
    if as_json:
        typer.echo(to_json(reading.tree))
    else:
        console = Console()
        console.print(domains(reading.tree, with_nodes=with_nodes))
        console.print(Text(links(reading.tree)))
        if measured:
            console.print(Text(checked(measured)))
    if html is not None:
        topology_page.write(reading.tree, html, source=name, warnings=reading.warnings, measured=measured)
    return False


def _show_node(reading: NodeReading, *, html: Path | None, as_json: bool) -> None:
    if html is not None:
        raise SpecError(path="--html", hint="draws fleets: the links of one node are a table already")
    _warn(reading)
    if as_json:
        typer.echo(to_json(reading.node))
    else:
        Console().print(node_links(reading.node))


def _diff(readings: Sequence[tuple[str, Reading]], *, html: Path | None, as_json: bool) -> bool:
    (before_name, before), (after_name, after) = readings
    for reading in (before, after):
        _warn(reading)
    comparison = compare(before.tree, after.tree)
    if html is not None:
        topology_diff_page.write(before.tree, after.tree, html, names=(before_name, after_name))
    console = Console()
    if as_json:
        typer.echo(to_json(comparison))
    elif comparison.is_same:
        console.print(Text(f"{before_name} and {after_name} tell the same"))
    else:
        for part in differences(comparison):
            console.print(part)
    return not comparison.is_same


def _warn(reading: Reading | NodeReading) -> None:
    for what, number in reading.warnings.items():
        typer.echo(f"warning: {number:,} x {what}", err=True)
