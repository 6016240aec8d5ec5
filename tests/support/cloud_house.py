"""A simulated house whose run is trained on the machines of a simulated cloud: several regions, shapes and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_llmsched.control.renting import CloudChoice, Wanted
from airflow_llmsched.domain.capacity import Requirement, ShapeNeed
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.sim.cloud import SimCloud, SimPool
from airflow_llmsched.sim.engine import SimEngine, _Node
from airflow_llmsched.sim.world import SimWorld
from tests.support.rented_house import NUM_STEPS, STEP_WORK_S, RentedHouse
from tests.support.sim_cloud import sim_pool

NUM_SLOTS = 2


class JoiningEngine(SimEngine):
    """An engine that has whatever machines the cloud has running."""

    cloud: SimCloud

    def topology(self) -> TopologyTree:
        """Take machines in that have come up, and lose those that are gone."""
        machines = {machine.id: machine for request in self.cloud._requests.values() for machine in request.machines}
        for node_id, machine in machines.items():
            if machine.runs_at_s <= self._world.time_s and node_id not in self._nodes:
                pool = machine.pool.offer.pool
                self._nodes[node_id] = _Node(id=node_id, path=("rack",), shape=pool.shape, num_slots=NUM_SLOTS)
        for node_id in set(self._nodes) - set(machines):
            self._nodes[node_id].down_reason = "given back"
        return super().topology()


def need_of(*num_nodes: int, shape: str = "sim.8x", pace: float = 1.0, **changes: Any) -> Requirement:
    """Return what the run takes of a shape, in each of some sizes, at ``pace`` times the work per step."""

    def size(count: int) -> ShapeNeed:
        return ShapeNeed(num_nodes=count, work_s=NUM_STEPS * pace * STEP_WORK_S / (NUM_SLOTS * count))

    first, *more = num_nodes
    return Requirement(by_shape={shape: size(first)}, more_nodes={shape: tuple(map(size, more))}, **changes)


def both(*needs: Requirement) -> Requirement:
    """Return one need of several shapes."""
    by_shape = {name: each for need in needs for name, each in need.by_shape.items()}
    more_nodes = {name: each for need in needs for name, each in need.more_nodes.items()}
    return replace(needs[0], by_shape=by_shape, more_nodes=more_nodes)


def spot_pool(zone: str = "a", **changes: Any) -> SimPool:
    """Return spot capacity that is there for good, at a tenth of the price of on-demand."""
    return quick_pool(zone, **{"capacity_type": CapacityType.SPOT, "usd_per_hour": 4.0, **changes})


def quick_pool(zone: str = "a", **changes: Any) -> SimPool:
    """Return on-demand capacity that comes up in ten seconds."""
    pool = sim_pool(zone, **{"start_up_s": 10.0, **changes})
    pool.num_slots, pool.notice_s = NUM_SLOTS, 0.0
    return pool


class CloudHouse(RentedHouse):
    """Its pools are ``pools``; nothing comes or goes by itself."""

    def __init__(self, folder: Path, *pools: SimPool, **terms: Any) -> None:
        super().__init__(folder, **{"need": need_of(2), "patience_s": 300.0, **terms})
        self.pools = pools
        self.sim_cloud = SimCloud(SimWorld(self.clock), pools, consistency_s=0.0)
        nothing = TopologyTree(levels=("rack",), nodes=())
        self.engine = JoiningEngine(self.world, nothing, hub=self.hub, checkpoints=self.checkpoints)
        self.engine.cloud = self.sim_cloud

    def cloud(self, _name: str = "sim", _options: Mapping[str, Any] | None = None) -> Any:
        return self.sim_cloud

    def wanted(self) -> Wanted:
        return replace(super().wanted(), clouds={"sim": CloudChoice(name="sim", options={})})

    def take(self, zone: str) -> None:
        """Take all machines of a zone's spot pool, and the ranks on them with it; there are no others for now."""
        for pool in self._pools(zone):
            pool.num_free = 0
            for lease in self.sim_cloud.find_all():
                for node in lease.nodes if lease.pool == pool.offer.pool else ():
                    self.sim_cloud.preempt(node.id)
                    if node.id in self.engine._nodes:
                        self.engine.preempt(NodeId(node.id), grace_s=0.0)

    def give_back(self, zone: str) -> None:
        """Have a zone's spot pool have room again."""
        for pool in self._pools(zone):
            pool.num_free = 8

    def price(self, zone: str, usd_per_hour: float) -> None:
        """Have a zone's spot pool cost so much."""
        for pool in self._pools(zone):
            pool.offer = replace(pool.offer, usd_per_hour=usd_per_hour)

    def where(self) -> list[str]:
        """Return of which pools each attempt's nodes were, as so many nodes of a capacity type in a zone each."""
        return [self._told([str(node) for node in each.plan.placement.nodes]) for each in self.attempts()]

    def _told(self, nodes: list[str]) -> str:
        found = []
        for rental in self.book().rentals():
            mine = [node for node in nodes if node in self._machines.get(rental.intent.lease_id, ())]
            pool = rental.intent.offer.pool
            if mine:
                found.append(f"{len(mine)} {pool.capacity_type} {pool.shape} {pool.zone}")
        return " + ".join(found)

    @property
    def _machines(self) -> dict[str, set[str]]:
        """Return which machines each lease ever had."""
        for lease in self.sim_cloud.find_all():
            self.seen.setdefault(lease.id, set()).update(str(node.id) for node in lease.nodes)
        return self.seen

    def keep(self) -> None:
        """Have the run's leases be renewed, and remember their machines."""
        super().keep()
        _ = self._machines

    @property
    def seen(self) -> dict[str, set[str]]:
        """Return what is remembered of leases' machines."""
        return self.__dict__.setdefault("_seen_machines", {})

    def _pools(self, zone: str) -> list[SimPool]:
        return [
            pool
            for pool in self.pools
            if pool.offer.pool.zone == zone and pool.offer.pool.capacity_type is CapacityType.SPOT
        ]
