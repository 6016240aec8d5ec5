"""``llmsched plan --write-out``: a plan as the settings of a tool, to a file or to the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from airflow_llmsched.cli.topology_sources import Asked, Format, read_source
from airflow_llmsched.domain.node_topology import NodeTopology
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import DataError, SpecError
from airflow_llmsched.planner.export.planned import planned_run
from airflow_llmsched.planner.export.tools import Settings, find_tool, write_out
from airflow_llmsched.reports.files import replace_file
from airflow_llmsched.topology.nvidia_smi import NodeReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to write out, and where to: None is the screen."""

    tool: str
    path: Path | None


def read_target(text: str, *, needs_file: bool) -> Target:
    """Return what ``TOOL[:FILE]`` says.

    Raises:
        SpecError: there is no such tool.
        typer.BadParameter: a file is needed, as the screen is taken.
    """
    tool, _, path = text.partition(":")
    find_tool(tool, path="--write-out")
    if needs_file and not path:
        raise typer.BadParameter(f"{tool} needs a file beside --json, as in {tool}:FILE", param_hint="--write-out")
    return Target(tool=tool, path=Path(path) if path else None)


WiringOption = Annotated[
    Path | None,
    typer.Option(
        "--wiring", help="Output of nvidia-smi topo -m on one node: cards and NUMA nodes of written-out ranks."
    ),
]


def read_wiring(path: Path | None) -> NodeTopology | None:
    """Return what joins the devices of each node, None without a file. Raises ``SpecError``."""
    if path is None:
        return None
    try:
        reading = read_source(path, Asked(format=Format.NVIDIA_SMI))
    except DataError as error:
        raise SpecError(path="--wiring", hint=str(error)) from error
    return reading.node if isinstance(reading, NodeReading) else None


def settings_of(
    tool: str,
    workload: WorkloadSpec,
    found: PlanSearch,
    *,
    number: int,
    wiring: NodeTopology | None = None,
    tree: TopologyTree | None = None,
) -> Settings:
    """Return one plan as settings of ``tool``. Raises ``SpecError``: no such plan, or one that it cannot express."""
    if number > len(found.plans):
        raise SpecError(path="--plan", value=number, hint=f"there are {len(found.plans)} plans")
    return write_out(tool, planned_run(workload, found.plans[number - 1], wiring=wiring, tree=tree))


def write_settings(written: Sequence[tuple[Settings, Target]]) -> None:
    """Write settings to their targets' files, or print them; say what is left to do either way, each thing once.

    Raises:
        SpecError: a file cannot be written.
    """
    tools_by_note: dict[str, list[str]] = {}
    for settings, target in written:
        _write(settings, target)
        for note in settings.notes:
            tools_by_note.setdefault(note, []).append(target.tool)
    for note, tools in tools_by_note.items():
        whose = "" if len(tools) == len(written) else f" on {', '.join(tools)}"
        typer.echo(f"note{whose}: {note}", err=True)


def _write(settings: Settings, target: Target) -> None:
    if target.path is None:
        typer.echo(f"\n{settings.file_name}:\n{settings.text}", nl=False)
        return
    try:
        replace_file(target.path, settings.text.encode())
    except OSError as error:
        raise SpecError(path=str(target.path), hint=f"cannot be written: {error.strerror}") from None
