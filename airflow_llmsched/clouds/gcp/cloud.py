"""Google Cloud as a ``Cloud``: which calls are made, and in which order."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.clouds.gcp import offers, record, sight, topology, tpu_words
from airflow_llmsched.clouds.gcp.catalogue import PriceList
from airflow_llmsched.clouds.gcp.client import ComputeClient
from airflow_llmsched.clouds.gcp.lookout import Lookout
from airflow_llmsched.clouds.gcp.machines import MachineRental
from airflow_llmsched.clouds.gcp.offers import Catalogue
from airflow_llmsched.clouds.gcp.queue import QueueRental
from airflow_llmsched.clouds.gcp.record import Place, Record, Way
from airflow_llmsched.clouds.gcp.removal import Remover
from airflow_llmsched.clouds.gcp.render import Machine
from airflow_llmsched.clouds.gcp.renewal import Renewer
from airflow_llmsched.clouds.gcp.tpu import TpuRental
from airflow_llmsched.clouds.gcp.tpu_client import TpuClient
from airflow_llmsched.clouds.gcp.tpu_words import Slice
from airflow_llmsched.clouds.parts import of_each
from airflow_llmsched.domain.capacity import Offer, Pool, Requirement
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.lease import Lease, LeaseId
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import CouldNotLookError, LeaseGoneError, PartlySeenError, SpecError
from airflow_llmsched.ports import Clock, CloudFeature, LateDuplicateGuard
from airflow_llmsched.units import MINUTE_S

T = TypeVar("T")

log = logging.getLogger(__name__)

CONSISTENCY_S = MINUTE_S
"""How long Google may take to list what it has made."""


class GcpCloud:
    """A ``Cloud``: machines of one project. Options are JSON-safe; docs/howto/rent-on-gcp.md has the table.

    ``credentials`` are google-auth's; None: those of the environment (Application Default Credentials).
    """

    name = record.CLOUD
    features = frozenset({CloudFeature.TOPOLOGY, CloudFeature.QUEUED})
    late_duplicate_guard = LateDuplicateGuard.REQUEST_ID
    consistency_s = CONSISTENCY_S

    def __init__(
        self,
        *,
        project: str,
        regions: Sequence[str],
        image: str,
        machine: Mapping[str, Any] | None = None,
        compact_placement: bool = True,
        queued_shapes: Sequence[str] = (),
        tpu: Mapping[str, Any] | None = None,
        tpu_zones: Sequence[str] = (),
        list_prices: bool = False,
        endpoint_url: str = "",
        credentials: Any = None,
        clock: Clock | None = None,
    ) -> None:
        self._regions = tuple(regions)
        self._queued_shapes = frozenset(queued_shapes)
        self._clock = clock or SystemClock()
        access = {"project": project, "endpoint_url": endpoint_url, "credentials": credentials, "clock": self._clock}
        self._client = ComputeClient(**access)
        self._lookout = Lookout(self._client, self._clock)
        self._renewer = Renewer(self._client, self._lookout, consistency_s=CONSISTENCY_S)
        self._remover = Remover(self._client, self._lookout, self._clock, consistency_s=CONSISTENCY_S)
        parts = (self._client, self._lookout, self._remover, self._clock)
        built = _made(Machine, "machine", {"image": image, **(machine or {})})
        self._machines = MachineRental(*parts, machine=built, is_compact=compact_placement, consistency_s=CONSISTENCY_S)
        self._queue = QueueRental(*parts, machine=built, consistency_s=CONSISTENCY_S)
        self._prices = PriceList(
            regions=self._regions, endpoint_url=endpoint_url, credentials=credentials, clock=self._clock
        )
        self._list_prices = list_prices
        self._tpus = TpuRental(
            TpuClient(**access),
            self._clock,
            zones=tpu_zones,
            slice_=_made(Slice, "tpu", tpu) if tpu else None,
            consistency_s=CONSISTENCY_S,
        )

    def offers(self, need: Requirement) -> Sequence[Offer]:
        """Return what Google has of the shapes of ``need``, with prices if it is asked for some.

        Raises ``CouldNotLookError``, ``PartlySeenError``.
        """
        looks: dict[str, Callable[[], Sequence[Offer]]] = {}
        machines = sorted(each for each in need.by_shape if not tpu_words.is_slice(each))
        if machines:
            looks[offers.SOURCE] = partial(self._machine_offers, machines, need)
        if len(machines) < len(need.by_shape):
            looks |= {zone: partial(self._slice_offers, zone, need) for zone in self._tpus.zones}
        return of_each(looks)

    def _machine_offers(self, names: Sequence[str], need: Requirement) -> Sequence[Offer]:
        unreached: set[str] = set()
        types = self._client.machine_types(names, unreached=unreached)
        catalogue = Catalogue(
            machine_types=types,
            reservations=self._client.reservations(unreached=unreached),
            future_reservations=self._client.future_reservations(unreached=unreached),
            regions=self._client.regions(),
        )
        found = offers.offers(
            catalogue, need, regions=self._regions, queued_shapes=self._queued_shapes, now_s=self._clock.now_s()
        )
        reached = [each for each in found if not {each.pool.zone, each.pool.region} & unreached]
        return self._but(unreached, self._priced(reached, types))

    def _slice_offers(self, zone: str, need: Requirement) -> Sequence[Offer]:
        types = {zone: self._tpus.accelerator_types(zone)}
        return self._priced(
            offers.tpu_offers(types, need, regions=self._regions, now_s=self._clock.now_s()), machine_types=()
        )

    def _priced(self, found: Sequence[Offer], machine_types: Sequence[dict[str, Any]]) -> Sequence[Offer]:
        """Return offers at the list's prices: as they are where it does not answer, for there are other sources."""
        if not found or not self._list_prices:
            return found
        try:
            priced = self._prices.priced(found, machine_types)
        except CouldNotLookError as error:
            log.warning("Google's list prices are not known to offers: %s", error)
            return found
        return [old if self._queues(old.pool) else new for old, new in zip(found, priced, strict=True)]

    def topology(self, lease: Lease) -> TopologyTree:
        """Return the hosts that the lease's machines stand on. Raises ``CouldNotLookError``."""
        place = record.parse_id(lease.id)
        return topology.slices(lease) if place.way is Way.TPU else topology.tree(lease, self._lookout.machines(place))

    def lease_id(self, pool: Pool, key: LeaseKey) -> LeaseId:
        """Return ``<zone>/<way>/<key>``. Raises ``SpecError`` for a pool without a zone, or of another cloud."""
        return self._place(pool, key).id

    def acquire(self, offer: Offer, *, key: LeaseKey, origin: RunOrigin, num_nodes: int, until_s: float) -> Lease:
        """Rent all or none in one zone. Raises as ``ports.Cloud.acquire``."""
        pool = offer.pool
        if num_nodes < 1:
            raise SpecError(path="num_nodes", value=num_nodes, hint="rent at least one node")
        spec = Record(
            place=self._place(pool, key),
            shape=pool.shape,
            capacity_type=pool.capacity_type,
            num_nodes=num_nodes,
            expires_at_s=until_s,
            origin=origin,
        )
        match spec.place.way:
            case Way.MACHINES:
                return self._machines.acquire(spec)
            case Way.QUEUE:
                return self._queue.acquire(spec)
            case Way.TPU:
                return self._tpus.acquire(spec)

    def leases(self, ids: Sequence[LeaseId]) -> Mapping[LeaseId, Lease]:
        """Return the leases that are listed. Raises ``CouldNotLookError``."""
        places = [record.parse_id(each) for each in ids]
        machines = [each for each in places if each.way is not Way.TPU]
        slices = [each for each in places if each.way is Way.TPU]
        found = self._shown(self._lookout.many(machines)) if machines else []
        return {each.id: each for each in (*found, *(self._tpus.leases(slices) if slices else ()))}

    def find(self, run: RunKey) -> Sequence[Lease]:
        """Return the run's leases of which anything is left. Raises as :meth:`find_all`."""
        return of_each(self._looks(run), order=lambda each: (each.key.generation, each.key.rental))

    def find_all(self) -> Sequence[Lease]:
        """Return every lease of the project of which anything is left.

        Raises ``CouldNotLookError``; ``PartlySeenError`` where a zone of the options cannot be reached. No other zone's
        silence is anybody's business: nothing was rented there.
        """
        return of_each(self._looks(None), order=lambda each: each.id)

    def renew(self, lease: Lease, *, until_s: float) -> Lease:
        """Label everything with the later expiry. Raises ``LeaseGoneError``, ``CouldNotLookError``."""
        place = record.parse_id(lease.id)
        if place.way is Way.TPU:
            return self._tpus.renew(place, until_s=until_s)
        self._renewer.renew(place, until_s=until_s)
        seen = self._lookout.many([place])[place]
        renewed = sight.lease(seen, consistency_s=CONSISTENCY_S)
        if renewed is None:
            raise LeaseGoneError(f"lease {lease.id} ended while it was renewed: rent anew")
        return replace(renewed, expires_at_s=max(renewed.expires_at_s, until_s))

    def release(self, lease_id: LeaseId) -> None:
        """Remove whatever there is of the lease. Raises ``LeftoverError``, ``CouldNotLookError``."""
        place = record.parse_id(lease_id)
        (self._tpus if place.way is Way.TPU else self._remover).remove(place)

    # Below the port

    def _looks(self, run: RunKey | None) -> dict[str, Callable[[], Sequence[Lease]]]:
        """Return by which calls leases are found, of a run or all, by what answers for itself."""
        looks: dict[str, Callable[[], Sequence[Lease]]] = {offers.SOURCE: partial(self._machines_left, run)}
        return looks | {zone: partial(self._tpus.find, zone, run) for zone in self._tpus.zones}

    def _machines_left(self, run: RunKey | None) -> Sequence[Lease]:
        seen, unreached = self._lookout.everything(run)
        return self._but(unreached, [each for each in self._shown(seen) if run in (None, each.key.run)])

    def _but(self, unreached: Collection[str], found: Sequence[T]) -> Sequence[T]:
        """Return what was found, or raise ``PartlySeenError`` with it where a zone or region of ours is missing."""
        ours = sorted(each for each in unreached if each in self._regions or record.region_of(each) in self._regions)
        if ours:
            raise PartlySeenError(f"{', '.join(ours)} cannot be reached", seen=found, unseen=ours)
        return found

    def _shown(self, seen: Mapping[Place, sight.Seen]) -> list[Lease]:
        leases = (sight.lease(each, consistency_s=CONSISTENCY_S) for each in seen.values())
        return [each for each in leases if each is not None]

    def _place(self, pool: Pool, key: LeaseKey) -> Place:
        if pool.cloud != self.name or not pool.zone:
            raise SpecError(path="pool", value=pool, hint="is no zone of Google's: take an offer of this cloud")
        if tpu_words.is_slice(pool.shape):
            return Place(zone=pool.zone, way=Way.TPU, name=key.name)
        return Place(zone=pool.zone, way=Way.QUEUE if self._queues(pool) else Way.MACHINES, name=key.name)

    def _queues(self, pool: Pool) -> bool:
        """Whether machines of a pool are queued for, at a rate of its own that the price list does not tell apart."""
        return pool.capacity_type is CapacityType.ON_DEMAND and pool.shape in self._queued_shapes


def _made(kind: type[T], path: str, options: Mapping[str, Any]) -> T:
    """Return what machines or slices are made of. Raises ``SpecError`` for an option that there is not, or must be."""
    fields = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]  # both are dataclasses
    unknown = sorted(set(options) - set(fields))
    if unknown:
        raise SpecError(path=f"{path}.{unknown[0]}", hint=f"unknown; known: {', '.join(sorted(fields))}")
    missing = [name for name, each in fields.items() if _is_needed(each) and name not in options]
    if missing:
        raise SpecError(path=f"{path}.{missing[0]}", hint="must be given")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in options.items()})


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
