"""``llmsched plan --fleet``: plans on what the clusters of a fleet file have free now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from airflow_llmsched.cli.engines import open_engine, open_links
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.open_arbiter import loads_of_others
from airflow_llmsched.domain.fleet import FLEET, Fleet
from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.planner.clusters import search_clusters
from airflow_llmsched.planner.contention.beside import with_note
from airflow_llmsched.planner.contention.busy import with_busy_links
from airflow_llmsched.planner.layout_table import Expresses
from airflow_llmsched.planner.links import AsMeasured
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.search import search
from airflow_llmsched.specs import fleet_file
from airflow_llmsched.topology.link_records import links_on

ClustersOption = Annotated[
    Path | None, typer.Option("--fleet", help="Plan on what the clusters of this fleet file have free now.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Those of a fleet file, and the deployment whose gangs run there."""

    fleet: Fleet
    state_root: Path


def read_clusters(file: Path, state_root: str | None, *beside: object | None) -> Clusters:
    """Return the clusters of a fleet file.

    Raises:
        typer.BadParameter: an option ``beside`` it describes a fleet, too.
        SpecError: mistakes in the file, or no state root.
    """
    if any(each is not None for each in beside):
        hint = "lists what --gpus, --nodes, --slots, --shape, --usd-per-hour and --sharp describe: give one of them"
        raise typer.BadParameter(hint, param_hint="--fleet")
    if state_root is None:
        raise SpecError(
            path="--state-root", hint="is needed with --fleet: what gangs have of its clusters is noted there"
        )
    return Clusters(fleet=fleet_file.load(file), state_root=Path(state_root))


def plan_on_clusters(
    workload: WorkloadSpec, clusters: Clusters, *, expresses: Expresses | None, calibration: Calibration | None
) -> tuple[PlanSearch, TopologyTree, AsMeasured]:
    """Return the plans as ``PlanTrainingOperator(engine="fleet")`` would find them; where, and by which links.

    Raises ``SpecError``, also when no cluster answers; ``StoreError``.
    """

    def search_on(tree: TopologyTree, shapes: Mapping[str, NodeShape]) -> PlanSearch:
        solver = FleetSolver()
        return search(
            workload,
            tree,
            shapes,
            solver=solver,
            expresses=expresses,
            calibration=calibration,
            as_measured=as_measured,
        )

    fleet, root = clusters.fleet, clusters.state_root
    try:
        engine = open_engine(FLEET, {}, state_root=root, fleet=fleet)
        tree = engine.topology()
    except CouldNotLookError as error:
        raise SpecError(path="--fleet", hint=f"cannot be planned on now: {error}") from error
    as_measured = partial(links_on, open_links(engine, FLEET, {}, state_root=root, fleet=fleet).counted())
    shapes, store = node_shapes(), open_store(str(root.expanduser().resolve()))
    loads = loads_of_others(engine, FLEET, fleet, workload, store=store, clock=SystemClock())
    beside = with_busy_links(tree, loads, shapes, as_measured=as_measured)
    found = search_clusters(workload, beside, shapes, clusters=fleet.clusters, search=search_on)
    found = with_note(found, workload, tree, shapes=shapes, loads=loads, as_measured=as_measured)
    return found, tree, as_measured
