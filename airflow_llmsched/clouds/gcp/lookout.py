"""Looks for leases at Google, by as few calls as there are kinds of things to list."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_llmsched.clouds.gcp import record, sight
from airflow_llmsched.clouds.gcp.client import MAX_FILTERED, ComputeClient
from airflow_llmsched.clouds.gcp.record import Place, Way
from airflow_llmsched.clouds.gcp.sight import Gatherer, Seen
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.ports import Clock

log = logging.getLogger(__name__)

ANY_NAME = "ls-.*"


class Lookout:
    """Every method raises as ``Transport.call``: what cannot be listed whole is not taken to be absent."""

    def __init__(self, client: ComputeClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    def one(self, place: Place) -> Seen:
        """Return everything that is listed of one lease, as is needed to remove it."""
        gatherer = Gatherer(at_s=self._clock.now_s())
        gatherer.add("machines", self._machines([place]))
        gatherer.add("disks", self._client.disks(label=record.LEASE_LABEL, values=[place.name], zone=place.zone))
        if place.way is Way.QUEUE:
            gatherer.add("groups", self._client.groups(names=place.name, zone=place.zone))
            gatherer.add("templates", self._client.templates(names=place.name, region=place.region))
            self._add_requests(gatherer)
        else:
            gatherer.add("policies", self._client.policies(names=place.name, region=place.region))
        return gatherer.seen(place)

    def many(self, places: Sequence[Place]) -> Mapping[Place, Seen]:
        """Return the state of each lease, and why machines of it are gone."""
        gatherer = Gatherer(at_s=self._clock.now_s())
        gatherer.add("machines", self._machines(places))
        queued = [place for place in places if place.way is Way.QUEUE]
        if queued:
            gatherer.add("groups", self._client.groups(names=_names(queued), zone=_only(each.zone for each in queued)))
            self._add_requests(gatherer, only_unmet=True)
            if any(gatherer.seen(place).is_empty for place in queued):
                region = _only(each.region for each in queued)
                gatherer.add("templates", self._client.templates(names=_names(queued), region=region))
        bare = [place for place in places if place.way is Way.MACHINES and gatherer.seen(place).is_empty]
        if bare:
            region = _only(each.region for each in bare)
            gatherer.add("policies", self._client.policies(names=_names(bare), region=region))
        return self._explained(gatherer, places)

    def everything(self, run: RunKey | None = None) -> tuple[Mapping[Place, Seen], frozenset[str]]:
        """Return every lease of which anything is listed, of one run or of all, and what could not be reached.

        Of a zone that could not be reached, or one in such a region, no lease is returned: what is listed of it
        elsewhere would look like what is left of a lease whose machines are gone.
        """
        label, values = (record.LEASE_LABEL, []) if run is None else (record.RUN_LABEL, [str(run)])
        names = ANY_NAME if run is None else f"{run}-g.*"
        gatherer = Gatherer(at_s=self._clock.now_s())
        unreached: set[str] = set()
        gatherer.add("machines", self._client.machines(label=label, values=values, unreached=unreached))
        gatherer.add("disks", self._client.disks(label=label, values=values, unreached=unreached))
        gatherer.add("policies", self._client.policies(names=names, unreached=unreached))
        gatherer.add("groups", self._client.groups(names=names, unreached=unreached))
        gatherer.add("templates", self._client.templates(names=names, unreached=unreached))
        by_zone: dict[str, list[Place]] = {}
        for place in gatherer.parts:
            if not {place.zone, place.region} & unreached:
                by_zone.setdefault(place.zone, []).append(place)
        seen: dict[Place, Seen] = {}
        for zone, places in by_zone.items():
            try:
                self._add_requests(gatherer, among=places)
                seen.update(self._explained(gatherer, places))
            except CouldNotLookError as error:
                log.warning("what is rented in %s is not known: %s", zone, error)
                unreached.add(zone)
        return seen, frozenset(unreached)

    def machines(self, place: Place) -> list[dict[str, Any]]:
        """Return the machines of one lease."""
        return self._machines([place])

    def _machines(self, places: Sequence[Place]) -> list[dict[str, Any]]:
        names = [place.name for place in places]
        return self._client.machines(label=record.LEASE_LABEL, values=names, zone=_only(place.zone for place in places))

    def _add_requests(self, gatherer: Gatherer, *, among: Sequence[Place] = (), only_unmet: bool = False) -> None:
        """Add the requests of all groups ``among`` those places (none: all), or of those that lack machines."""
        for place in among or list(gatherer.parts):
            kinds = gatherer.parts[place]
            if only_unmet and not sight.is_short(gatherer.seen(place)):
                continue
            for group in kinds.get("groups", []):
                kinds.setdefault("requests", []).extend(self._client.requests(place.zone, group["name"]))

    def _explained(self, gatherer: Gatherer, places: Iterable[Place]) -> Mapping[Place, Seen]:
        """Return what was gathered, with the preemptions of those zones in which a machine is gone."""
        seen = {place: gatherer.seen(place) for place in places}
        zones = {place.zone for place, each in seen.items() if sight.needs_causes(each)}
        taken = {
            zone: frozenset(sight.short(each["targetLink"]) for each in self._client.preemptions(zone))
            for zone in sorted(zones)
        }
        return {
            place: gatherer.seen(place, preempted=taken[place.zone]) if place.zone in taken else each
            for place, each in seen.items()
        }


def _only(where: Iterable[str]) -> str:
    """Return the zone or region that all are in; empty: they are in several."""
    found = set(where)
    return found.pop() if len(found) == 1 else ""


def _names(places: Sequence[Place]) -> str:
    """Return a regular expression for the names of leases, or for all of ours if they are many."""
    return "|".join(place.name for place in places) if len(places) <= MAX_FILTERED else ANY_NAME
