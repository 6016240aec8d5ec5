"""Asks an engine what it has, and the planner what to make of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_llmsched.registry import DEFAULT_SOLVER

if TYPE_CHECKING:
    from airflow_llmsched.control.measured_links import MeasuredLinks
    from airflow_llmsched.domain.fleet import Cluster
    from airflow_llmsched.domain.hardware import NodeShape
    from airflow_llmsched.domain.identity import NodeId
    from airflow_llmsched.domain.placement import NotPlaced, Placed, PlacementProblem
    from airflow_llmsched.domain.plan import PlanSearch
    from airflow_llmsched.domain.topology import TopologyTree
    from airflow_llmsched.domain.workload import WorkloadSpec
    from airflow_llmsched.planner.layout_table import Expresses
    from airflow_llmsched.planner.links import AsMeasured
    from airflow_llmsched.planner.perf.calibration import Calibration
    from airflow_llmsched.planner.placement.front import Front
    from airflow_llmsched.ports import Engine, PlacementSolver


class PlacementHook(BaseHook):
    """Topology, placement and planning on one engine.

    Args:
        engine: name of an engine adapter (entry-point group ``airflow_llmsched.engines``), of a cluster in the
            deployment's fleet file, or ``fleet`` for all of these; the last two take no options.
        engine_options: JSON-safe options of the engine. ``root`` defaults to a folder below the state root.
        solver: name of a placement solver (entry-point group ``airflow_llmsched.placement_solvers``).
    """

    hook_name = "LLM placement"

    def __init__(
        self, *, engine: str = "local", engine_options: Mapping[str, Any] | None = None, solver: str = DEFAULT_SOLVER
    ) -> None:
        super().__init__()
        self.engine_name = engine
        self.engine_options = dict(engine_options or {})
        self.solver_name = solver

    def get_conn(self) -> Engine:
        """Return the engine adapter."""
        from airflow_llmsched.provider.run_engine import open_run_engine

        return open_run_engine(self.engine_name, self.engine_options)

    def topology(self) -> TopologyTree:
        """Return the engine's nodes with what is free now. Raises ``CouldNotLookError``."""
        return self.get_conn().topology()

    def place(self, problem: PlacementProblem, *, time_limit_s: float = 5.0, seed: int = 0) -> Placed | NotPlaced:
        """Place one gang."""
        return self._solver().place(problem, time_limit_s=time_limit_s, seed=seed)

    def trade_offs(self, problem: PlacementProblem, *, max_options: int = 64) -> Front | NotPlaced:
        """Return the placements of one gang that no other beats in all objectives, for gangs on some dozen nodes.

        ``Front.best(weights)`` chooses one; see :func:`~airflow_llmsched.planner.placement.front.placement_front`.
        """
        from airflow_llmsched.planner.placement.front import placement_front

        return placement_front(problem, max_options=max_options)

    def plan(self, workload: WorkloadSpec, *, excluded: frozenset[NodeId] = frozenset()) -> PlanSearch:
        """Return the Pareto plans for what is free now, best by the workload's objective first."""
        return self.plan_on(workload, self.topology(), excluded)

    def plan_on(
        self,
        workload: WorkloadSpec,
        tree: TopologyTree,
        excluded: frozenset[NodeId],
        *,
        expresses: Expresses | None = None,
    ) -> PlanSearch:
        """Return the Pareto plans on a given tree of the engine's, of what the trainer ``expresses``.

        They reckon with what ``llmsched calibrate`` kept at the state root, if anything, and with what checks of nodes
        measured of the engine's links.

        Raises:
            DataError: what was calibrated cannot be read.
            StoreError: the state root could not be asked.
        """
        from airflow_llmsched.planner.clusters import search_clusters
        from airflow_llmsched.planner.perf.hardware import node_shapes
        from airflow_llmsched.planner.search import search

        as_measured = self.as_measured()

        def search_on(tree: TopologyTree, shapes: Mapping[str, NodeShape]) -> PlanSearch:
            return search(
                workload,
                tree,
                shapes,
                solver=self._solver(),
                excluded=excluded,
                seed=workload.seed,
                expresses=expresses,
                calibration=self.calibration(),
                as_measured=as_measured,
            )

        clusters = self._clusters()
        if not clusters:
            return search_on(tree, node_shapes())
        return search_clusters(workload, tree, node_shapes(), clusters=clusters, search=search_on)

    def planner_for(
        self, workload: WorkloadSpec, tools: Sequence[str]
    ) -> Callable[[WorkloadSpec, TopologyTree, frozenset[NodeId]], PlanSearch]:
        """Return :meth:`plan_on` of what all of ``tools`` can express. Raises ``SpecError`` if they cannot at all."""
        from airflow_llmsched.planner.export.filter import expressible_by

        return partial(self.plan_on, expresses=expressible_by(tools, workload)) if tools else self.plan_on

    def calibration(self) -> Calibration | None:
        """Return what ``llmsched calibrate`` kept at the state root, or None. Raises as :meth:`plan_on`."""
        from airflow_llmsched.learning import calibration_file
        from airflow_llmsched.objects.open import open_store
        from airflow_llmsched.provider.config import state_root

        return calibration_file.load(open_store(state_root()))

    def as_measured(self) -> AsMeasured:
        """Return what puts links as checks of nodes measured them into trees of the engine's. Raises ``StoreError``."""
        from airflow_llmsched.topology.link_records import links_on

        return partial(links_on, self.measured_links().counted())

    def measured_links(self) -> MeasuredLinks:
        """Return what is kept of what checks of nodes measured on the engine's machines. Raises ``StoreError``."""
        from airflow_llmsched.clock import SystemClock
        from airflow_llmsched.control.measured_links import open_measured_links
        from airflow_llmsched.objects.open import open_store
        from airflow_llmsched.provider.config import measured_links_limit_s, state_root
        from airflow_llmsched.provider.engine import deployment_fleet
        from airflow_llmsched.provider.run_engine import renting_run

        return open_measured_links(
            self._engine,
            self.engine_name,
            self.engine_options,
            deployment_fleet(),
            store=open_store(state_root()),
            clock=SystemClock(),
            run=renting_run(self.engine_options),
            limit_s=measured_links_limit_s(),
        )

    @cached_property
    def _engine(self) -> Engine:
        return self.get_conn()

    def _clusters(self) -> Sequence[Cluster]:
        """Return the terms of the clusters that the engine stands for; none where it is an adapter."""
        from airflow_llmsched.control.open_fleet import clusters_of, names_cluster
        from airflow_llmsched.provider.engine import deployment_fleet

        fleet = deployment_fleet()
        return clusters_of(self.engine_name, fleet) if names_cluster(self.engine_name, fleet) else ()

    def _solver(self) -> PlacementSolver:
        from airflow_llmsched.registry import AdapterGroup, load

        solver: PlacementSolver = load(AdapterGroup.PLACEMENT_SOLVERS, self.solver_name)()
        return solver
