"""Removes all there is of a lease, in the order that Google demands, and says what it could not remove."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from airflow_llmsched.clouds.gcp import record, sight, states
from airflow_llmsched.clouds.gcp.client import ComputeClient
from airflow_llmsched.clouds.gcp.lookout import Lookout
from airflow_llmsched.clouds.gcp.operations import POLL_S, Waiter
from airflow_llmsched.clouds.gcp.record import Place, Way
from airflow_llmsched.clouds.gcp.sight import Seen
from airflow_llmsched.clouds.gcp.states import Reaction
from airflow_llmsched.clouds.gcp.transport import RefusedError
from airflow_llmsched.errors import LeftoverError, TransientError
from airflow_llmsched.ports import Clock

log = logging.getLogger(__name__)

REMOVAL_LIMIT_S = 900.0
"""How long removing a lease may take. A machine with eight accelerators takes some two minutes to go."""
NUM_VAIN_ROUNDS = 4
"""After how many rounds in which nothing could be removed it is given up."""
CREATION_LIMIT_S = 600.0
"""How long machines that are still being made are waited for, to remove them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One removal. ``path`` names what goes."""

    path: str
    call: Callable[[], dict[str, Any]]


@dataclass(slots=True)
class _Round:
    """What came of one round of removals."""

    num_gone: int = 0
    is_waiting: bool = False
    errors: dict[str, str] = field(default_factory=dict)


class Remover:
    """Removes leases."""

    def __init__(self, client: ComputeClient, lookout: Lookout, clock: Clock, *, consistency_s: float) -> None:
        self._client = client
        self._lookout = lookout
        self._clock = clock
        self._waiter = Waiter(client, clock)
        self._consistency_s = consistency_s

    def remove(self, place: Place) -> None:
        """Remove whatever there is of a lease, and return when it is gone. Silent when nothing is.

        Raises ``LeftoverError`` (some of it does not go), ``CouldNotLookError``.
        """
        creation = self._await_creation(place)
        give_up_at_s, num_vain, last = self._clock.now_s() + REMOVAL_LIMIT_S, 0, _Round()
        while steps := self._steps(seen := self._look(place, creation)):
            if num_vain >= NUM_VAIN_ROUNDS or self._clock.now_s() >= give_up_at_s:
                told = next(iter(last.errors.values()), "it takes too long")
                raise LeftoverError(
                    f"Google does not remove parts of lease {place.id} ({told})", ids=sight.everything(seen)
                )
            last = self._round(steps)
            num_vain = 0 if last.num_gone or last.is_waiting else num_vain + 1
            if not last.num_gone:
                self._clock.sleep(POLL_S * (num_vain + 1))
        unfinished = [
            f"zones/{place.zone}/operations/{each['name']}" for each in creation if each.get("status") != "DONE"
        ]
        if unfinished:
            raise LeftoverError(f"Google goes on making machines of lease {place.id}: release again", ids=unfinished)

    def _await_creation(self, place: Place) -> list[dict[str, Any]]:
        """Return the operations that make the lease's machines, once they are done or have taken too long."""
        if place.way is not Way.MACHINES:
            return []
        begun = self._client.operations_of(place.zone, place.request_id("machines"))
        return [self._waiter.wait(each, limit_s=CREATION_LIMIT_S) for each in begun]

    def _look(self, place: Place, creation: Sequence[dict[str, Any]]) -> Seen:
        """Return what there is of the lease, machines included that are not listed yet."""
        seen = self._lookout.one(place)
        if place.way is not Way.MACHINES or (seen.machines and not self._is_young(creation)):
            return seen
        listed = {each["name"] for each in seen.machines}
        unlisted = self._unlisted(place, listed, num_nodes=sum(map(states.num_planned, creation)))
        return replace(seen, machines=(*seen.machines, *unlisted))

    def _unlisted(self, place: Place, listed: Container[str], *, num_nodes: int) -> Iterator[dict[str, Any]]:
        """Yield machines by the names that they must have: ``num_nodes`` of them, or as many as follow each other."""
        for index in itertools.count():
            name = record.node_name(place, index)
            machine = None if name in listed else self._client.machine(place, name)
            if machine is not None:
                yield machine
            elif name not in listed and index >= num_nodes - 1:
                return

    def _is_young(self, creation: Sequence[dict[str, Any]]) -> bool:
        begun_at_s = [sight.parse_time_s(each["insertTime"]) for each in creation]
        return any(self._clock.now_s() < each + self._consistency_s for each in begun_at_s)

    def _steps(self, seen: Seen) -> list[Step]:
        """Return what is to go next: first what may yet bring machines, then machines, then what they leave behind."""
        place, client = seen.place, self._client

        def steps(collection: str, rows: Sequence[sight.Json], delete: Callable[[Place, str], Any]) -> list[Step]:
            return [
                Step(
                    path=sight.path(place, collection, row),
                    call=partial(delete, place, row["name"]),
                )
                for row in rows
            ]

        waiting = sight.waiting_requests(seen)
        cancels = steps("resizeRequests", waiting, client.cancel_request)
        if any(each.get("state") in states.RESIZE_STATE for each in waiting):
            return cancels
        if seen.groups:
            # What is in a state that is new to us may refuse to be cancelled, and then keeps no group.
            return cancels + steps("instanceGroupManagers", seen.groups, client.delete_group)
        if seen.machines:
            return steps("instances", seen.machines, client.delete_machine)
        return (
            steps("disks", seen.loose_disks, client.delete_disk)
            + steps("resourcePolicies", seen.policies, client.delete_policy)
            + steps("instanceTemplates", seen.templates, client.delete_template)
        )

    def _round(self, steps: Sequence[Step]) -> _Round:
        """Begin all removals, then wait for them."""
        result, begun = _Round(), []
        for step in steps:
            try:
                begun.append((step, step.call()))
            except RefusedError as error:
                self._note(result, step, states.reaction(error.errors), str(error))
            except TransientError as error:
                result.errors[step.path] = str(error)
        for step, operation in begun:
            done = self._waiter.wait(operation, limit_s=REMOVAL_LIMIT_S)
            errors = states.operation_errors(done)
            if errors:
                self._note(result, step, states.reaction(errors), str(errors[0]))
            elif done.get("status") == "DONE":
                result.num_gone += 1
        for path, told in result.errors.items():
            log.warning("%s was not removed: %s", path, told)
        return result

    @staticmethod
    def _note(result: _Round, step: Step, reaction: Reaction, told: str) -> None:
        # What is absent and listed all the same needs no more than time, and so does what is on its way out.
        result.is_waiting |= reaction in (Reaction.RETRY, Reaction.ABSENT)
        result.errors[step.path] = told
