"""Machines of one's own as a ``Cloud``: a lease is a reservation in a store, and its nodes run before it and after it.

Nothing is created and nothing is billed by anybody else, so that no answer can be lost between two systems: the record
is the lease. An expired reservation keeps its nodes until the reaper has freed it, because its ranks may run on.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.clouds.onprem import inventory as inventories
from airflow_llmsched.clouds.onprem.choose import choose
from airflow_llmsched.clouds.onprem.fleet import Fleet, Reservation
from airflow_llmsched.clouds.onprem.inventory import NAME, FleetNode, FleetPool, Inventory
from airflow_llmsched.clouds.onprem.reservations import Reservations
from airflow_llmsched.domain.capacity import Offer, Pool, Requirement
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.lease import Lease, LeasedNode, LeasedNodeState, LeaseId, LeaseState
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import (
    CapacityError,
    CouldNotLookError,
    DataError,
    InternalError,
    LeftoverError,
    QuotaError,
    SpecError,
    StoreError,
    TransientError,
)
from airflow_llmsched.ports import Clock, CloudFeature, Engine, LateDuplicateGuard, ObjectStore

START_UP_S = 10.0
"""From the order to the first rank: the machines run already."""


class OnPremCloud:
    """A ``Cloud`` of the nodes that ``inventory`` (a path) lists, or that ``engine`` has. Options are JSON-safe.

    ``store`` is where reservations are kept, the same for all who share the fleet (whoever opens the cloud hands it in,
    as ``engine``); ``fleet`` is its name there. An engine's nodes are in ``region``, at ``usd_per_hour`` by shape.
    There are no credentials to hand in.
    """

    name = NAME
    features = frozenset({CloudFeature.TOPOLOGY})
    late_duplicate_guard = LateDuplicateGuard.NAME
    consistency_s = 0.0
    needs_store = True

    def __init__(
        self,
        *,
        fleet: str = "default",
        inventory: str | None = None,
        region: str = "onprem",
        jurisdiction: str = "",
        usd_per_hour: Mapping[str, float] | None = None,
        store: ObjectStore | None = None,
        engine: Engine | None = None,
        credentials: Any = None,  # noqa: ARG002 - every cloud is offered some
        clock: Clock | None = None,
    ) -> None:
        if (inventory is None) == (engine is None):
            raise SpecError(path="inventory", hint="needs the path of an inventory, or an engine whose nodes to use")
        if store is None:
            raise SpecError(path="store", hint="needs the store where all who share the fleet keep reservations")
        self._inventory_path = inventory
        self._engine = engine
        self._region = region
        self._jurisdiction = jurisdiction
        self._usd_per_hour = usd_per_hour or {}
        self._clock = clock or SystemClock()
        self._reservations = Reservations(store, fleet=fleet, clock=self._clock)

    def offers(self, need: Requirement) -> Sequence[Offer]:
        """Return what is free now of the shapes asked for, at its settled price. Raises ``CouldNotLookError``."""
        wish, stock, fleet = need.wish, self._stock(), self._fleet()
        if (wish.clouds and self.name not in wish.clouds) or (wish.regions and stock.region not in wish.regions):
            return []
        room = _room(stock, fleet)
        return [
            Offer(
                pool=each.pool,
                usd_per_hour=each.usd_per_hour,
                priced_at_s=self._clock.now_s(),
                source="inventory",
                num_nodes=min(len(_free(each, fleet)), room),
                start_up_s=START_UP_S,
                jurisdiction=stock.jurisdiction,
                vendor=each.vendor,
                energy_usd_per_hour=each.energy_usd_per_hour,
                carbon_g_per_hour=each.carbon_g_per_hour,
            )
            for each in stock.pools
            if each.pool.shape in need.by_shape
            and (not wish.capacity_types or each.pool.capacity_type in wish.capacity_types)
        ]

    def topology(self, lease: Lease) -> TopologyTree:
        """Return the lease's nodes under region, zone and the inventory's levels. Raises ``CouldNotLookError``."""
        stock = self._stock()
        pool, known = stock.find(lease.pool), stock.nodes
        num_slots = pool.num_slots if pool is not None else 1
        top = (lease.pool.region, lease.pool.zone or lease.pool.region)
        return TopologyTree(
            levels=("region", "zone", *stock.levels),
            nodes=tuple(
                TopologyNode(
                    id=node.id,
                    path=(*top, *known[node.id].path),
                    shape=lease.pool.shape,
                    num_slots=num_slots,
                    num_free_slots=num_slots,
                )
                for node in lease.nodes
                if not node.state.is_gone and node.id in known
            ),
            scale_up_level=stock.scale_up_level,
            network=stock.network,
            switches_reduce=stock.switches_reduce,
            facts=stock.facts,
        )

    def lease_id(self, pool: Pool, key: LeaseKey) -> LeaseId:
        """Return the id that the lease of ``pool`` under ``key`` has, or would have."""
        return LeaseId(f"{pool.zone or pool.region}/{key.name}")

    def acquire(self, offer: Offer, *, key: LeaseKey, origin: RunOrigin, num_nodes: int, until_s: float) -> Lease:
        """Reserve all or none. Raises as ``ports.Cloud.acquire``."""
        if num_nodes < 1:
            raise SpecError(path="num_nodes", value=num_nodes, hint="must be 1 or more")
        stock = self._stock(at_fault=True)
        pool = stock.find(offer.pool)
        if pool is None:
            raise SpecError(path="pool", value=offer.pool, hint="is no pool of this inventory: take an offer it makes")

        def decide(fleet: Fleet) -> Reservation:
            chosen = _chosen(stock, pool, fleet, num_nodes)
            return Reservation(
                key=key, pool=pool.pool, nodes=tuple(node.id for node in chosen), until_s=until_s, origin=origin
            )

        with _looking(f"reserve for lease {key.name}"):
            return self._lease(self._reservations.reserve(key.name, decide), stock)

    def leases(self, ids: Sequence[LeaseId]) -> Mapping[LeaseId, Lease]:
        """Return the leases whose nodes are reserved, by one reading. Raises ``CouldNotLookError``."""
        if not ids:
            return {}
        found = {lease.id: lease for lease in self.find_all()}
        return {each: found[each] for each in ids if each in found}

    def find(self, run: RunKey) -> Sequence[Lease]:
        """Return the run's leases, oldest key first. Raises ``CouldNotLookError``."""
        mine = [lease for lease in self.find_all() if lease.key.run == run]
        return sorted(mine, key=lambda lease: (lease.key.generation, lease.key.rental))

    def find_all(self) -> Sequence[Lease]:
        """Return every lease whose nodes are reserved, expired or not, by id. Raises ``CouldNotLookError``."""
        fleet, stock = self._fleet(), self._stock()
        return sorted((self._lease(each, stock) for each in fleet.reserved.values()), key=lambda lease: lease.id)

    def renew(self, lease: Lease, *, until_s: float) -> Lease:
        """Have the reservation expire no sooner than ``until_s``. Raises ``LeaseGoneError``, ``CouldNotLookError``."""
        with _looking(f"renew lease {lease.id}"):
            reservation = self._reservations.extend(lease.key.name, until_s=until_s)
        return self._lease(reservation, self._stock())

    def release(self, lease_id: LeaseId) -> None:
        """Free the nodes, and use the key up. Raises ``LeftoverError``, ``CouldNotLookError``."""
        name = lease_id.rpartition("/")[2]
        held = self._fleet().reserved.get(name)  # what it holds, should it not be possible to free it
        try:
            self._reservations.free(name)
        except StoreError as error:
            if held is None or name not in self._fleet().reserved:
                raise CouldNotLookError(f"whether lease {lease_id} was released is unknown: {error}") from error
            message = f"the reservation of lease {lease_id} could not be freed ({error}): its nodes stay reserved"
            raise LeftoverError(message, ids=held.nodes) from error
        except (TransientError, DataError) as error:
            raise CouldNotLookError(f"lease {lease_id} could not be released: {error}") from error

    # Below the port

    def _fleet(self) -> Fleet:
        with _looking("read the fleet's reservations"):
            return self._reservations.fleet()

    def _stock(self, *, at_fault: bool = False) -> Inventory:
        """Return all nodes as they are now. ``at_fault``: a fault in the inventory is its caller's to mend."""
        if self._engine is not None:
            tree = self._engine.topology()
            return inventories.from_tree(
                tree, region=self._region, usd_per_hour=self._usd_per_hour, jurisdiction=self._jurisdiction
            )
        if self._inventory_path is None:
            raise InternalError("there is neither an inventory nor an engine")
        try:
            return inventories.read(self._inventory_path)
        except OSError as error:
            raise CouldNotLookError(f"the inventory {self._inventory_path} could not be read: {error}") from error
        except SpecError as error:
            if at_fault:
                raise
            raise CouldNotLookError(f"the inventory cannot be understood: {error}") from error

    def _lease(self, reservation: Reservation, stock: Inventory) -> Lease:
        known = stock.nodes
        nodes = tuple(
            LeasedNode(
                id=each,
                state=_state(known.get(each), reservation.pool.capacity_type),
                address=known[each].address if each in known else "",
                is_off=each in known and known[each].is_off,
            )
            for each in reservation.nodes
        )
        gone = [
            f"{node.id}: {known[node.id].unusable if node.id in known else 'not listed'}"
            for node in nodes
            if node.state.is_gone
        ]
        return Lease(
            id=self.lease_id(reservation.pool, reservation.key),
            key=reservation.key,
            pool=reservation.pool,
            num_nodes=len(nodes),
            state=LeaseState.BROKEN if gone else LeaseState.ACTIVE,
            expires_at_s=reservation.until_s,
            nodes=nodes,
            origin=reservation.origin,
            reason="; ".join(gone),
        )


def _chosen(stock: Inventory, pool: FleetPool, fleet: Fleet, num_nodes: int) -> Sequence[FleetNode]:
    """Return the nodes for a lease. Raises ``QuotaError``, ``CapacityError``."""
    room = _room(stock, fleet)
    if room < num_nodes:
        raise QuotaError(
            f"the inventory's quota of {stock.max_nodes} nodes leaves {room} of {num_nodes}: raise max_nodes",
            region=stock.region,
        )
    free = _free(pool, fleet)
    chosen = choose(free, num_nodes)
    if chosen is None:
        num_down = sum(bool(node.unusable) for node in pool.nodes)
        raise CapacityError(
            f"{len(free)} of {num_nodes} nodes of {pool.pool.shape} are free in {pool.pool.zone or stock.region}: "
            f"of {len(pool.nodes)}, {num_down} cannot be used and the others are reserved or busy"
        )
    return chosen


def _room(stock: Inventory, fleet: Fleet) -> int:
    """Return how many more nodes the quota allows."""
    return sys.maxsize if stock.max_nodes is None else max(0, stock.max_nodes - len(fleet.taken))


def _free(pool: FleetPool, fleet: Fleet) -> Sequence[FleetNode]:
    taken = fleet.taken
    return [node for node in pool.nodes if not node.unusable and not node.is_busy and node.id not in taken]


def _state(node: FleetNode | None, capacity_type: CapacityType) -> LeasedNodeState:
    """Return a reserved node's state: the house takes back what it lent as spot, and anything else is lost."""
    if node is not None and not node.unusable:
        return LeasedNodeState.RUNNING
    return LeasedNodeState.PREEMPTED if capacity_type is CapacityType.SPOT else LeasedNodeState.LOST


@contextlib.contextmanager
def _looking(what: str) -> Iterator[None]:
    try:
        yield
    except CouldNotLookError:
        raise
    except (TransientError, DataError) as error:
        raise CouldNotLookError(f"could not {what}: {error}") from error
