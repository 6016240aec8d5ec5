"""Machines at once: one bulk insert that makes all or none, in one zone, close to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from airflow_llmsched.clouds.gcp import offers, render, sight, states
from airflow_llmsched.clouds.gcp.client import ComputeClient
from airflow_llmsched.clouds.gcp.lookout import Lookout
from airflow_llmsched.clouds.gcp.operations import POLL_S, Waiter
from airflow_llmsched.clouds.gcp.record import Place, Record
from airflow_llmsched.clouds.gcp.removal import CREATION_LIMIT_S, Remover
from airflow_llmsched.clouds.gcp.render import Machine, Reservation
from airflow_llmsched.clouds.gcp.states import NativeError, Reaction
from airflow_llmsched.clouds.gcp.transport import RefusedError
from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import AbandonedError, CapacityError
from airflow_llmsched.ports import Clock

POLICY_LIMIT_S = 120.0
"""How long Google may take to make a placement policy. It takes a second or two."""


class MachineRental:
    """Rents by bulk insert. Knows nothing that Google does not know too."""

    def __init__(
        self,
        client: ComputeClient,
        lookout: Lookout,
        remover: Remover,
        clock: Clock,
        *,
        machine: Machine,
        is_compact: bool,
        consistency_s: float,
    ) -> None:
        self._client = client
        self._lookout = lookout
        self._remover = remover
        self._clock = clock
        self._waiter = Waiter(client, clock)
        self._machine = machine
        self._is_compact = is_compact
        self._consistency_s = consistency_s

    def acquire(self, spec: Record) -> Lease:
        """Rent what ``spec`` says, or return what was rented as that. Raises as ``ports.Cloud.acquire``."""
        begun = self._client.operations_of(spec.place.zone, spec.place.request_id("machines"))
        operation = begun[0] if begun else self._begin(spec)
        if operation is not None:
            operation = self._waiter.wait(operation, limit_s=CREATION_LIMIT_S)
            if operation["status"] != "DONE":
                return self._seen(spec.place) or sight.pending(spec)
            self._expect_all(spec, operation)
        self._await_listing(spec, operation)
        lease = self._seen(spec.place)
        if lease is not None and self._lookout.machines(spec.place):
            return lease
        self._remover.remove(spec.place)
        raise AbandonedError(f"lease {spec.place.id} has ended: nothing is rented under its key again")

    def _begin(self, spec: Record) -> dict[str, Any] | None:
        """Ask for the machines. Returns the operation; None: their names are taken, as they were asked for long ago."""
        self._expect_time_left(spec)
        reservation = self._reservation(spec)
        policy = self._policy(spec)
        self._expect_time_left(spec)
        body = render.bulk_insert(spec, machine=self._machine, policy=policy, reservation=reservation)
        try:
            return self._client.create_machines(spec.place, body)
        except RefusedError as error:
            if states.reaction(error.errors) is Reaction.EXISTS:
                return None
            self._give_up(spec, error.errors, is_final=False, cause=error)

    def _expect_time_left(self, spec: Record) -> None:
        """Raise ``AbandonedError`` when the lease would have expired before it began."""
        if self._clock.now_s() >= spec.expires_at_s:
            raise AbandonedError(f"lease {spec.place.id} was to end before it began: nothing was rented")

    def _policy(self, spec: Record) -> str | None:
        """Return the placement policy of the lease, made now unless it is there; None: it needs none."""
        if not self._is_compact or spec.num_nodes < 2:
            return None
        try:
            operation = self._client.create_policy(spec.place, render.placement_policy(spec))
        except RefusedError as error:
            if states.reaction(error.errors) is not Reaction.EXISTS:
                self._give_up(spec, error.errors, is_final=False, cause=error)
            return spec.place.name
        errors = states.operation_errors(self._waiter.wait(operation, limit_s=POLICY_LIMIT_S))
        if errors and states.reaction(errors) is not Reaction.EXISTS:
            self._give_up(spec, errors, is_final=False)
        return spec.place.name

    def _reservation(self, spec: Record) -> Reservation | None:
        if spec.capacity_type is not CapacityType.RESERVED:
            return None
        rows = self._client.reservations(zone=spec.place.zone)
        found = offers.reservation_for(rows, shape=spec.shape, num_nodes=spec.num_nodes)
        if found is None:
            raise CapacityError(
                f"no reservation in {spec.place.zone} has {spec.num_nodes} nodes of {spec.shape} free now. "
                "Wait for its start, or for its other users"
            )
        return found

    def _expect_all(self, spec: Record, operation: dict[str, Any]) -> None:
        """Remove what came and raise, when not all did: with an error, or without a word."""
        errors = self._waiter.causes(spec.place.zone, operation)
        if errors and states.reaction(errors) is Reaction.EXISTS:
            return  # a late duplicate: the machines that have the names are the lease's own
        num_created = states.num_created(operation)
        if errors or (num_created is not None and num_created < spec.num_nodes):
            self._give_up(spec, errors, is_final=True)

    def _give_up(
        self, spec: Record, errors: Sequence[NativeError], *, is_final: bool, cause: Exception | None = None
    ) -> NoReturn:
        """Remove what there is, and raise what was wrong; ``LeftoverError`` when some of it does not go."""
        self._remover.remove(spec.place)
        what = f"{spec.num_nodes} nodes of {spec.shape} ({spec.capacity_type}) in {spec.place.zone}"
        raise states.refusal(errors, what=what, region=spec.place.region, is_final=is_final) from cause

    def _await_listing(self, spec: Record, operation: dict[str, Any] | None) -> None:
        """Wait until all machines are listed, no longer than Google may take to list them."""
        ended = None if operation is None else operation.get("endTime") or operation.get("insertTime")
        until_s = (sight.parse_time_s(ended) if ended else self._clock.now_s()) + self._consistency_s
        while len(self._lookout.machines(spec.place)) < spec.num_nodes and self._clock.now_s() < until_s:
            self._clock.sleep(POLL_S)

    def _seen(self, place: Place) -> Lease | None:
        return sight.lease(self._lookout.many([place])[place], consistency_s=self._consistency_s)
