"""``llmsched plan``: the best ways to run a spec on a described fleet, before anything is rented or started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_llmsched.cli.plan_fleet import Fleet, read_fleet
from airflow_llmsched.cli.plan_mixed import BETWEEN_SHAPES, plan_on_kinds, refuse_beside
from airflow_llmsched.cli.plan_settings import Target, read_target, settings_of, write_settings
from airflow_llmsched.codec import to_json
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.explain import explain_plan
from airflow_llmsched.planner.export.filter import expressible_by
from airflow_llmsched.planner.export.planned import planned_run
from airflow_llmsched.planner.export.tools import TOOLS, able_tools
from airflow_llmsched.planner.flat_tree import flat_tree
from airflow_llmsched.planner.perf.hardware import LOCAL_SHAPE
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.search import search
from airflow_llmsched.reports import plan_page
from airflow_llmsched.specs import loader
from airflow_llmsched.units import GIB

EXIT_BAD_SPEC = 1
EXIT_NO_PLAN = 3
"""No plan fits. Not 2, which is what a command line that makes no sense gets."""
MAX_ROWS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A workload, what was found for it, and that in words."""

    workload: WorkloadSpec
    found: PlanSearch
    words: str


def plan(  # noqa: PLR0917 - the options of a command
    spec: Annotated[Path, typer.Argument(help="A workload spec in YAML.", show_default=False)],
    gpus: Annotated[
        str | None,
        typer.Option(
            help="Accelerators of the fleet and their node shape, as in 64xp5.48xlarge; several with commas between.",
            metavar="N[xSHAPE]",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes of the fleet, all free, instead of --gpus.", show_default="1")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Slots (accelerators) of each node; the shape's own number by default.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="Node shape, by its cloud's name.", show_default=LOCAL_SHAPE)
    ] = None,
    usd_per_hour: Annotated[
        float | None, typer.Option(min=0.0, help="Price of a node of the shape, instead of its list price.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the search as JSON.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with figures to this file.")] = None,
    write_out: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Write the plan out as a tool's settings, to FILE or below the table. Tools: {', '.join(TOOLS)}.",
            metavar="TOOL[:FILE]",
        ),
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option("--for", help="Plan only what this tool can express, as --write-out does.", metavar="TOOL"),
    ] = None,
    number: Annotated[int, typer.Option("--plan", min=1, help="Which plan of the table to write out.")] = 1,
    may_offload: Annotated[
        bool, typer.Option("--may-offload", help="Where nothing fits, plan with offload to host or disks.")
    ] = False,
) -> None:
    """Plan SPEC on a fleet: layouts worth having, what was turned down, and why; of several shapes, who does what."""
    try:
        targets = [read_target(each, needs_file=as_json) for each in write_out or ()]
        if gpus is not None and BETWEEN_SHAPES in gpus:
            refuse_beside(nodes, slots, shape, usd_per_hour, html, write_out, trainer, may_offload or None)
            raise typer.Exit(0 if plan_on_kinds(spec, gpus, as_json=as_json) else EXIT_NO_PLAN)
        fleet = read_fleet(gpus, nodes=nodes, slots=slots, shape=shape, usd_per_hour=usd_per_hour)
        tools = [*filter(None, [trainer]), *(each.tool for each in targets)]
        planned = _plan(spec, fleet, tools=tools, may_offload=may_offload)
        _show(planned, as_json=as_json, html=html)
        if planned.found.plans:
            _write_out(planned, targets, number=number)
    except SpecError as error:
        for each in error.errors:
            typer.echo(f"error: {each}", err=True)
        raise typer.Exit(EXIT_BAD_SPEC) from None
    if not planned.found.plans:
        raise typer.Exit(EXIT_NO_PLAN)


def _plan(spec: Path, fleet: Fleet, *, tools: Sequence[str], may_offload: bool) -> _Planned:
    workload = loader.load(spec)
    expresses = expressible_by(tools, workload) if tools else None
    node = fleet.shape
    tree = flat_tree(workload, num_nodes=fleet.num_nodes, num_slots=fleet.num_slots, shape=node.name)
    shapes, solver = {node.name: node}, BestFitSolver()
    found = search(workload, tree, shapes, solver=solver, expresses=expresses, may_offload=may_offload)
    words = explain_plan(workload, found, shapes, expresses=expresses)
    return _Planned(workload=workload, found=found, words=words)


def _show(planned: _Planned, *, as_json: bool, html: Path | None) -> None:
    if as_json:
        typer.echo(to_json(planned.found))
    else:
        _print(planned)
    if html is not None:
        plan_page.write(planned.workload, planned.found, planned.words, html)


def _print(planned: _Planned) -> None:
    console = Console()
    if planned.found.plans:
        console.print(_table(planned.workload, planned.found.plans))
    # Text, not str: square brackets in a name are the user's, not markup
    console.print(Text(planned.words))
    if planned.found.plans:
        able = able_tools(planned_run(planned.workload, planned.found.plans[0]))
        names = f"\nThe first plan can be written out (--write-out) for {', '.join(able)}"
        console.print(Text(names + ("." if set(able) >= set(TOOLS) else "; --for TOOL plans for another.")))


def _write_out(planned: _Planned, targets: list[Target], *, number: int) -> None:
    for target in targets:
        settings = settings_of(target.tool, planned.workload, planned.found, number=number)
        write_settings(settings, target)


def _table(workload: WorkloadSpec, plans: tuple[Plan, ...]) -> Table:
    table = Table(title=Text(f"{workload.name}: plans, best first"), title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("layout", min_width=22, overflow="fold")
    for heading in ("ranks/nodes", "s/step", "MFU", "GiB/rank", "USD/h"):
        table.add_column(heading, justify="right", no_wrap=True)
    if len(plans) > MAX_ROWS:
        table.caption = f"{len(plans) - MAX_ROWS} more with --json"
    for number, each in enumerate(plans[:MAX_ROWS], start=1):
        prediction = each.prediction
        table.add_row(
            str(number),
            f"{each.layout.describe()} recompute={each.layout.recompute.value}",
            f"{each.layout.world_size}/{len(each.placement.nodes)}",
            f"{prediction.step_s:.3g}",
            f"{prediction.mfu_ratio:.1%}",
            f"{prediction.memory_bytes_per_rank / GIB:.2f}",
            f"{prediction.usd_per_hour:,.2f}",
        )
    return table
