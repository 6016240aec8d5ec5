"""Slices of TPUs when there are some: a queued resource of Cloud TPU, all of its slices or none."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from airflow_llmsched.clouds.gcp import record, states, tpu_words
from airflow_llmsched.clouds.gcp.operations import POLL_S
from airflow_llmsched.clouds.gcp.record import Place, Record
from airflow_llmsched.clouds.gcp.states import NativeError, Reaction, RequestState
from airflow_llmsched.clouds.gcp.tpu_client import TpuClient
from airflow_llmsched.clouds.gcp.tpu_words import SeenSlices, Slice
from airflow_llmsched.clouds.gcp.transport import RefusedError
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.errors import (
    AbandonedError,
    CouldNotLookError,
    LeaseGoneError,
    LeftoverError,
    SpecError,
    TransientError,
)
from airflow_llmsched.ports import Clock

log = logging.getLogger(__name__)

CREATION_LIMIT_S = 120.0
"""How long Google may take to accept a request."""
REMOVAL_LIMIT_S = 900.0
NUM_VAIN_ROUNDS = 4


class TpuRental:
    """Rents by queued resource in ``zones``: the lease is ``PENDING`` until all slices can be had at once."""

    def __init__(
        self, client: TpuClient, clock: Clock, *, zones: Sequence[str], slice_: Slice | None, consistency_s: float
    ) -> None:
        self._client = client
        self._clock = clock
        self.zones = tuple(zones)
        self._slice = slice_
        self._consistency_s = consistency_s

    def acquire(self, spec: Record) -> Lease:
        """Queue for what ``spec`` says, or return what was queued for. Raises as ``ports.Cloud.acquire``."""
        place = spec.place
        if self._client.queued_one(place) is None:
            self._begin(spec)
        seen = self._await_listing(place)
        if not seen.requests and not seen.slices:
            raise AbandonedError(f"lease {place.id} has ended: nothing is asked for under its key again")
        if seen.request_state is RequestState.FAILED:
            self._give_up(spec, seen.failure, is_final=True)
        lease = tpu_words.lease(seen, consistency_s=self._consistency_s)
        assert lease is not None, "what was asked for says what it is"
        return lease

    def leases(self, places: Sequence[Place]) -> list[Lease]:
        """Return the leases that are listed, by two calls for each zone. Raises ``CouldNotLookError``."""
        found = self._seen(sorted({place.zone for place in places}))
        return self._shown(found[place] for place in places if place in found)

    def find(self, zone: str, run: RunKey | None = None) -> list[Lease]:
        """Return the leases of a run, or all, in a zone. Raises ``CouldNotLookError``."""
        found = self._seen([zone])
        return self._shown(each for place, each in found.items() if run in (None, place.key.run))

    def accelerator_types(self, zone: str) -> list[dict[str, Any]]:
        """Return the kinds of slices of a zone. Raises ``CouldNotLookError``."""
        return self._client.accelerator_types(zone)

    def renew(self, place: Place, *, until_s: float) -> Lease:
        """Have every slice state the later expiry.

        A request that waits states its own end from the start, and no other. Raises ``LeaseGoneError``,
        ``CouldNotLookError``.
        """
        for row in self._one(place).slices:
            stated_s = record.expiry(row.get("labels", {}))
            if stated_s is not None and stated_s >= until_s:
                continue
            try:
                self._await(self._client.label_slice(row["name"], tpu_words.relabelled(row, until_s=until_s)))
            except RefusedError as error:
                raise CouldNotLookError(f"lease {place.id} could not be renewed: {error}") from error
        lease = tpu_words.lease(self._one(place), consistency_s=self._consistency_s)
        if lease is None:
            raise LeaseGoneError(f"lease {place.id} has ended and cannot be renewed: rent anew")
        return lease

    def remove(self, place: Place) -> None:
        """Withdraw the request and delete what has come. Raises ``LeftoverError``, ``CouldNotLookError``."""
        give_up_at_s, num_vain, told = self._clock.now_s() + REMOVAL_LIMIT_S, 0, "it takes too long"
        while rows := self._left(seen := self._one(place)):
            if num_vain >= NUM_VAIN_ROUNDS or self._clock.now_s() >= give_up_at_s:
                left = tpu_words.paths((*seen.slices, *seen.requests))
                raise LeftoverError(f"Google does not remove parts of lease {place.id} ({told})", ids=left)
            errors = self._remove_round(rows)
            told = next(iter(errors), told)
            num_vain = num_vain + 1 if errors else 0
            self._clock.sleep(POLL_S)

    @staticmethod
    def _left(seen: SeenSlices) -> tuple[tpu_words.Json, ...]:
        """Return what is to be deleted: a request takes its slices along."""
        return seen.requests or seen.slices

    def _remove_round(self, rows: Sequence[tpu_words.Json]) -> list[str]:
        """Delete things and wait for it. Returns why some were not, of those that time alone does not cure."""
        errors: list[str] = []
        for row in rows:
            name = str(row["name"])
            delete = self._client.delete_queued if "/queuedResources/" in name else self._client.delete_slice
            try:
                failed = tpu_words.rpc_errors(self._await(delete(name)).get("error"))
            except RefusedError as error:
                failed = error.errors
            except TransientError as error:
                log.warning("%s was not removed: %s", name, error)
                errors.append(str(error))
                continue
            if failed and states.reaction(failed) not in (Reaction.ABSENT, Reaction.RETRY):
                log.warning("%s was not removed: %s", name, failed[0])
                errors.append(str(failed[0]))
        return errors

    def _begin(self, spec: Record) -> None:
        if self._slice is None:
            raise SpecError(path="tpu", hint="say what slices are made of: at least a runtime_version")
        if self._clock.now_s() >= spec.expires_at_s:
            raise AbandonedError(f"lease {spec.place.id} was to end before it began: nothing was asked for")
        expires_at_s = tpu_words.expires_at_s(spec.expires_at_s, slice_=self._slice, now_s=self._clock.now_s())
        said = replace(spec, expires_at_s=expires_at_s)
        body = tpu_words.queued_resource(said, slice_=self._slice, parent=self._client.parent(spec.place.zone))
        try:
            failed = tpu_words.rpc_errors(self._await(self._client.create_queued(spec.place, body)).get("error"))
        except RefusedError as error:
            if states.reaction(error.errors) is Reaction.EXISTS:
                return
            self._give_up(spec, error.errors, is_final=False, cause=error)
        if failed and states.reaction(failed) is not Reaction.EXISTS:
            self._give_up(spec, failed, is_final=True)

    def _give_up(
        self, spec: Record, errors: Sequence[NativeError], *, is_final: bool, cause: Exception | None = None
    ) -> NoReturn:
        self.remove(spec.place)
        what = f"{spec.num_nodes} slices of {spec.shape} ({spec.capacity_type}) in {spec.place.zone}"
        raise states.refusal(errors, what=what, region=spec.place.region, is_final=is_final) from cause

    def _await(self, operation: dict[str, Any]) -> dict[str, Any]:
        give_up_at_s = self._clock.now_s() + CREATION_LIMIT_S
        while not operation.get("done") and self._clock.now_s() < give_up_at_s:
            self._clock.sleep(POLL_S)
            operation = self._client.operation(operation)
        return operation

    def _await_listing(self, place: Place) -> SeenSlices:
        until_s = self._clock.now_s() + self._consistency_s
        while not (seen := self._one(place)).requests and self._clock.now_s() < until_s:
            self._clock.sleep(POLL_S)
        return seen

    def _one(self, place: Place) -> SeenSlices:
        """Return what there is of one lease: the request by its name, which is not listed before it is there."""
        request = self._client.queued_one(place)
        slices = [each for each in self._client.slices(place.zone) if tpu_words.place_of(each) == place]
        return self._gathered(place, [request] if request else [], slices)

    def _seen(self, zones: Iterable[str]) -> dict[Place, SeenSlices]:
        requests: dict[Place, list[tpu_words.Json]] = {}
        slices: dict[Place, list[tpu_words.Json]] = {}
        for zone in zones:
            for rows, found in ((self._client.queued(zone), requests), (self._client.slices(zone), slices)):
                for row in rows:
                    place = tpu_words.place_of(row)
                    if place is not None:
                        found.setdefault(place, []).append(row)
        return {
            place: self._gathered(place, requests.get(place, []), slices.get(place, []))
            for place in sorted({*requests, *slices})
        }

    def _gathered(
        self, place: Place, requests: Sequence[tpu_words.Json], slices: Sequence[tpu_words.Json]
    ) -> SeenSlices:
        """Return what is listed of a lease, and what must be there and is not listed yet."""
        seen = SeenSlices(place=place, at_s=self._clock.now_s(), requests=tuple(requests), slices=tuple(slices))
        found = (self._client.slice_one(place, name) for name in tpu_words.unlisted(seen))
        return replace(seen, slices=(*seen.slices, *(each for each in found if each is not None)))

    def _shown(self, seen: Iterable[SeenSlices]) -> list[Lease]:
        leases = (tpu_words.lease(each, consistency_s=self._consistency_s) for each in seen)
        return [each for each in leases if each is not None]
