"""Azure as a ``Cloud``: one scale set for each lease.

What Azure cannot do: it gives a name away again once its set is gone, so that a key is used up only while something of
its lease is left; it ends no machine by itself when a lease expires; and it announces evictions to the machine alone.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.clouds.azure import client as wire
from airflow_llmsched.clouds.azure import offers as catalogue
from airflow_llmsched.clouds.azure import render, view
from airflow_llmsched.clouds.azure.client import AzureClient
from airflow_llmsched.clouds.azure.offers import Size
from airflow_llmsched.clouds.azure.render import AzureSettings
from airflow_llmsched.clouds.azure.sets import ScaleSets
from airflow_llmsched.clouds.azure.tags import NAME, LeaseTags
from airflow_llmsched.clouds.parts import of_each
from airflow_llmsched.domain.capacity import Offer, Pool, Requirement
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.lease import Lease, LeaseId
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import CouldNotLookError, InternalError, PartlySeenError
from airflow_llmsched.ports import Clock, CloudFeature, LateDuplicateGuard

log = logging.getLogger(__name__)

CATALOGUE_LIFE_S = 3600.0
"""How long a region's catalogue of sizes is kept: it is long, and changes by the week."""


class AzureCloud:
    """A ``Cloud``. All leases are in one resource group of one subscription; options are JSON-safe.

    ``credentials`` is a token credential of azure-identity; None: whatever the environment has. It renews its tokens
    itself. The other options are those of :class:`~airflow_llmsched.clouds.azure.render.AzureSettings`. ``wait_s`` is
    how long ``acquire`` waits for machines before it returns a lease that is still pending.
    """

    name = NAME
    features = frozenset({CloudFeature.TOPOLOGY})
    late_duplicate_guard = LateDuplicateGuard.NAME
    consistency_s = 60.0

    def __init__(
        self,
        *,
        subscription_id: str,
        resource_group: str,
        subnets: Mapping[str, str],
        image: Mapping[str, str],
        ssh_public_key: str,
        admin_username: str = "llmsched",
        os_disk_gb: int | None = None,
        os_disk_type: str = "Premium_LRS",
        public_addresses: bool = False,
        accelerated_networking: bool = True,
        identity: str | None = None,
        user_data: str = "",
        max_spot_usd_per_hour: float | None = None,
        reservation_groups: Mapping[str, str] | None = None,
        wait_s: float = 900.0,
        endpoint_url: str | None = None,
        prices_url: str | None = None,
        credentials: Any = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings = AzureSettings(
            subscription_id=subscription_id,
            resource_group=resource_group,
            subnets=subnets,
            image=image,
            ssh_public_key=ssh_public_key,
            admin_username=admin_username,
            os_disk_gb=os_disk_gb,
            os_disk_type=os_disk_type,
            public_addresses=public_addresses,
            accelerated_networking=accelerated_networking,
            identity=identity,
            user_data=user_data,
            max_spot_usd_per_hour=max_spot_usd_per_hour,
            reservation_groups=reservation_groups or {},
        )
        self._clock = clock or SystemClock()
        self._client = AzureClient(
            endpoint_url=endpoint_url or wire.ENDPOINT,
            prices_url=prices_url or wire.PRICES,
            credentials=credentials,
            clock=self._clock,
        )
        self._sets = ScaleSets(
            self._client, self._settings, self._clock, consistency_s=self.consistency_s, settle_s=wait_s
        )
        self._shelves: dict[str, tuple[float, Mapping[str, Size]]] = {}

    def offers(self, need: Requirement) -> Sequence[Offer]:
        """Return what could be rented now, at the public list price.

        Raises ``CouldNotLookError``, ``PartlySeenError``.
        """
        wish = need.wish
        if (wish.clouds and self.name not in wish.clouds) or not need.by_shape:
            return []
        regions = [region for region in sorted(self._settings.subnets) if not wish.regions or region in wish.regions]
        return of_each({region: partial(self._wished, region, need) for region in regions})

    def topology(self, lease: Lease) -> TopologyTree:
        """Return the lease's nodes under region, zone and placement group. Raises ``CouldNotLookError``."""
        size = self._shelf(lease.pool.region).get(lease.pool.shape)
        num_slots = max(1, size.num_accelerators) if size is not None else 1
        return view.tree_of(lease, self._sets.machines(lease.key.name), num_slots=num_slots)

    def lease_id(self, pool: Pool, key: LeaseKey) -> LeaseId:
        """Return the id that the lease of ``pool`` under ``key`` has, or would have."""
        return view.lease_id(pool, key)

    def acquire(self, offer: Offer, *, key: LeaseKey, origin: RunOrigin, num_nodes: int, until_s: float) -> Lease:
        """Rent all or none. Raises as ``ports.Cloud.acquire``."""
        wanted = LeaseTags(key=key, pool=offer.pool, num_nodes=num_nodes, expires_at_s=until_s, origin=origin)
        body = render.scale_set(self._settings, wanted)
        is_there = self._sets.get(key.name) is not None
        self._sets.await_whole(wanted, None if is_there else self._sets.create(wanted, body))
        row = self._sets.get(key.name)
        lease = None if row is None else self._lease(row, [])
        return lease or view.pending(wanted)

    def leases(self, ids: Sequence[LeaseId]) -> Mapping[LeaseId, Lease]:
        """Return the leases that are listed: one call for all, and two more for each that is. No call for no ids."""
        if not ids:
            return {}
        names = {view.set_name(each) for each in ids}
        seen = [self._lease(row, []) for row in self._sets.all() if row["name"] in names]
        found = {lease.id: lease for lease in seen if lease is not None}
        return {each: found[each] for each in ids if each in found}

    def find(self, run: RunKey) -> Sequence[Lease]:
        """Return the run's leases of which anything is left, oldest key first. Raises as :meth:`find_all`."""
        return self._found(run, order=lambda lease: (lease.key.generation, lease.key.rental))

    def find_all(self) -> Sequence[Lease]:
        """Return every lease of ours of which anything is left, by id.

        Raises ``CouldNotLookError``; ``PartlySeenError`` where a region does not show what a scale set in it consists
        of, or disks, interfaces or addresses are not listed: those that outlived their set are then not among them.
        """
        return self._found(None, order=lambda lease: lease.id)

    def renew(self, lease: Lease, *, until_s: float) -> Lease:
        """Have the lease expire no sooner than ``until_s``. Raises ``LeaseGoneError``, ``CouldNotLookError``."""
        later = LeaseTags(
            key=lease.key,
            pool=lease.pool,
            num_nodes=lease.num_nodes,
            expires_at_s=max(until_s, lease.expires_at_s),
            origin=lease.origin,
        )
        return replace(lease, expires_at_s=self._sets.keep(later))

    def release(self, lease_id: LeaseId) -> None:
        """Remove the lease's set and all that came with it. Raises ``LeftoverError``, ``CouldNotLookError``."""
        name = view.set_name(lease_id)
        if not name:
            raise InternalError(f"{lease_id!r} is no lease of Azure: take an id that it made")
        self._sets.remove(name)

    # Below the port

    def _wished(self, region: str, need: Requirement) -> Sequence[Offer]:
        wanted = need.wish.capacity_types
        found = self._offers_in(region, sorted(need.by_shape))
        return [offer for offer in found if not wanted or offer.pool.capacity_type in wanted]

    def _offers_in(self, region: str, shapes: Sequence[str]) -> Sequence[Offer]:
        shelf = self._shelf(region)
        known = [shape for shape in shapes if shape in shelf]
        if not known:
            return []
        locations = f"/subscriptions/{self._settings.subscription_id}/providers/Microsoft.Compute/locations"
        usages = self._client.look_all(f"{locations}/{region}/usages", version=wire.COMPUTE)
        now_s = self._clock.now_s()
        prices = self._prices(region, known)
        return catalogue.offers(
            shelf,
            shapes=known,
            usages=usages,
            prices=catalogue.price_rows(prices, now_s=now_s),
            reservations=self._reservations(region),
            losses=self._losses(region, known),
            now_s=now_s,
        )

    def _prices(self, region: str, shapes: Sequence[str]) -> Sequence[view.Row]:
        """Return rows of the public price list, which another host has: none where that does not answer."""
        try:
            return self._client.prices(catalogue.price_filter(shapes, region=region))
        except CouldNotLookError as error:
            log.warning("Azure's list prices in %s are not known to offers: %s", region, error)
            return []

    def _reservations(self, region: str) -> Sequence[view.Row]:
        group = self._settings.reservation_groups.get(region)
        if group is None:
            return []
        rows = self._client.look_all(f"{group}/capacityReservations", version=wire.COMPUTE)
        shown = [
            self._client.look(
                f"{group}/capacityReservations/{row['name']}", version=wire.COMPUTE, params={"$expand": "instanceView"}
            )
            for row in rows
        ]
        return [row for row in shown if row is not None]

    def _losses(self, region: str, shapes: Sequence[str]) -> Mapping[str, float]:
        """Return what is known of evictions. An offer is good for something without that, so that it may be nothing."""
        query = catalogue.eviction_query(shapes, region=region)
        try:
            rows = self._client.graph(query, subscription_id=self._settings.subscription_id)
        except CouldNotLookError as error:
            log.warning("how often spot machines are evicted in %s is not known: %s", region, error)
            return {}
        return catalogue.losses_per_hour(rows)

    def _shelf(self, region: str) -> Mapping[str, Size]:
        read_at_s, shelf = self._shelves.get(region, (-math.inf, {}))
        if self._clock.now_s() - read_at_s > CATALOGUE_LIFE_S:
            path = f"/subscriptions/{self._settings.subscription_id}/providers/Microsoft.Compute/skus"
            rows = self._client.look_all(path, version=wire.SKUS, params={"$filter": f"location eq '{region}'"})
            shelf = catalogue.sizes(rows, region=region)
            self._shelves[region] = (self._clock.now_s(), shelf)
        return shelf

    def _lease(self, row: view.Row, leftovers: Sequence[str]) -> Lease | None:
        if view.said_by(row) is None:
            return None
        rows = self._sets.rows(row)
        if rows is None:
            return None
        return view.lease_of(rows, leftovers=leftovers, now_s=self._clock.now_s(), consistency_s=self.consistency_s)

    def _found(self, run: RunKey | None, *, order: Callable[[Lease], Any]) -> list[Lease]:
        """Return leases of ``run``, or all: scale sets with what belongs to them, and what outlived its set."""
        looks: dict[str, Callable[[], Sequence[Lease]]] = {}
        try:
            rows = self._sets.parts()
        except PartlySeenError as error:
            rows = error.seen
            looks |= {kind: partial(_raise, CouldNotLookError(str(error))) for kind in error.unseen}
        own: dict[str, list[view.Row]] = defaultdict(list)
        for row in rows:
            said = view.said_by(row)
            if said is not None and run in (None, said.key.run):
                own[said.key.name].append(row)
        for row in self._sets.all():
            said = view.said_by(row)
            if said is not None and run in (None, said.key.run):
                looks[view.lease_id(said.pool, said.key)] = partial(self._whole, row, own.pop(said.key.name, []))
        looks |= {name: partial(self._remains, name, mine) for name, mine in own.items()}
        return of_each(looks, order=order)

    def _whole(self, row: view.Row, own: Sequence[view.Row]) -> Sequence[Lease]:
        lease = self._lease(row, [str(each["id"]) for each in own if view.is_loose(each)])
        return [] if lease is None else [lease]

    def _remains(self, name: str, rows: Sequence[view.Row]) -> Sequence[Lease]:
        """Return the lease of which only parts are listed. A list may lag: the set itself is asked for by name."""
        row = self._sets.get(name)
        lease = None if row is None else self._lease(row, [])
        return [lease or view.remains_of(rows)]


def _raise(error: CouldNotLookError) -> NoReturn:
    raise error
