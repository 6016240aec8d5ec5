"""Renting on EC2: what is asked in which order, and what answers mean. The calls themselves are in other modules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from airflow_llmsched.clouds import parts
from airflow_llmsched.clouds.aws import creating, events, market, removal, render, seen, topology
from airflow_llmsched.clouds.aws import tags as tagging
from airflow_llmsched.clouds.aws.client import AwsClient, AwsError
from airflow_llmsched.clouds.aws.options import read_options
from airflow_llmsched.clouds.aws.render import Rental, Reservation
from airflow_llmsched.clouds.aws.seen import Rows, Seen
from airflow_llmsched.clouds.aws.states import EVENTS, Reaction, refusal
from airflow_llmsched.clouds.aws.tags import LeaseTags
from airflow_llmsched.domain.capacity import Offer, Pool, Requirement
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunKey, RunOrigin
from airflow_llmsched.domain.lease import Lease, LeasedNode, LeasedNodeState, LeaseId, LeaseState
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import (
    AbandonedError,
    CapacityError,
    CouldNotLookError,
    InternalError,
    LeaseGoneError,
    LeftoverError,
    LlmschedError,
    QuotaError,
    SpecError,
    TransientError,
)
from airflow_llmsched.ports import Clock, CloudFeature, LateDuplicateGuard

log = logging.getLogger(__name__)

_RENEW = EffectPoint("aws.tags.renew")

MAX_FILTER_VALUES = 200
"""EC2's limit of values in one filter."""

_LISTS = {
    "templates": ("describe_launch_templates", "LaunchTemplates"),
    "requests": ("describe_spot_instance_requests", "SpotInstanceRequests"),
    "groups": ("describe_placement_groups", "PlacementGroups"),
    "volumes": ("describe_volumes", "Volumes"),
    "interfaces": ("describe_network_interfaces", "NetworkInterfaces"),
}
"""What is listed beside instances, each by one call."""
_EVENTFUL = [{"Name": "event.code", "Values": sorted(EVENTS)}]
_CORE = ("templates", "requests")
_RENTED = (*_CORE, "groups")
_EVERYTHING = tuple(_LISTS)


class AwsCloud:
    """A ``Cloud`` on EC2 fleets of type ``instant``. It keeps nothing: all state is in the tags of what is rented.

    ``credentials`` is a ``boto3.Session``, or None for boto3's own chain; the options are those of ``AwsOptions``.
    """

    name = tagging.CLOUD
    features = frozenset({CloudFeature.TOPOLOGY, CloudFeature.NOTICES})
    late_duplicate_guard = LateDuplicateGuard.CLIENT_TOKEN

    def __init__(self, *, credentials: Any = None, clock: Clock | None = None, **options: Any) -> None:
        self._options = read_options(options)
        self.consistency_s = self._options.consistency_s
        self._client = AwsClient(credentials, endpoint_url=self._options.endpoint_url, clock=clock)
        self._market = market.Market(self._client, self._options)

    def lease_id(self, pool: Pool, key: LeaseKey) -> LeaseId:
        """Return the region and the key's name."""
        return seen.lease_id(pool.region, key)

    def offers(self, need: Requirement) -> Sequence[Offer]:
        """Return what could be rented of the shapes asked for, in the regions of the options that the wish allows.

        Raises ``CouldNotLookError``, ``PartlySeenError``.
        """
        return self._market.offers(need)

    def topology(self, lease: Lease) -> TopologyTree:
        """Return the lease's nodes below EC2's network nodes, or below their zone where EC2 knows no more of all.

        Raises ``CouldNotLookError``.
        """
        ids = [str(node.id) for node in lease.nodes if not node.state.is_gone]
        region = lease.pool.region
        rows: list[dict[str, Any]] = []
        for part in _parts(ids, topology.MAX_IDS):
            rows += self._client.rows("describe_instance_topology", "Instances", region=region, InstanceIds=part)
        num_slots = self._market.shape(region, lease.pool.shape).num_accelerators if ids else 0
        return topology.tree(lease, rows, num_slots=num_slots)

    def acquire(self, offer: Offer, *, key: LeaseKey, origin: RunOrigin, num_nodes: int, until_s: float) -> Lease:
        """Rent all or none, in one zone, by one fleet request under the key's token. Raises as ``Cloud.acquire``."""
        pool = offer.pool
        self._check(pool, num_nodes)
        there = self._listed(pool.region, key.name, kinds=_RENTED)
        if there is not None:
            found = self._rented(there)
            if found is not None:
                return found
        now_s = self._client.clock.now_s()
        if until_s <= now_s:
            raise AbandonedError(f"lease {self.lease_id(pool, key)} was to end before it began: nothing was rented")
        said = LeaseTags(
            key=key, origin=origin, pool=pool, num_nodes=num_nodes, created_at_s=now_s, expires_at_s=until_s
        )
        rental = self._rental(said)
        if there is not None and there.named_ids:
            # The template is an earlier process's: its nodes are waited for from now on.
            begun = {tagging.CREATED: rental.tags[tagging.CREATED]}
            self._extend(there.lease.id, there.named_ids, until_s=max(until_s, there.lease.expires_at_s), also=begun)
        try:
            answer = creating.create(self._client, rental, until_s=until_s, consistency_s=self.consistency_s)
        except AwsError as error:
            self._refused(error, rental, is_ours=there is None)
        except AbandonedError:
            self._remove(rental)
            raise
        if len(answer.instance_ids) != num_nodes:
            self._incomplete(answer, rental)
        if there is not None and there.lease.expires_at_s < until_s:
            # The expiry that instances begin with is in the template, which can not be changed.
            self._extend(there.lease.id, answer.instance_ids, until_s=until_s)
        return _just_rented(self.lease_id(pool, key), said, answer.instance_ids)

    def leases(self, ids: Sequence[LeaseId]) -> Mapping[LeaseId, Lease]:
        """Return the leases that EC2 lists, by four calls for each region, and the queue's. Raises as the port's."""
        if not ids:
            return {}
        events.keep(self._client, self._options)
        found: dict[LeaseId, Lease] = {}
        for region, names in _by_region(ids).items():
            for part in _parts(names, MAX_FILTER_VALUES):
                listed = self._look(region, _named(part), kinds=_CORE, has_events=True)
                found.update({each: one.lease for each, one in listed.items()})
        return {each: found[each] for each in ids if each in found}

    def find(self, run: RunKey) -> Sequence[Lease]:
        """Return the run's leases of which anything is left, names included, oldest key first."""
        filters = [{"Name": f"tag:{tagging.RUN}", "Values": [str(run)]}]
        return self._left(filters, order=lambda lease: (lease.key.generation, lease.key.rental))

    def find_all(self) -> Sequence[Lease]:
        """Return every lease of ours of which anything is left, names included, by id."""
        return self._left([{"Name": "tag-key", "Values": [tagging.LEASE]}], order=lambda lease: lease.id)

    def renew(self, lease: Lease, *, until_s: float) -> Lease:
        """Write the expiry into the tags of the instances and the template. Raises as ``Cloud.renew``."""
        region, name = _split(lease.id)
        there = self._listed(region, name, kinds=_CORE)
        if there is None or not there.instance_ids:
            young = there is not None and there.lease.state is LeaseState.PENDING
            if young or (there is None and lease.state is LeaseState.PENDING):
                raise CouldNotLookError(f"the nodes of lease {lease.id} are not listed yet: renew it again")
            raise LeaseGoneError(f"lease {lease.id} has ended and cannot be renewed: rent anew")
        if there.lease.expires_at_s >= until_s:
            return there.lease
        self._extend(lease.id, [*there.instance_ids, *there.named_ids], until_s=until_s)
        return replace(there.lease, expires_at_s=until_s)

    def release(self, lease_id: LeaseId) -> None:
        """Delete the launch template, cancel spot requests, terminate, and delete what hangs on nothing any more.

        Nodes that are not listed, but may yet be, are waited for: ``consistency_s`` from the end of the template.
        Raises ``LeftoverError``, ``CouldNotLookError``.
        """
        region, name = _split(lease_id)
        removal.remove(self._client, self._listed, region=region, key_name=name, consistency_s=self.consistency_s)

    # Renting

    def _check(self, pool: Pool, num_nodes: int) -> None:
        if pool.cloud != self.name or pool.region not in self._options.regions:
            raise SpecError(
                path="offer", value=f"{pool.cloud}/{pool.region}", hint=f"rent in {', '.join(self._options.regions)}"
            )
        if num_nodes < 1:
            raise SpecError(path="num_nodes", value=num_nodes, hint="must be 1 or more")

    def _rented(self, there: Seen) -> Lease | None:
        """Return the lease that the key has already; None when it is yet to come, or to be completed.

        Raises ``AbandonedError`` where the template is gone, which a release deletes first.
        """
        lease = there.lease
        is_young = self._client.clock.now_s() < there.created_at_s + self.consistency_s
        if not there.template_names and (lease.gone or not is_young):
            raise AbandonedError(f"lease {lease.id} was released: nothing is rented under its key again")
        return lease if lease.gone or len(lease.nodes) >= lease.num_nodes else None

    def _rental(self, said: LeaseTags) -> Rental:
        pool, written = said.pool, tagging.write(said)
        reservation = None
        if pool.capacity_type is CapacityType.RESERVED:
            held = self._market.reservation(pool, num_nodes=said.num_nodes)
            reservation = Reservation(id=held.id, is_block=held.is_block)
            if held.is_block and held.ends_at_s is not None:
                written[tagging.BLOCK_ENDS] = tagging.expiry(held.ends_at_s)
        return Rental(
            name=render.resource_name(said.key.name),
            pool=pool,
            num_nodes=said.num_nodes,
            shape=self._market.shape(pool.region, pool.shape),
            subnet_id=self._market.subnet(pool),
            tags=written,
            options=self._options,
            reservation=reservation,
        )

    def _remove(self, rental: Rental, *, came: Sequence[str] = ()) -> None:
        """Remove a rental of which nothing will come but ``came``. Raises ``LeftoverError``, ``CouldNotLookError``."""
        removal.remove(
            self._client,
            self._listed,
            region=rental.pool.region,
            key_name=rental.tags[tagging.LEASE],
            consistency_s=self.consistency_s,
            came=came,
            is_whole=True,
        )

    def _refused(self, error: AwsError, rental: Rental, *, is_ours: bool) -> NoReturn:
        """Remove the names that there are already, and raise what EC2's refusal means.

        A call that was not taken says nothing about what another process began under the key: that stays.
        """
        if error.meant in (Reaction.UNKNOWN, Reaction.CLASH):
            raise CouldNotLookError(f"it is unknown what was rented: {error}. Repeat the call, or release") from error
        if is_ours or error.meant is not Reaction.AGAIN:
            try:
                self._remove(rental)
            except (TransientError, LeftoverError) as unremoved:
                # No instance has come. Names cost nothing: they are found under the run, and go with a release.
                log.warning("names of lease %s are left: %s", rental.name, unremoved)
        raise _meaning(error.meant, error.code, str(error), rental) from error

    def _incomplete(self, answer: creating.Answer, rental: Rental) -> NoReturn:
        """Field cases E1 and E5: remove what came of a fleet, and raise what its error list means."""
        self._remove(rental, came=answer.instance_ids)
        num_came, pool = len(answer.instance_ids), rental.pool
        meant, code = refusal(answer.codes)
        if meant not in (Reaction.QUOTA, Reaction.FIX, None):
            meant = Reaction.WAIT  # whatever kept the others: the token is used up, and so is this key
        said = f"{num_came} of {rental.num_nodes} nodes of {pool.shape} came in {pool.zone}, and were removed"
        raise _meaning(meant, code, f"{said}: {answer.said}", rental)

    def _extend(
        self, lease_id: LeaseId, ids: Sequence[str], *, until_s: float, also: Mapping[str, str] | None = None
    ) -> None:
        """Write an expiry, and whatever else. Raises ``CouldNotLookError``."""
        try:
            self._tag(_split(lease_id)[0], ids, {tagging.EXPIRES: tagging.expiry(until_s), **(also or {})})
        except AwsError as error:
            raise CouldNotLookError(f"lease {lease_id} may not have been renewed: {error}") from error

    # Looking

    def _listed(self, region: str, key_name: str, *, kinds: Sequence[str] = _EVERYTHING) -> Seen | None:
        """Return what is listed under one key's name; None: nothing."""
        found = self._look(region, _named([key_name]), kinds=kinds)
        return next(iter(found.values()), None)

    def _left(self, filters: list[dict[str, Any]], *, order: Callable[[Lease], Any]) -> list[Lease]:
        """Return the leases of which anything is left, asked region by region. Raises as ``parts.of_each``."""
        looks = {region: partial(self._left_in, region, filters) for region in self._options.regions}
        return parts.of_each(looks, order=order)

    def _left_in(self, region: str, filters: list[dict[str, Any]]) -> list[Lease]:
        found = self._look(region, filters, kinds=_EVERYTHING)
        return [one.lease for one in found.values() if one.is_left]

    def _look(
        self, region: str, filters: list[dict[str, Any]], *, kinds: Sequence[str], has_events: bool = False
    ) -> dict[LeaseId, Seen]:
        """Return the leases that pass the filters: their instances, what else of ``kinds`` there is, and events."""

        def rows(operation: str, field: str, filters: list[dict[str, Any]] = filters) -> list[dict[str, Any]]:
            return self._client.rows(operation, field, region=region, Filters=filters)

        reservations = rows("describe_instances", "Reservations")
        return seen.leases(
            Rows(
                instances=[row for each in reservations for row in each.get("Instances", ())],
                statuses=rows("describe_instance_status", "InstanceStatuses", _EVENTFUL) if has_events else (),
                **{kind: rows(*_LISTS[kind]) for kind in kinds},
            ),
            region=region,
            now_s=self._client.clock.now_s(),
            consistency_s=self.consistency_s,
        )

    @_RENEW
    def _tag(self, region: str, ids: Sequence[str], written: Mapping[str, str]) -> None:
        self._client.call("create_tags", region=region, Resources=list(ids), Tags=tagging.pairs(written))


def _meaning(meant: Reaction | None, code: str, said: str, rental: Rental) -> LlmschedError:
    """Return the error that EC2's refusal is to our callers. Nothing of the rental is left."""
    pool = rental.pool
    match meant:
        case Reaction.WAIT:
            return CapacityError(f"no room for {rental.num_nodes} nodes of {pool.shape} in {pool.zone}: {said}")
        case Reaction.QUOTA:
            return QuotaError(
                f"the account's quota in {pool.region} is used up: {said}. Ask AWS for more, or go elsewhere",
                region=pool.region,
            )
        case Reaction.FIX:
            return SpecError(path="offer", value=f"{pool.shape} in {pool.zone}", hint=f"EC2 will never accept: {said}")
        case Reaction.AGAIN:
            return TransientError(f"AWS took no more calls, and nothing was rented: {said}. Try again")
        case Reaction.GONE:
            return AbandonedError(f"lease {rental.name} was released while it was being rented: {said}")
        case _:
            return InternalError(
                f"EC2 refused with {code!r}, which airflow_llmsched.clouds.aws.states does not know: {said}. "
                "Nothing was rented"
            )


def _just_rented(lease_id: LeaseId, said: LeaseTags, instance_ids: Iterable[str]) -> Lease:
    """Return a lease by EC2's answer alone: its lists may not have it yet."""
    return Lease(
        id=lease_id,
        key=said.key,
        pool=said.pool,
        num_nodes=said.num_nodes,
        state=LeaseState.PENDING,
        expires_at_s=said.expires_at_s,
        nodes=tuple(LeasedNode(id=NodeId(each), state=LeasedNodeState.STARTING) for each in sorted(instance_ids)),
        origin=said.origin,
        reason="its nodes are starting",
    )


def _named(key_names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{tagging.LEASE}", "Values": list(key_names)}]


def _split(lease_id: LeaseId) -> tuple[str, str]:
    region, _, name = lease_id.partition("/")
    tagging.key_of(name)
    return region, name


def _by_region(ids: Iterable[LeaseId]) -> dict[str, list[str]]:
    regions: dict[str, list[str]] = {}
    for each in dict.fromkeys(ids):
        region, name = _split(each)
        regions.setdefault(region, []).append(name)
    return regions


def _parts(values: Sequence[str], size: int) -> list[list[str]]:
    return [list(values[start : start + size]) for start in range(0, len(values), size)]
