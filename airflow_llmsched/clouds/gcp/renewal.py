"""Moves the expiry of leases on: a label on each machine, and one on the group of a queue."""

from __future__ import annotations

from typing import Any

from airflow_llmsched.clouds.gcp import record, render, sight, states
from airflow_llmsched.clouds.gcp.client import ComputeClient
from airflow_llmsched.clouds.gcp.lookout import Lookout
from airflow_llmsched.clouds.gcp.record import Place
from airflow_llmsched.clouds.gcp.sight import Seen
from airflow_llmsched.clouds.gcp.states import Reaction
from airflow_llmsched.clouds.gcp.transport import RefusedError
from airflow_llmsched.errors import CouldNotLookError, LeaseGoneError

NUM_TRIES = 5


class Renewer:
    """Renews leases of one client."""

    def __init__(self, client: ComputeClient, lookout: Lookout, *, consistency_s: float) -> None:
        self._client = client
        self._lookout = lookout
        self._consistency_s = consistency_s

    def renew(self, place: Place, *, until_s: float) -> None:
        """Have every part that can state an expiry state one no sooner than ``until_s``.

        Raises ``LeaseGoneError``, ``CouldNotLookError`` (also while nothing is listed that could be labelled).
        """
        seen = self._lookout.many([place])[place]
        if not seen.machines and not seen.groups:
            created_at_s = seen.created_at_s
            if created_at_s is not None and seen.at_s < created_at_s + self._consistency_s:
                raise CouldNotLookError(f"no machine of lease {place.id} is listed yet: renew again")
            raise LeaseGoneError(f"lease {place.id} has ended and cannot be renewed: rent anew")
        self._label_group(seen, until_s=until_s)
        self._label_machines(seen, until_s=until_s)

    def _label_group(self, seen: Seen, *, until_s: float) -> None:
        if not seen.groups or Seen(place=seen.place, at_s=seen.at_s, groups=seen.groups).expires_at_s >= until_s:
            return
        try:
            self._client.label_group(seen.place, render.group_expiry(until_s))
        except RefusedError as error:
            raise self._failed(seen.place, error) from error

    def _label_machines(self, seen: Seen, *, until_s: float) -> None:
        rows: list[sight.Json] = list(seen.machines)
        for _ in range(NUM_TRIES):
            conflicts = [each for each in rows if not self._is_labelled(seen.place, dict(each), until_s=until_s)]
            if not conflicts:
                return
            rows = list(self._lookout.machines(seen.place))
            if not rows and not seen.groups:
                raise LeaseGoneError(f"lease {seen.place.id} has ended and cannot be renewed: rent anew")
        raise CouldNotLookError(f"the labels of lease {seen.place.id} change faster than they can be read: renew again")

    def _is_labelled(self, place: Place, machine: dict[str, Any], *, until_s: float) -> bool:
        """Write the new expiry unless it is there; False: the machine has other labels by now, or is gone."""
        stated_s = record.expiry(machine.get("labels", {}))
        if stated_s is not None and stated_s >= until_s:
            return True
        try:
            self._client.label_machine(place, machine["name"], render.set_labels(machine, expires_at_s=until_s))
        except RefusedError as error:
            if states.reaction(error.errors) in (Reaction.RETRY, Reaction.ABSENT):
                return False
            raise self._failed(place, error) from error
        return True

    @staticmethod
    def _failed(place: Place, error: RefusedError) -> CouldNotLookError:
        return CouldNotLookError(f"lease {place.id} could not be renewed: {error}")
