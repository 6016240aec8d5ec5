"""A simulated house whose engine is a fleet: clusters ``a`` and ``b``, each of two nodes, under one clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.domain.fleet import Cluster, cluster_of, own_name
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.engines.fleet.engine import FleetEngine
from airflow_llmsched.engines.fleet.members import Member
from airflow_llmsched.engines.fleet.words import parted
from airflow_llmsched.sim.engine import SimEngine
from airflow_llmsched.sim.scripts import SimTraining
from tests.support.sim_harness import SimHarness
from tests.support.sim_house import RUN, SimHouse, greedy_planner, tree_of

SILENT_AFTER_S = 60.0


def one_cluster_planner(workload: WorkloadSpec, tree: TopologyTree, excluded: frozenset[NodeId]) -> PlanSearch:
    """Plan onto every usable slot of the first cluster that has two."""
    for path in sorted({node.path[:1] for node in tree.nodes}):
        nodes = tuple(node for node in tree.nodes if node.path[:1] == path)
        found = greedy_planner(workload, replace(tree, nodes=nodes), excluded)
        if found.plans:
            return found
    return PlanSearch(plans=(), rejections={"fewer than 2 ranks on any cluster": 1}, num_candidates=1)


class FleetHouse(SimHouse):
    """One deployment with one run on a fleet. ``clusters`` are the engines themselves."""

    def __init__(self, *, start_delay_s: float = 1.0, num_steps: int = 40, **terms: Any) -> None:
        super().__init__(start_delay_s=start_delay_s, training=SimTraining(num_steps=num_steps))
        engine_of = {"hub": self.hub, "checkpoints": self.checkpoints, "start_delay_s": start_delay_s}
        self.clusters = {name: SimEngine(self.world, tree_of(), **engine_of) for name in ("a", "b")}
        self.terms = {name: Cluster(name=name, engine="sim", silent_after_s=SILENT_AFTER_S, **terms) for name in "ab"}
        self.fleet = self.engine = self.reopened()  # type: ignore[assignment]  # a fleet stands for the engine

    def reopened(self, *, only: str | None = None) -> FleetEngine:
        """Return the fleet as another worker would open it."""
        return FleetEngine(
            [Member(cluster=self.terms[name], engine=engine) for name, engine in self.clusters.items()],
            store=self.store,
            clock=self.clock,
            open_witness=self.hub.open,
            only=only,
        )

    def driver(self, **changes: object) -> RunDriver:
        """Return the driver of a new worker, which opens the fleet anew."""
        return RunDriver(
            context=replace(self.context, **changes),  # type: ignore[arg-type]
            journal=self.journal,
            engine=self.reopened(),
            planner=one_cluster_planner,
            checkpoints=self.checkpoints,
            open_channel=self.hub.open,
            clock=self.clock,
            rented=self.rented,
        )

    def live(self) -> tuple[GangHandle, ...]:
        """Return the run's gangs that have ranks, on either cluster, whatever anyone knows about them."""
        live = tuple(handle for engine in self.clusters.values() for handle in engine.live(RUN))
        self.max_live = max(self.max_live, len(live))
        return live

    def lose(self, name: str, *, for_s: float) -> None:
        """Cut a cluster off: nobody reaches its engine, and its agents reach nobody. Its ranks go on."""
        self.clusters[name].blind(for_s=for_s)
        for node in ("n0", "n1"):
            self.clusters[name].partition(NodeId(node), heals_after_s=for_s)

    def places(self) -> list[str]:
        """Return the cluster of each attempt, in order."""
        return [cluster_of(each.plan.placement.nodes[0]) for each in self.driver().attempts()]


class FleetSimHarness(SimHarness):
    """A fleet of two simulated clusters under the engine contract."""

    house: FleetHouse

    def __init__(self) -> None:
        self.house = FleetHouse(start_delay_s=0.5)
        self.engine = self.house.fleet  # type: ignore[assignment]  # a fleet stands for the engine

    def num_live_ranks(self, handle: GangHandle) -> int:
        cluster, native_id = parted(handle) or ("", "")
        if not cluster:
            return 0
        inner = GangHandle(engine=SimEngine.name, key=handle.key, native_id=native_id)
        return self.house.clusters[cluster].num_live_ranks(inner)

    def preempt(self, node: NodeId, *, grace_s: float, return_after_s: float) -> None:
        cluster = self.house.clusters[cluster_of(node)]
        cluster.preempt(own_name(node), grace_s=grace_s, return_after_s=return_after_s)

    def lose(self, handle: GangHandle, node: NodeId) -> None:
        self.house.clusters[cluster_of(node)].lose_part(handle, own_name(node))

    def reopened(self) -> FleetEngine:
        return self.house.reopened()
