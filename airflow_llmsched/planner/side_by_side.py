"""Several gangs on one fleet, placed one after the other, and what they then do to each other's steps. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.network_load import NetworkLoad
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.contention.advice import TOLD_RATIO, advise, protections
from airflow_llmsched.planner.contention.beside import plan_beside
from airflow_llmsched.planner.contention.busy import with_busy_links
from airflow_llmsched.planner.contention.loads import GangLoad
from airflow_llmsched.planner.contention.planned import planned_load
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from airflow_llmsched.planner.layout_table import Expresses
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.planner.search import search
from airflow_llmsched.ports import PlacementSolver


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGang:
    """One workload and what was found for it on what those before it left free."""

    name: str
    workload: WorkloadSpec
    found: PlanSearch
    tree: TopologyTree

    @property
    def plan(self) -> Plan | None:
        """The first plan; None where nothing fits any more."""
        return self.found.plans[0] if self.found.plans else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Gangs in the order of placing, and sentences on what they do to each other."""

    gangs: tuple[PlannedGang, ...]
    told: tuple[str, ...]

    def by_name(self) -> dict[str, object]:
        """Return what programs want of it: each gang's plan (or why there is none), and the sentences."""
        gangs = {
            gang.name: {
                "plan": gang.plan,
                "rejections": dict(gang.found.rejections),
                "relaxation": gang.found.relaxation,
            }
            for gang in self.gangs
        }
        return {"gangs": gangs, "told": self.told}


def plan_in_order(
    workloads: Sequence[WorkloadSpec],
    tree: TopologyTree,
    shapes: Mapping[str, NodeShape],
    *,
    solver: PlacementSolver,
    expresses: Expresses | None = None,
    seed: int = 0,
    calibration: Calibration | None = None,
) -> tuple[PlannedGang, ...]:
    """Plan each workload on what is left of the fleet; one that does not fit takes nothing.

    Solvers that go by the score know which links those before it keep busy. Names repeat where workloads do; the later
    ones get a number.
    """
    gangs: list[PlannedGang] = []
    loads: dict[str, NetworkLoad] = {}
    counts: dict[str, int] = defaultdict(int)
    for workload in workloads:
        counts[workload.name] += 1
        name = workload.name if counts[workload.name] == 1 else f"{workload.name} #{counts[workload.name]}"
        found = search(
            workload,
            with_busy_links(tree, loads, shapes),
            shapes,
            solver=solver,
            expresses=expresses,
            seed=seed,
            calibration=calibration,
        )
        gangs.append(PlannedGang(name=name, workload=workload, found=found, tree=tree))
        if found.plans:
            load = plan_beside(workload, found.plans[0], tree, shapes=shapes, loads={}).load
            loads |= {} if load is None else {name: load}
            tree = without(tree, found.plans[0].placement)
    return tuple(gangs)


def _by_shape(gangs: Sequence[PlannedGang]) -> dict[str, list[PlannedGang]]:
    found: dict[str, list[PlannedGang]] = defaultdict(list)
    for gang in gangs:
        if gang.plan is not None:
            found[gang.plan.node_shape].append(gang)
    return dict(found)


def without(tree: TopologyTree, placement: Placement) -> TopologyTree:
    """Return a tree whose slots that a gang holds are free no more."""
    held = {node: frozenset(placement.held_on(node)) for node in placement.nodes}
    return replace(tree, nodes=tuple(_left(node, held) for node in tree.nodes))


def _left(node: TopologyNode, held: Mapping[NodeId, frozenset[int]]) -> TopologyNode:
    taken = held.get(node.id)
    if taken is None:
        return node
    named = range(node.num_free_slots) if node.free_slots is None else node.free_slots
    free = tuple(slot for slot in named if slot not in taken)
    return replace(node, num_free_slots=len(free), free_slots=free)


def contention(gangs: Sequence[PlannedGang], tree: TopologyTree, shapes: Mapping[str, NodeShape]) -> tuple[str, ...]:
    """Say who slows whom, what helps, and what staging may take; of several gangs, also that nobody is slowed.

    Gangs on machines of different shapes are not looked at together.
    """
    told: list[str] = []
    for name, alike in _by_shape(gangs).items():
        cluster = ClusterGraph(tree, shapes[name])
        loads = [_load(gang, tree, cluster) for gang in alike]
        harm = advise(loads, cluster)
        if not harm and len(loads) > 1:
            harm = (f"none of the {len(loads)} gangs on {name} slows another by more than {TOLD_RATIO:.1%}",)
        told += [*harm, *protections(loads, cluster)]
    return tuple(told)


def _load(gang: PlannedGang, tree: TopologyTree, cluster: ClusterGraph) -> GangLoad:
    assert gang.plan is not None
    return planned_load(gang.name, gang.workload, gang.plan, tree, cluster)
