"""Google Cloud as a ``Cloud``: which calls are made, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_llmsched.clouds.clock import MachineClock
from airflow_llmsched.clouds.gcp import offers, record, sight, topology
from airflow_llmsched.clouds.gcp.client import ComputeClient
from airflow_llmsched.clouds.gcp.lookout import Lookout
from airflow_llmsched.clouds.gcp.machines import MachineRental
from airflow_llmsched.clouds.gcp.offers import Catalogue
from airflow_llmsched.clouds.gcp.queue import QueueRental
from airflow_llmsched.clouds.gcp.record import Place, Record, Way
from airflow_llmsched.clouds.gcp.removal import Remover
from airflow_llmsched.clouds.gcp.render import Machine
from airflow_llmsched.clouds.gcp.renewal import Renewer
from airflow_llmsched.domain.capacity import Offer, Pool, Requirement
from airflow_llmsched.domain.identity import LeaseKey, RunKey, RunOrigin
from airflow_llmsched.domain.lease import Lease, LeaseId
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import LeaseGoneError, SpecError
from airflow_llmsched.ports import Clock, CloudFeature, LateDuplicateGuard
from airflow_llmsched.units import MINUTE_S

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
        endpoint_url: str = "",
        credentials: Any = None,
        clock: Clock | None = None,
    ) -> None:
        self._regions = tuple(regions)
        self._queued_shapes = frozenset(queued_shapes)
        self._clock = clock or MachineClock()
        self._client = ComputeClient(
            project=project, endpoint_url=endpoint_url, credentials=credentials, clock=self._clock
        )
        self._lookout = Lookout(self._client, self._clock)
        self._renewer = Renewer(self._client, self._lookout, consistency_s=CONSISTENCY_S)
        self._remover = Remover(self._client, self._lookout, self._clock, consistency_s=CONSISTENCY_S)
        parts = (self._client, self._lookout, self._remover, self._clock)
        built = _machine(image, machine or {})
        self._machines = MachineRental(*parts, machine=built, is_compact=compact_placement, consistency_s=CONSISTENCY_S)
        self._queue = QueueRental(*parts, machine=built, consistency_s=CONSISTENCY_S)

    def offers(self, need: Requirement) -> Sequence[Offer]:
        """Return what Google has of the shapes of ``need``, without prices. Raises ``CouldNotLookError``."""
        if not need.by_shape:
            return []
        catalogue = Catalogue(
            machine_types=self._client.machine_types(sorted(need.by_shape)),
            reservations=self._client.reservations(),
            future_reservations=self._client.future_reservations(),
            regions=self._client.regions(),
        )
        return offers.offers(
            catalogue, need, regions=self._regions, queued_shapes=self._queued_shapes, now_s=self._clock.now_s()
        )

    def topology(self, lease: Lease) -> TopologyTree:
        """Return the hosts that the lease's machines stand on. Raises ``CouldNotLookError``."""
        return topology.tree(lease, self._lookout.machines(record.parse_id(lease.id)))

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
        return self._queue.acquire(spec) if spec.place.way is Way.QUEUE else self._machines.acquire(spec)

    def leases(self, ids: Sequence[LeaseId]) -> Mapping[LeaseId, Lease]:
        """Return the leases that are listed. Raises ``CouldNotLookError``."""
        places = [record.parse_id(each) for each in ids]
        return {each.id: each for each in self._shown(self._lookout.many(places))} if places else {}

    def find(self, run: RunKey) -> Sequence[Lease]:
        """Return the run's leases of which anything is left. Raises ``CouldNotLookError``."""
        found = [each for each in self._shown(self._lookout.everything(run)) if each.key.run == run]
        return sorted(found, key=lambda each: (each.key.generation, each.key.rental))

    def find_all(self) -> Sequence[Lease]:
        """Return every lease of the project of which anything is left. Raises ``CouldNotLookError``."""
        return sorted(self._shown(self._lookout.everything()), key=lambda each: each.id)

    def renew(self, lease: Lease, *, until_s: float) -> Lease:
        """Label everything with the later expiry. Raises ``LeaseGoneError``, ``CouldNotLookError``."""
        place = record.parse_id(lease.id)
        self._renewer.renew(place, until_s=until_s)
        seen = self._lookout.many([place])[place]
        renewed = sight.lease(seen, consistency_s=CONSISTENCY_S)
        if renewed is None:
            raise LeaseGoneError(f"lease {lease.id} ended while it was renewed: rent anew")
        return replace(renewed, expires_at_s=max(renewed.expires_at_s, until_s))

    def release(self, lease_id: LeaseId) -> None:
        """Remove whatever there is of the lease. Raises ``LeftoverError``, ``CouldNotLookError``."""
        self._remover.remove(record.parse_id(lease_id))

    def _shown(self, seen: Mapping[Place, sight.Seen]) -> list[Lease]:
        leases = (sight.lease(each, consistency_s=CONSISTENCY_S) for each in seen.values())
        return [each for each in leases if each is not None]

    def _place(self, pool: Pool, key: LeaseKey) -> Place:
        if pool.cloud != self.name or not pool.zone:
            raise SpecError(path="pool", value=pool, hint="is no zone of Google's: take an offer of this cloud")
        queues = pool.capacity_type is CapacityType.ON_DEMAND and pool.shape in self._queued_shapes
        return Place(zone=pool.zone, way=Way.QUEUE if queues else Way.MACHINES, name=key.name)


def _machine(image: str, options: Mapping[str, Any]) -> Machine:
    """Return what machines are made of. Raises ``SpecError`` for an option that there is not."""
    known = set(Machine.__dataclass_fields__) - {"image"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise SpecError(path=f"machine.{unknown[0]}", hint=f"unknown; known: {', '.join(sorted(known))}")
    tuples = {"nics", "scopes", "network_tags"} & set(options)
    return Machine(image=image, **{**options, **{name: tuple(options[name]) for name in tuples}})
