"""Runs that share a simulated engine whose network has thin links between racks: planned, and placed, in earnest."""

from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.control.planning import Planner
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.topology import NetworkLevel, TopologyTree
from airflow_llmsched.domain.workload import CapacityWish, ParallelismWish, WorkloadSpec
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.search import search
from tests.support.fleets import fleet, workload
from tests.support.models import LLAMA31_8B
from tests.support.shared_house import SharedHouse, Tenant

NETWORK = (
    NetworkLevel(level="rack", bandwidth_bytes_per_s=50e9),
    NetworkLevel(level="block", bandwidth_bytes_per_s=1e9),
    NetworkLevel(level=None, bandwidth_bytes_per_s=0.25e9),
)


def two_blocks() -> TopologyTree:
    """Return two blocks of three racks of four nodes with eight accelerators each, all of it free."""
    return replace(fleet(24, nodes_per_rack=4, racks_per_block=3), network=NETWORK)


def trained_on(num_slots: int) -> WorkloadSpec:
    """Return a run that wants so many accelerators, in groups of eight that stay on their nodes."""
    return workload(
        LLAMA31_8B,
        num_sequences=2 * num_slots,
        parallelism=ParallelismWish(tp=8, pp=1, cp=1),
        capacity=CapacityWish(min_ranks=num_slots, max_ranks=num_slots),
    )


def plan_in_earnest(run: WorkloadSpec, tree: TopologyTree, excluded: frozenset[NodeId]) -> PlanSearch:
    """Return what the planner makes of a tree, as tasks ask it."""
    return search(run, tree, node_shapes(), solver=FleetSolver(), excluded=excluded)


class NetworkedHouse(SharedHouse):
    """A house whose runs are planned by the planner; ``num_slots`` of a tenant is all that it wants."""

    def __init__(self, tree: TopologyTree | None = None) -> None:
        super().__init__(tree or two_blocks())

    def workload_for(self, tenant: Tenant) -> WorkloadSpec:
        """Return a run with a model, so that it is known what it sends."""
        return trained_on(tenant.num_slots)

    def planner_for(self, tenant: Tenant) -> Planner:
        """Return the planner itself."""
        return plan_in_earnest
