"""What a plan puts on the links of the network. Pure."""

from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.contention.loads import GangLoad, gang_load
from airflow_llmsched.planner.evaluate import step_seconds
from airflow_llmsched.planner.graphs.cluster_graph import ClusterGraph
from airflow_llmsched.planner.graphs.exchanges import exchanges
from airflow_llmsched.planner.graphs.job_graph import JobGraph
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.placed_machine import PlacedMachine


def planned_load(name: str, workload: WorkloadSpec, plan: Plan, tree: TopologyTree, cluster: ClusterGraph) -> GangLoad:
    """Return the load of a plan's gang. ``tree`` is what ``cluster`` was made of.

    A step takes as long as the gang's own traffic does over the link that is slowest to carry it, at least: links of
    racks and blocks may be thinner than the cards below them.

    Raises:
        KeyError: a node of the plan is not in the cluster, or as the performance model.
    """
    job = job_graph(workload, plan, cluster.shape)
    step_s = alone_step_s(workload, plan, tree, cluster.shape)
    gang = gang_load(name, job, plan.placement, cluster, step_s=step_s)
    return replace(gang, step_s=max(step_s, *(use.active_s for use in gang.uses.values()), 0.0))


def job_graph(workload: WorkloadSpec, plan: Plan, shape: NodeShape) -> JobGraph:
    """Return what the ranks of a plan exchange in a step. Raises ``KeyError`` as the performance model."""
    return JobGraph(num_ranks=plan.layout.world_size, exchanges=exchanges(workload, plan.layout, shape))


def alone_step_s(workload: WorkloadSpec, plan: Plan, tree: TopologyTree, shape: NodeShape) -> float:
    """Return seconds of a step of a gang that has the network to itself: rates of levels are of one that is full."""
    machine = PlacedMachine.on(plan.placement, tree=replace(tree, network=()), shape=shape)
    terms = step_seconds(workload, LayoutTable.of([plan.layout]), machine)
    return float(sum(float(term.ravel()[0]) for term in terms.values()))
