"""``llmsched plan --topology``: plans on a topology that a file describes, in any form that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from airflow_llmsched.cli.topology_sources import Asked, read_tree
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import DataError, SpecError
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.topology.reading import Machines

TopologyOption = Annotated[
    Path | None,
    typer.Option(
        "--topology",
        help="Plan on what this file describes; --shape and --slots say what nodes are that it only names.",
    ),
]

MeasuredOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--measured",
        help="Output of nccl-tests, or a run's preflight.json: overrides links of --topology. Repeatable.",
    ),
]


def read_topology(
    file: Path,
    shape: str | None,
    slots: int | None,
    *,
    sharp: bool,
    beside: tuple[object | None, ...],
    measured: Sequence[Path] = (),
) -> TopologyTree:
    """Return the topology of a file, with what was ``measured``; what is odd about it is told on stderr.

    Raises:
        typer.BadParameter: an option ``beside`` it describes a fleet, too.
        SpecError: the file cannot be read, or no such shape.
    """
    if any(each is not None for each in beside):
        hint = "lists what --gpus, --nodes, --usd-per-hour and --fleet describe: give one of them"
        raise typer.BadParameter(hint, param_hint="--topology")
    machines = Machines(num_slots=slots) if shape is None else Machines(shape=node_shape(shape).name, num_slots=slots)
    try:
        reading = read_tree(file, Asked(machines=machines, measured=tuple(measured)))
    except DataError as error:
        raise SpecError(path="--topology", hint=str(error)) from error
    for what, number in reading.warnings.items():
        typer.echo(f"warning: {number:,} x {what}", err=True)
    return replace(reading.tree, switches_reduce=True) if sharp else reading.tree
