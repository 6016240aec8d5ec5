"""A cloud under a virtual clock: the contract of the real ones, with shortages and interruptions at the caller's hand.

It plays both sides: the cloud itself, which knows what it bills, and the adapter, which sees only what is listed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from airflow_llmsched.domain.capacity import Offer, Pool, Requirement
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.lease import (
    Lease,
    LeasedNode,
    LeasedNodeState,
    LeaseId,
    LeaseState,
    NodeNotice,
    NoticeKind,
)
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import (
    AbandonedError,
    CapacityError,
    CouldNotLookError,
    InternalError,
    LeaseGoneError,
    LeftoverError,
    PartlySeenError,
    QuotaError,
    TransientError,
)
from airflow_llmsched.planner.market.stock import ALWAYS, StockModel
from airflow_llmsched.ports import CloudFeature, LateDuplicateGuard
from airflow_llmsched.sim.world import SimWorld

T = TypeVar("T")

_CREATE = EffectPoint("sim_cloud.create")
_TAG = EffectPoint("sim_cloud.tag")
_REMOVE = EffectPoint("sim_cloud.remove")

HOUR_S = 3600.0
NUM_REMOVAL_TRIES = 4
"""How often the adapter tries to remove what the cloud refuses to."""


@dataclass(slots=True)
class SimPool:
    """One pool. ``num_free`` more nodes can be had; a node takes ``start_up_s`` to come up.

    While spot capacity is held, all of the pool's spot nodes are taken together ``loss_per_hour`` times in an hour on
    average (so that a gang is lost no more often than a node: a correlation of 1), ``notice_s`` after an interruption
    notice (0: without). ``num_slots`` are the accelerators of a node. Whatever is free, none of it can be had while the
    pool ``is_out`` of stock, as often and for as long as ``stock`` says; what is held stays.
    """

    offer: Offer
    num_free: int
    num_slots: int = 8
    start_up_s: float = 60.0
    loss_per_hour: float = 0.0
    notice_s: float = 120.0
    stock: StockModel = ALWAYS
    is_out: bool = False

    @property
    def num_there(self) -> int:
        """How many nodes can be had now."""
        return 0 if self.is_out else self.num_free


@dataclass(slots=True)
class _Machine:
    id: NodeId
    lease_id: LeaseId
    pool: SimPool
    listed_at_s: float
    runs_at_s: float
    address: str
    started_at_s: float
    taken_at_s: float | None = None
    notice: NodeNotice | None = None

    def cost_usd(self, now_s: float) -> float:
        until_s = now_s if self.taken_at_s is None else self.taken_at_s
        return (until_s - self.started_at_s) / HOUR_S * self.pool.offer.usd_per_hour


@dataclass(slots=True)
class _Request:
    lease: Lease
    machines: list[_Machine] = field(default_factory=list)
    is_released: bool = False


@dataclass(slots=True)
class SimCloudFaults:
    """What goes wrong until it is spent. ``quota_nodes`` caps what may be held in a region.

    ``dark_regions`` answer nothing, whatever the others do.
    """

    num_throttled: int = 0
    num_lost_replies: int = 0
    num_refused_removals: int = 0
    hides_new: bool = False
    is_dark: bool = False
    dark_regions: set[str] = field(default_factory=set)
    quota_nodes: dict[str, int] = field(default_factory=dict)


class SimCloud:
    """``ports.Cloud`` whose pools are ``pools``, all there at first. Interruptions follow from ``seed``."""

    name = "sim"
    features = frozenset({CloudFeature.TOPOLOGY, CloudFeature.NOTICES})
    late_duplicate_guard = LateDuplicateGuard.TABLE

    def __init__(
        self, world: SimWorld, pools: Sequence[SimPool], *, consistency_s: float = 30.0, seed: int = 0
    ) -> None:
        self.faults = SimCloudFaults()
        self.consistency_s = consistency_s
        self._world = world
        self._pools = {pool.offer.pool: pool for pool in pools}
        self._requests: dict[LeaseId, _Request] = {}
        self._random = random.Random(seed)  # noqa: S311 - a simulation
        self._num_machines = 0
        self._spent_usd = 0.0
        for pool in pools:
            self._schedule_interruption(pool)
            self._schedule_stock(pool)

    # What the cloud itself knows and does

    def billed(self) -> frozenset[str]:
        """Return the ids of all machines that cost money now."""
        self._world.advance()
        return frozenset(str(machine.id) for request in self._requests.values() for machine in request.machines)

    def spent_usd(self) -> float:
        """Return what has been billed: each machine from its start until it was taken or given back."""
        now_s = self._world.advance()
        held = [machine for request in self._requests.values() for machine in request.machines]
        return self._spent_usd + sum(machine.cost_usd(now_s) for machine in held)

    def pool(self, pool: Pool) -> SimPool:
        """Return a pool, to change it."""
        return self._pools[pool]

    def preempt(self, node: NodeId) -> None:
        """Take a node at once. Its room is not there any more, as another has it now."""
        self._world.advance()
        self._take(self._machine(node))

    def notify(self, node: NodeId, notice: NodeNotice) -> None:
        """Announce something about a node."""
        self._world.advance()
        self._machine(node).notice = notice

    # What an adapter does

    def offers(self, need: Requirement) -> Sequence[Offer]:
        """Return the pools of the shapes asked for, where the wish allows, with what is free now."""
        self._look()
        wish = need.wish
        found = [
            replace(pool.offer, num_nodes=pool.num_there, start_up_s=pool.start_up_s, loss_per_hour=pool.loss_per_hour)
            for pool in self._pools.values()
            if pool.offer.pool.shape in need.by_shape
            and (not wish.clouds or self.name in wish.clouds)
            and (not wish.regions or pool.offer.pool.region in wish.regions)
            and (not wish.capacity_types or pool.offer.pool.capacity_type in wish.capacity_types)
        ]
        return self._but_dark(found, [offer.pool.region for offer in found])

    def topology(self, lease: Lease) -> TopologyTree:
        """Return the lease's nodes in one block of their zone."""
        self._look(lease.pool.region)
        num_slots = self._pools[lease.pool].num_slots
        path = (lease.pool.region, lease.pool.zone, lease.key.name)
        return TopologyTree(
            levels=("region", "zone", "block"),
            nodes=tuple(
                TopologyNode(
                    id=node.id, path=path, shape=lease.pool.shape, num_slots=num_slots, num_free_slots=num_slots
                )
                for node in lease.nodes
                if not node.state.is_gone
            ),
        )

    def acquire(self, offer: Offer, *, key: LeaseKey, origin: RunOrigin, num_nodes: int, until_s: float) -> Lease:
        """Rent all or none. Raises as ``ports.Cloud.acquire``."""
        self._look(offer.pool.region, refusal=TransientError)
        lease_id = self.lease_id(offer.pool, key)
        request = self._requests.get(lease_id)
        if request is not None and request.is_released:
            raise AbandonedError(f"lease {lease_id} was released: nothing is rented under its key again")
        if request is not None:
            return self._seen(request)
        if until_s <= self._world.clock.now_s():
            raise AbandonedError(f"lease {lease_id} was to end before it began: nothing was rented")
        lease = Lease(
            id=lease_id,
            key=key,
            pool=offer.pool,
            num_nodes=num_nodes,
            state=LeaseState.PENDING,
            expires_at_s=until_s,
            origin=origin,
        )
        with _CREATE:
            self._requests[lease_id] = request = self._create(lease)
        if self.faults.num_lost_replies:
            self.faults.num_lost_replies -= 1
            raise CouldNotLookError(f"the answer to the request for lease {lease_id} was lost")
        if len(request.machines) < num_nodes:
            num_came = len(request.machines)
            self._remove(request)
            raise CapacityError(f"{num_came} of {num_nodes} nodes of {offer.pool.shape} came in {offer.pool.zone}")
        return self._seen(request)

    def leases(self, ids: Sequence[LeaseId]) -> Mapping[LeaseId, Lease]:
        """Return the leases that are listed."""
        if not ids:
            return {}
        self._look(*(self._region(each) for each in ids))
        return {each: self._seen(self._requests[each]) for each in ids if self._is_listed(each)}

    def find(self, run: RunKey) -> Sequence[Lease]:
        """Return the run's leases of which something is left."""
        self._look()
        found = [lease for lease in self._left() if lease.key.run == run]
        found.sort(key=lambda lease: (lease.key.generation, lease.key.rental))
        return self._but_dark(found, [lease.pool.region for lease in found])

    def find_all(self) -> Sequence[Lease]:
        """Return every lease of which something is left."""
        self._look()
        found = self._left()
        return self._but_dark(found, [lease.pool.region for lease in found])

    def renew(self, lease: Lease, *, until_s: float) -> Lease:
        """Move the expiry on. Raises ``LeaseGoneError``, ``CouldNotLookError``."""
        self._look(self._region(lease.id))
        request = self._requests.get(lease.id)
        if request is None or not request.machines:
            raise LeaseGoneError(f"lease {lease.id} has ended and cannot be renewed: rent anew")
        with _TAG:
            expires_at_s = max(until_s, request.lease.expires_at_s)
            request.lease = replace(request.lease, expires_at_s=expires_at_s)
        return self._seen(request)

    def release(self, lease_id: LeaseId) -> None:
        """Give back what there is. Raises ``LeftoverError``, ``CouldNotLookError``."""
        self._look(self._region(lease_id))
        request = self._requests.get(lease_id)
        if request is None:
            return
        request.is_released = True
        self._remove(request)

    def lease_id(self, pool: Pool, key: LeaseKey) -> LeaseId:
        """Return the zone and the key's name."""
        return LeaseId(f"{pool.zone}/{key.name}")

    # Below the port

    def _look(self, *regions: str, refusal: type[TransientError] = CouldNotLookError) -> None:
        if self.faults.is_dark:
            raise CouldNotLookError("the simulated cloud does not answer")
        silent = sorted(self.faults.dark_regions.intersection(regions))
        if silent:
            raise CouldNotLookError(f"{', '.join(silent)} of the simulated cloud does not answer")
        if self.faults.num_throttled:
            self.faults.num_throttled -= 1
            raise refusal("the simulated cloud was asked too often")
        self._world.advance()

    def _region(self, lease_id: LeaseId) -> str:
        zone = lease_id.partition("/")[0]
        return next((pool.region for pool in self._pools if pool.zone == zone), "")

    def _left(self) -> list[Lease]:
        return [
            self._seen(request)
            for lease_id, request in sorted(self._requests.items())
            if request.machines and self._is_listed(lease_id)
        ]

    def _but_dark(self, found: list[T], regions: Sequence[str]) -> list[T]:
        """Return what was found in ``regions``, or raise with what of it is in those that answer."""
        dark = sorted(self.faults.dark_regions & {pool.region for pool in self._pools})
        if not dark:
            return found
        seen = [each for each, region in zip(found, regions, strict=True) if region not in dark]
        raise PartlySeenError(f"{', '.join(dark)} of the simulated cloud does not answer", seen=seen, unseen=dark)

    def _create(self, lease: Lease) -> _Request:
        pool = self._pools.get(lease.pool)
        if pool is None:
            raise InternalError(f"the simulated cloud has no pool {lease.pool}: take an offer that it made")
        allowed = self.faults.quota_nodes.get(lease.pool.region)
        if allowed is not None and allowed < lease.num_nodes:
            raise QuotaError(
                f"the quota of {lease.pool.region} allows {allowed} of {lease.num_nodes} nodes",
                region=lease.pool.region,
            )
        now_s = self._world.time_s
        come = min(lease.num_nodes, pool.num_there)
        pool.num_free -= come
        machines = [
            _Machine(
                id=NodeId(f"sim-{self._num_machines + index:06d}"),
                lease_id=lease.id,
                pool=pool,
                listed_at_s=now_s + (self.consistency_s if self.faults.hides_new else 0.0),
                runs_at_s=now_s + pool.start_up_s,
                address=f"sim-node-{self._num_machines + index}",
                started_at_s=now_s,
            )
            for index in range(come)
        ]
        self._num_machines += come
        return _Request(lease=lease, machines=machines)

    def _remove(self, request: _Request) -> None:
        if not request.machines:
            return
        for _ in range(NUM_REMOVAL_TRIES):
            if not self.faults.num_refused_removals:
                break
            self.faults.num_refused_removals -= 1
        else:
            ids = [machine.id for machine in request.machines]
            raise LeftoverError(f"the simulated cloud did not remove machines of lease {request.lease.id}", ids=ids)
        with _REMOVE:
            for machine in list(request.machines):
                self._end(machine)

    def _end(self, machine: _Machine) -> None:
        request = self._requests[machine.lease_id]
        request.machines.remove(machine)
        self._spent_usd += machine.cost_usd(self._world.time_s)
        if machine.taken_at_s is None:
            machine.pool.num_free += 1

    def _take(self, machine: _Machine) -> None:
        if machine.taken_at_s is None:
            machine.taken_at_s = self._world.time_s

    def _machine(self, node: NodeId) -> _Machine:
        for request in self._requests.values():
            for machine in request.machines:
                if machine.id == node:
                    return machine
        raise InternalError(f"the simulated cloud has no machine {node}")

    def _is_listed(self, lease_id: LeaseId) -> bool:
        request = self._requests.get(lease_id)
        return request is not None and all(each.listed_at_s <= self._world.time_s for each in request.machines)

    def _seen(self, request: _Request) -> Lease:
        nodes = tuple(self._node(machine) for machine in request.machines)
        return replace(request.lease, state=self._state(request, nodes), nodes=nodes)

    def _node(self, machine: _Machine) -> LeasedNode:
        state = LeasedNodeState.RUNNING if machine.runs_at_s <= self._world.time_s else LeasedNodeState.STARTING
        return LeasedNode(
            id=machine.id,
            state=LeasedNodeState.PREEMPTED if machine.taken_at_s is not None else state,
            address=machine.address,
            notice=machine.notice,
            is_off=machine.taken_at_s is not None,
        )

    def _state(self, request: _Request, nodes: Sequence[LeasedNode]) -> LeaseState:
        if not nodes:
            return LeaseState.ENDED
        if len(nodes) < request.lease.num_nodes or any(node.state.is_gone for node in nodes):
            return LeaseState.BROKEN
        pending = any(node.state is LeasedNodeState.STARTING for node in nodes)
        return LeaseState.PENDING if pending else LeaseState.ACTIVE

    def _schedule_interruption(self, pool: SimPool) -> None:
        if pool.offer.pool.capacity_type is not CapacityType.SPOT or not pool.loss_per_hour:
            return
        wait_s = self._random.expovariate(pool.loss_per_hour) * HOUR_S
        self._world.after(wait_s, partial(self._announce, pool))

    def _schedule_stock(self, pool: SimPool) -> None:
        """Have the pool run out of stock, or come back, when its model says; what is held stays held."""
        if not pool.stock.out_per_hour:
            return
        rate_per_hour = pool.stock.back_per_hour if pool.is_out else pool.stock.out_per_hour
        self._world.after(self._random.expovariate(rate_per_hour) * HOUR_S, partial(self._turn_stock, pool))

    def _turn_stock(self, pool: SimPool) -> None:
        pool.is_out = not pool.is_out
        self._schedule_stock(pool)

    def _announce(self, pool: SimPool) -> None:
        taken_at_s = self._world.time_s + pool.notice_s
        held = [each for request in self._requests.values() for each in request.machines if each.pool is pool]
        for machine in held:
            if pool.notice_s:
                machine.notice = NodeNotice(kind=NoticeKind.INTERRUPTION, effective_at_s=taken_at_s)
            self._world.at(taken_at_s, partial(self._take, machine))
        self._schedule_interruption(pool)
