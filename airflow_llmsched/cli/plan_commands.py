"""``llmsched plan``: the best ways to run a spec on a described fleet, before anything is rented or started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_llmsched.codec import to_json
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.explain import explain
from airflow_llmsched.planner.perf.hardware import LOCAL_SHAPE, node_shape
from airflow_llmsched.planner.placement.bestfit import BestFitSolver
from airflow_llmsched.planner.placement.feasible import NODE_LEVEL
from airflow_llmsched.planner.search import search
from airflow_llmsched.specs import loader
from airflow_llmsched.units import GIB

EXIT_BAD_SPEC = 1
EXIT_NO_PLAN = 3
"""No plan fits. Not 2, which is what a command line that makes no sense gets."""
MAX_ROWS = 10


def plan(  # noqa: PLR0917 - the options of a command
    spec: Annotated[Path, typer.Argument(help="A workload spec in YAML.", show_default=False)],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the fleet, all free.")] = 1,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Slots (accelerators) of each node; the shape's own number by default.")
    ] = None,
    shape: Annotated[str, typer.Option(help="Node shape, by its cloud's name.")] = LOCAL_SHAPE,
    usd_per_hour: Annotated[
        float | None, typer.Option(min=0.0, help="Price of a node of the shape, instead of its list price.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the search as JSON.")] = False,
) -> None:
    """Plan SPEC on NODES like machines: layouts worth having, what was turned down, and why."""
    try:
        workload = loader.load(spec)
        node = node_shape(shape, usd_per_hour=usd_per_hour)
        tree = flat_tree(workload, num_nodes=nodes, num_slots=slots or node.num_accelerators, shape=node.name)
        found = search(workload, tree, {node.name: node}, solver=BestFitSolver())
    except SpecError as error:
        for each in error.errors:
            typer.echo(f"error: {each}", err=True)
        raise typer.Exit(EXIT_BAD_SPEC) from None
    if as_json:
        typer.echo(to_json(found))
    else:
        _print(workload, found)
    if not found.plans:
        raise typer.Exit(EXIT_NO_PLAN)


def flat_tree(workload: WorkloadSpec, *, num_nodes: int, num_slots: int, shape: str) -> TopologyTree:
    """Return like nodes side by side, in one domain of every level that the workload's wishes name."""
    named = dict.fromkeys(wish.level for wish in workload.placement if wish.level != NODE_LEVEL)
    levels = tuple(named) or ("fleet",)
    return TopologyTree(
        levels=levels,
        nodes=tuple(
            TopologyNode(
                id=NodeId(f"node-{number:05d}"),
                path=tuple(f"{level}-0" for level in levels),
                shape=shape,
                num_slots=num_slots,
                num_free_slots=num_slots,
            )
            for number in range(num_nodes)
        ),
    )


def _print(workload: WorkloadSpec, found: PlanSearch) -> None:
    console = Console()
    if found.plans:
        console.print(_table(workload, found.plans))
    # Text, not str: square brackets in a name are the user's, not markup
    console.print(Text(explain(found)))


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
