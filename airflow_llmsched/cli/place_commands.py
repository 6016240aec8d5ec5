"""``llmsched place``: where gangs would go on a fleet that a file describes, and what they would do to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_llmsched import registry
from airflow_llmsched.cli.plan_calibration import CalibratedOption, kept_calibration
from airflow_llmsched.cli.plan_commands import EXIT_BAD_SPEC, EXIT_NO_PLAN
from airflow_llmsched.cli.plan_settings import (
    Target,
    WiringOption,
    read_target,
    read_wiring,
    settings_of,
    write_settings,
)
from airflow_llmsched.cli.plan_topology import MeasuredOption, read_topology
from airflow_llmsched.codec import to_json
from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.node_topology import NodeTopology
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.contention.planned import job_graph
from airflow_llmsched.planner.export.filter import expressible_by
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.side_by_side import PlannedGang, SideBySide, contention, plan_in_order
from airflow_llmsched.ports import PlacementSolver
from airflow_llmsched.registry import DEFAULT_SOLVER, AdapterGroup
from airflow_llmsched.reports import graph_files, placement_page
from airflow_llmsched.reports.files import replace_file
from airflow_llmsched.reports.placement_page import PlacedGang
from airflow_llmsched.specs import loader

MAX_NODES_NAMED = 4


def place(  # noqa: PLR0917 - the options of a command
    specs: Annotated[list[Path], typer.Argument(help="Workload specs in YAML, in the order of placing.")],
    topology: Annotated[Path, typer.Option(help="The fleet, in any form that `llmsched topology show` knows.")],
    shape: Annotated[str | None, typer.Option(help="Node shape of nodes that the file only names.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Slots of nodes that the file only names.")] = None,
    sharp: Annotated[bool, typer.Option("--sharp", help="Switches of the network add up (SHARP).")] = False,
    solver: Annotated[str, typer.Option(help="Who chooses nodes: a placement solver by name.")] = DEFAULT_SOLVER,
    seed: Annotated[int, typer.Option(help="For solvers that draw at random.")] = 0,
    write_out: Annotated[
        list[str] | None,
        typer.Option(help="Write the plan out, as `llmsched plan` does; for one SPEC only.", metavar="TOOL[:FILE]"),
    ] = None,
    wiring: WiringOption = None,
    measured: MeasuredOption = None,
    state_root: CalibratedOption = None,
    graphs: Annotated[
        Path | None, typer.Option(help="Write the fleet and each gang as GraphML files to this folder.", metavar="DIR")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with figures to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print plans and sentences as JSON.")] = False,
) -> None:
    """Place SPECS on a fleet, one after the other, and say what they do to each other there."""
    try:
        targets = _targets(write_out or (), specs, as_json=as_json)
        joined = read_wiring(wiring)
        tree = read_topology(topology, shape, slots, sharp=sharp, beside=(), measured=measured or ()).wired(joined)
        workloads = [loader.load(spec) for spec in specs]
        expresses = expressible_by([each.tool for each in targets], workloads[0]) if targets else None
        shapes = node_shapes()
        gangs = plan_in_order(
            workloads,
            tree,
            shapes,
            solver=_solver(solver),
            expresses=expresses,
            seed=seed,
            calibration=kept_calibration(state_root),
        )
        result = SideBySide(gangs=gangs, told=contention(gangs, tree, shapes))
        _show(result, as_json=as_json)
        _write(result, tree, shapes, targets=targets, wiring=joined, graphs=graphs, html=html)
    except SpecError as error:
        for each in error.errors:
            typer.echo(f"error: {each}", err=True)
        raise typer.Exit(EXIT_BAD_SPEC) from None
    if any(gang.plan is None for gang in gangs):
        raise typer.Exit(EXIT_NO_PLAN)


def _targets(write_out: Sequence[str], specs: Sequence[Path], *, as_json: bool) -> list[Target]:
    if write_out and len(specs) > 1:
        raise typer.BadParameter(
            "is for one SPEC: place the others first, and leave out what they take", param_hint="--write-out"
        )
    return [read_target(each, needs_file=as_json) for each in write_out]


def _solver(name: str) -> PlacementSolver:
    try:
        solver: PlacementSolver = registry.load(AdapterGroup.PLACEMENT_SOLVERS, name)()
    except SpecError as error:
        raise SpecError(path="--solver", value=name, hint=error.hint) from None
    return solver


def _show(result: SideBySide, *, as_json: bool) -> None:
    if as_json:
        typer.echo(to_json(result.by_name()))
        return
    console = Console()
    console.print(_table(result.gangs))
    for sentence in (*_without_place(result.gangs), *result.told):
        console.print(Text(f"\n{sentence}"))


def _without_place(gangs: Sequence[PlannedGang]) -> list[str]:
    return [f"{gang.name} has no place: {_why(gang)}" for gang in gangs if gang.plan is None]


def _why(gang: PlannedGang) -> str:
    reasons = "; ".join(f"{number:,} x {reason}" for reason, number in list(gang.found.rejections.items())[:3])
    return ". ".join(filter(None, (reasons, gang.found.relaxation))) or "no layout is legal"


def _table(gangs: Sequence[PlannedGang]) -> Table:
    table = Table(title="Gangs in the order of placing", title_justify="left")
    for heading in ("gang", "layout", "nodes"):
        table.add_column(heading, overflow="fold")
    for heading in ("ranks/nodes", "domains", "s/step"):
        table.add_column(heading, justify="right", no_wrap=True)
    for gang in gangs:
        plan = gang.plan
        if plan is None:
            table.add_row(Text(gang.name), "-", "-", "-", "-", "-")
            continue
        nodes = plan.placement.nodes
        more = f" and {len(nodes) - MAX_NODES_NAMED} more" if len(nodes) > MAX_NODES_NAMED else ""
        table.add_row(
            Text(gang.name),
            plan.layout.describe(),
            Text(", ".join(nodes[:MAX_NODES_NAMED]) + more),
            f"{plan.layout.world_size}/{len(nodes)}",
            str(plan.num_domains),
            f"{plan.prediction.step_s:.3g}",
        )
    return table


def _write(
    result: SideBySide,
    tree: TopologyTree,
    shapes: Mapping[str, NodeShape],
    *,
    targets: Sequence[Target],
    wiring: NodeTopology | None,
    graphs: Path | None,
    html: Path | None,
) -> None:
    placed = [
        PlacedGang(
            name=gang.name, plan=gang.plan, job=job_graph(gang.workload, gang.plan, shapes[gang.plan.node_shape])
        )
        for gang in result.gangs
        if gang.plan is not None
    ]
    if targets and placed:
        gang = result.gangs[0]
        write_settings(
            [
                (settings_of(target.tool, gang.workload, gang.found, number=1, wiring=wiring, tree=tree), target)
                for target in targets
            ]
        )
    if graphs is not None and placed:
        _write_graphs(graphs, ClusterGraph(tree, shapes[placed[0].plan.node_shape]), placed)
    if html is not None:
        placement_page.write(tree, placed, [*_without_place(result.gangs), *result.told], html)


def _write_graphs(folder: Path, cluster: ClusterGraph, placed: Sequence[PlacedGang]) -> None:
    files = {"cluster.graphml": graph_files.cluster_graphml(cluster)}
    for number, gang in enumerate(placed, start=1):
        files[f"gang-{number}.graphml"] = graph_files.job_graphml(gang.job, gang.plan.placement)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            replace_file(folder / name, data)
    except OSError as error:
        raise SpecError(path="--graphs", value=str(folder), hint=f"cannot be written: {error.strerror}") from None
