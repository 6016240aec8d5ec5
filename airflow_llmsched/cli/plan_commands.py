"""``llmsched plan``: the best ways to run a spec on a described fleet, before anything is rented or started."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_llmsched.cli.plan_calibration import StateRootOption, kept_calibration, reckoned_with
from airflow_llmsched.cli.plan_clusters import (
    Clusters,
    ClustersOption,
    plan_on_clusters,
    read_clusters,
)
from airflow_llmsched.cli.plan_fleet import Fleet, read_fleet
from airflow_llmsched.cli.plan_mixed import BETWEEN_SHAPES, plan_on_kinds, refuse_beside
from airflow_llmsched.cli.plan_settings import (
    Target,
    WiringOption,
    read_target,
    read_wiring,
    settings_of,
    write_settings,
)
from airflow_llmsched.cli.plan_topology import MeasuredOption, TopologyOption, read_topology
from airflow_llmsched.codec import to_json
from airflow_llmsched.domain.fleet import cluster_of
from airflow_llmsched.domain.node_topology import NodeTopology
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.explain import explain_plan
from airflow_llmsched.planner.export.filter import expressible_by
from airflow_llmsched.planner.export.planned import planned_run
from airflow_llmsched.planner.export.tools import TOOLS, able_tools, find_tool
from airflow_llmsched.planner.flat_tree import flat_tree
from airflow_llmsched.planner.links import AsMeasured, as_claimed
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.planner.perf.hardware import LOCAL_SHAPE, node_shapes
from airflow_llmsched.planner.placement.fleet import FleetSolver
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
    """A workload, what was found for it, and that in words. ``tree`` is the fleet, None of several clusters."""

    workload: WorkloadSpec
    found: PlanSearch
    words: str
    tree: TopologyTree | None


_GpusOption = Annotated[
    str | None,
    typer.Option(
        help="Accelerators of the fleet and their node shape, as in 64xp5.48xlarge; several with commas between.",
        metavar="N[xSHAPE]",
    ),
]
_WriteOutOption = Annotated[
    list[str] | None,
    typer.Option(
        help=f"Write the plan out as a tool's settings, to FILE or below the table. Tools: {', '.join(TOOLS)}.",
        metavar="TOOL[:FILE]",
    ),
]
_PageOption = Annotated[Path | None, typer.Option("--html", help="Write a page with figures to this file.")]
_TrainerOption = Annotated[
    str | None,
    typer.Option("--for", help="Plan only what this tool can express, as --write-out does.", metavar="TOOL"),
]
_OffloadOption = Annotated[
    bool, typer.Option("--may-offload", help="Where nothing fits, plan with offload to host or disks.")
]
_SharpOption = Annotated[
    bool, typer.Option("--sharp", help="The operator has switched on reduction in the network's switches.")
]


def plan(  # noqa: PLR0917 - the options of a command
    spec: Annotated[Path, typer.Argument(help="A workload spec in YAML.", show_default=False)],
    gpus: _GpusOption = None,
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
    fleet_file: ClustersOption = None,
    state_root: StateRootOption = None,
    topology: TopologyOption = None,
    measured: MeasuredOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the search as JSON.")] = False,
    html: _PageOption = None,
    write_out: _WriteOutOption = None,
    wiring: WiringOption = None,
    trainer: _TrainerOption = None,
    sharp: _SharpOption = False,
    number: Annotated[int, typer.Option("--plan", min=1, help="Which plan of the table to write out.")] = 1,
    may_offload: _OffloadOption = False,
) -> None:
    """Plan SPEC on a fleet: layouts worth having, what was turned down, and why; of several shapes, who does what."""
    try:
        targets = [read_target(each, needs_file=as_json) for each in write_out or ()]
        if gpus is not None and BETWEEN_SHAPES in gpus:
            refuse_beside(nodes, slots, shape, usd_per_hour, html, write_out, trainer, topology)
            refuse_beside(may_offload or None, sharp or None, measured, wiring)
            found = plan_on_kinds(spec, gpus, calibration=kept_calibration(state_root), as_json=as_json)
            raise typer.Exit(0 if found else EXIT_NO_PLAN)
        if measured and topology is None:
            raise typer.BadParameter("overrides links of --topology, which is not given", param_hint="--measured")
        if trainer is not None:
            find_tool(trainer, path="--for")
        joined = read_wiring(wiring)
        where = _where(
            fleet_file, state_root, topology, measured or (), (gpus, nodes, slots, shape, usd_per_hour, sharp or None)
        )
        where = where.wired(joined) if isinstance(where, TopologyTree) else where
        tools = [*filter(None, [trainer]), *(each.tool for each in targets)]
        workload, calibration = _read(spec, may_offload=may_offload), kept_calibration(state_root)
        planned = _plan(workload, where, tools=tools, calibration=calibration)
        _show(planned, as_json=as_json, html=html)
        if planned.found.plans:
            _write_out(planned, targets, number=number, wiring=joined)
    except SpecError as error:
        for each in error.errors:
            typer.echo(f"error: {each}", err=True)
        raise typer.Exit(EXIT_BAD_SPEC) from None
    if not planned.found.plans:
        raise typer.Exit(EXIT_NO_PLAN)


_Where = Fleet | Clusters | TopologyTree
_Described = tuple[str | None, int | None, int | None, str | None, float | None, bool | None]


def _where(
    file: Path | None, state_root: str | None, topology: Path | None, measured: Sequence[Path], described: _Described
) -> _Where:
    gpus, nodes, slots, shape, usd_per_hour, sharp = described
    if topology is not None:
        beside = (gpus, nodes, usd_per_hour, file)
        return read_topology(topology, shape, slots, sharp=sharp is not None, beside=beside, measured=measured)
    if file is not None:
        return read_clusters(file, state_root, *described)
    return read_fleet(gpus, nodes=nodes, slots=slots, shape=shape, usd_per_hour=usd_per_hour, sharp=sharp is not None)


def _read(spec: Path, *, may_offload: bool) -> WorkloadSpec:
    workload = loader.load(spec)
    return replace(workload, parallelism=replace(workload.parallelism, may_offload=True)) if may_offload else workload


def _plan(workload: WorkloadSpec, where: _Where, *, tools: Sequence[str], calibration: Calibration | None) -> _Planned:
    expresses = expressible_by(tools, workload) if tools else None
    as_measured: AsMeasured = as_claimed
    if isinstance(where, Clusters):
        shapes = node_shapes()
        found, tree, as_measured = plan_on_clusters(workload, where, expresses=expresses, calibration=calibration)
    elif isinstance(where, TopologyTree):
        shapes, tree = node_shapes(), where
        found = search(workload, tree, shapes, solver=FleetSolver(), expresses=expresses, calibration=calibration)
    else:
        node, num_nodes, num_slots = where.shape, where.num_nodes, where.num_slots
        shapes = {node.name: node}
        tree = flat_tree(workload, num_nodes=num_nodes, num_slots=num_slots, shape=node, switches_reduce=where.sharp)
        found = search(workload, tree, shapes, solver=FleetSolver(), expresses=expresses, calibration=calibration)
    words = explain_plan(
        workload, found, tree, shapes, expresses=expresses, calibration=calibration, as_measured=as_measured
    )
    if calibration is not None:
        words += f"\n\n{reckoned_with(calibration)}"
    whole = None if isinstance(where, Clusters) else tree
    return _Planned(workload=workload, found=found, words=words, tree=whole)


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
        able = set(able_tools(planned_run(planned.workload, planned.found.plans[0])))
        trainers, others = ([name for name in TOOLS if TOOLS[name].splits is splits] for splits in (True, False))
        console.print(Text(f"\nThe first plan can be written out (--write-out) {_for_whom(trainers, others, able)}"))


def _for_whom(trainers: Sequence[str], others: Sequence[str], able: Collection[str]) -> str:
    """Say which tools can take a plan: those that train by it, and those that place or start its ranks."""
    named = [", ".join(name for name in names if name in able) for names in (trainers, others)]
    told = f"for {named[0] or 'no trainer'}, and for who starts its ranks: {named[1]}"
    return told + ("." if set(trainers) <= set(able) else "; --for TOOL plans for another.")


def _write_out(planned: _Planned, targets: list[Target], *, number: int, wiring: NodeTopology | None) -> None:
    workload, found, tree = planned.workload, planned.found, planned.tree
    write_settings(
        [
            (settings_of(target.tool, workload, found, number=number, wiring=wiring, tree=tree), target)
            for target in targets
        ]
    )


def _table(workload: WorkloadSpec, plans: tuple[Plan, ...]) -> Table:
    table = Table(title=Text(f"{workload.name}: plans, best first"), title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("layout", min_width=22, overflow="fold")
    in_fleet = any(cluster_of(node) for each in plans for node in each.placement.nodes)
    if in_fleet:
        table.add_column("cluster", overflow="fold")
    for heading in ("ranks/nodes", "s/step", "MFU", "GiB/rank", "USD/h"):
        table.add_column(heading, justify="right", no_wrap=True)
    if len(plans) > MAX_ROWS:
        table.caption = f"{len(plans) - MAX_ROWS} more with --json"
    for number, each in enumerate(plans[:MAX_ROWS], start=1):
        prediction = each.prediction
        table.add_row(
            str(number),
            f"{each.layout.describe()} {each.layout.describe_recompute()}",
            *([cluster_of(each.placement.nodes[0])] if in_fleet else []),
            f"{each.layout.world_size}/{len(each.placement.nodes)}",
            f"{prediction.step_s:.3g}",
            f"{prediction.mfu_ratio:.1%}",
            f"{prediction.memory_bytes_per_rank / GIB:.2f}",
            f"{prediction.usd_per_hour:,.2f}",
        )
    return table
