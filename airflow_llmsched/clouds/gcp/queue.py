"""Machines when there are some: a resize request (flex start) of a managed instance group that the lease owns.

Template, group and request are made in this order and cost nothing until the request is met; the group comes before
what may cost money, and says whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from airflow_llmsched.clouds.gcp import render, sight, states
from airflow_llmsched.clouds.gcp.client import ComputeClient
from airflow_llmsched.clouds.gcp.lookout import Lookout
from airflow_llmsched.clouds.gcp.operations import POLL_S, Waiter
from airflow_llmsched.clouds.gcp.record import Place, Record
from airflow_llmsched.clouds.gcp.removal import Remover
from airflow_llmsched.clouds.gcp.render import Machine
from airflow_llmsched.clouds.gcp.sight import Seen
from airflow_llmsched.clouds.gcp.states import NativeError, Reaction
from airflow_llmsched.clouds.gcp.transport import RefusedError
from airflow_llmsched.domain.lease import Lease
from airflow_llmsched.errors import AbandonedError
from airflow_llmsched.ports import Clock

STEP_LIMIT_S = 120.0
"""How long Google may take for a template, a group, or to accept a request."""


class QueueRental:
    """Rents by resize request: the lease is ``PENDING`` until all machines can be had at once."""

    def __init__(
        self,
        client: ComputeClient,
        lookout: Lookout,
        remover: Remover,
        clock: Clock,
        *,
        machine: Machine,
        consistency_s: float,
    ) -> None:
        self._client = client
        self._lookout = lookout
        self._remover = remover
        self._clock = clock
        self._waiter = Waiter(client, clock)
        self._machine = machine
        self._consistency_s = consistency_s

    def acquire(self, spec: Record) -> Lease:
        """Queue for what ``spec`` says, or return what was queued for. Raises as ``ports.Cloud.acquire``."""
        place = spec.place
        begun = self._client.operations_of(place.zone, place.request_id("request"))
        if not begun:
            self._begin(spec)
        for operation in begun:
            errors = states.operation_errors(self._waiter.wait(operation, limit_s=STEP_LIMIT_S))
            if errors and states.reaction(errors) is not Reaction.EXISTS:
                self._give_up(spec, errors, is_final=True)
        seen = self._seen(place, begun)
        if begun and not seen.requests and not seen.machines:
            self._remover.remove(place)
            raise AbandonedError(f"lease {place.id} has ended: nothing is asked for under its key again")
        return sight.lease(seen, consistency_s=self._consistency_s) or sight.pending(spec)

    def _seen(self, place: Place, begun: Sequence[dict[str, Any]]) -> Seen:
        """Return the lease, waiting for what was begun to be listed, no longer than Google may take for that."""
        begun_at_s = [sight.parse_time_s(each["insertTime"]) for each in begun]
        until_s = max(begun_at_s, default=0.0) + self._consistency_s
        while (seen := self._lookout.many([place])[place]).is_empty and self._clock.now_s() < until_s:
            self._clock.sleep(POLL_S)
        return seen

    def _begin(self, spec: Record) -> None:
        client, place = self._client, spec.place
        self._expect_time_left(spec)
        body = render.template(spec, machine=self._machine)
        self._make(spec, lambda: client.create_template(place, body))
        url = f"regions/{place.region}/instanceTemplates/{place.name}"
        self._make(spec, lambda: client.create_group(place, render.group(spec, template_url=url)))
        self._expect_time_left(spec)
        request = render.resize_request(spec, machine=self._machine)
        self._make(spec, lambda: client.create_request(place, request))

    def _make(self, spec: Record, create: Callable[[], dict[str, Any]]) -> None:
        """Make one of the three, unless it is there."""
        try:
            operation = self._waiter.wait(create(), limit_s=STEP_LIMIT_S)
        except RefusedError as error:
            if states.reaction(error.errors) is not Reaction.EXISTS:
                self._give_up(spec, error.errors, is_final=False, cause=error)
            return
        errors = states.operation_errors(operation)
        if errors and states.reaction(errors) is not Reaction.EXISTS:
            self._give_up(spec, errors, is_final=True)

    def _expect_time_left(self, spec: Record) -> None:
        if self._clock.now_s() >= spec.expires_at_s:
            raise AbandonedError(f"lease {spec.place.id} was to end before it began: nothing was asked for")

    def _give_up(
        self, spec: Record, errors: Sequence[NativeError], *, is_final: bool, cause: Exception | None = None
    ) -> NoReturn:
        self._remover.remove(spec.place)
        what = f"a place in the queue for {spec.num_nodes} nodes of {spec.shape} in {spec.place.zone}"
        raise states.refusal(errors, what=what, region=spec.place.region, is_final=is_final) from cause
