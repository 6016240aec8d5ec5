"""Scale sets and what comes with them: how each is created, found, tagged and removed when calls fail.

A set's name follows from the lease's key, and ``If-None-Match: *`` has it created once. So a call whose answer was lost
is simply made again: "it is there already" then is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_llmsched.clouds.azure import client as wire
from airflow_llmsched.clouds.azure import render, states, view
from airflow_llmsched.clouds.azure.client import PASSING, Answer, AzureClient, NoAnswerError, NoSuchListError
from airflow_llmsched.clouds.azure.render import AzureSettings
from airflow_llmsched.clouds.azure.states import AzureFault, Reaction, SetPhase
from airflow_llmsched.clouds.azure.tags import LeaseTags
from airflow_llmsched.clouds.azure.view import Row, SetRows
from airflow_llmsched.clouds.parts import of_each
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
from airflow_llmsched.ports import Clock

_CREATE = EffectPoint("azure.scale_set.create")
_TAG = EffectPoint("azure.scale_set.tag")
_REMOVE = EffectPoint("azure.scale_set.remove")
_SWEEP = EffectPoint("azure.part.remove")

ACCEPTED, NOT_FOUND = 202, 404
POLL_S = 5.0
NUM_REMOVAL_TRIES = 5
_FORCED = {"forceDeletion": "true"}
REMOVAL_S = 900.0
"""How long Azure may take to remove what it has agreed to remove."""

_PARTS = (
    ("Microsoft.Compute/disks", wire.DISKS),
    ("Microsoft.Network/networkInterfaces", wire.NETWORK),
    ("Microsoft.Network/publicIPAddresses", wire.NETWORK),
)
"""What can stay behind when machines go, and the version of its interface."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A creation that this call has begun. ``operation_url`` says how it goes on, None: the set itself does."""

    operation_url: str | None


class ScaleSets:
    """The scale sets of one resource group. ``settle_s`` is how long a creation is waited for."""

    def __init__(
        self, client: AzureClient, settings: AzureSettings, clock: Clock, *, consistency_s: float, settle_s: float
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._consistency_s = consistency_s
        self._settle_s = settle_s
        self._path = f"{settings.group_path}/providers/Microsoft.Compute/virtualMachineScaleSets"

    # Looking

    def get(self, name: str) -> Row | None:
        """Return a set, None when there is none, or none is listed yet. Raises ``CouldNotLookError``."""
        return self._client.look(f"{self._path}/{name}", version=wire.COMPUTE)

    def all(self) -> Sequence[Row]:
        """Return every set of the group. Raises ``CouldNotLookError``."""
        return self._client.look_all(self._path, version=wire.COMPUTE)

    def rows(self, row: Row) -> SetRows | None:
        """Return what there is to see of a set, None when it has gone meanwhile. Raises ``CouldNotLookError``."""
        name = str(row["name"])
        try:
            machines = self.machines(name)
            interfaces = self._client.look_all(f"{self._path}/{name}/networkInterfaces", version=wire.SET_NETWORK)
        except NoSuchListError:
            return None
        failure = ""
        if view.phase(row) is SetPhase.FAILED:
            failure = "; ".join(str(fault) for fault in self._view_faults(name))
        return SetRows(row=row, machines=machines, interfaces=interfaces, failure=failure)

    def machines(self, name: str) -> Sequence[Row]:
        """Return a set's machines. Raises ``CouldNotLookError``."""
        return self._client.look_all(
            f"{self._path}/{name}/virtualMachines", version=wire.COMPUTE, params={"$expand": "instanceView"}
        )

    def parts(self) -> Sequence[Row]:
        """Return the group's disks, network interfaces and addresses.

        Raises ``CouldNotLookError``, ``PartlySeenError`` where one of the three is not listed.
        """
        return of_each({kind: partial(self._parts_of, kind, version) for kind, version in _PARTS})

    def _parts_of(self, kind: str, version: str) -> Sequence[Row]:
        found = self._client.look_all(self._part_path(kind), version=version)
        return [dict(row) | {"version": version} for row in found]

    # Creating

    def create(self, lease: LeaseTags, body: Mapping[str, Any]) -> Begun | None:
        """Have Azure begin to create the set; None: somebody has begun before.

        Raises as ``ports.Cloud.acquire``.
        """
        name, is_unsure, why = lease.key.name, False, ""
        for num_tried in range(wire.NUM_TRIES):
            if lease.expires_at_s <= self._clock.now_s() and not is_unsure:
                raise AbandonedError(f"lease {name} was to end before it began: nothing was rented")
            answer: Answer | None = None
            try:
                with _CREATE:
                    answer = self._send("PUT", name, body=body, headers={"If-None-Match": "*"})
            except NoAnswerError as error:
                is_unsure, why = True, str(error)
            if answer is not None:
                if answer.is_ok:
                    return Begun(answer.operation_url)
                reaction, fault = answer.react()
                if reaction is Reaction.TAKEN or (reaction is Reaction.BUSY and self.get(name) is not None):
                    return None
                if reaction not in PASSING:
                    self._refuse(lease, reaction, fault, is_unsure=is_unsure)
                    return None
                is_unsure, why = is_unsure or reaction is Reaction.TRANSIENT, str(fault)
            self._client.pause(num_tried, answer.retry_after_s if answer is not None else None)
        if is_unsure:
            raise CouldNotLookError(f"it is unknown whether scale set {name} was created: {why}")
        raise TransientError(f"scale set {name} was not created: {why}")

    def await_whole(self, lease: LeaseTags, begun: Begun | None) -> None:
        """Return when the set is there whole, or after ``settle_s``. What cannot be whole is removed.

        Unless we have ``begun`` it, somebody else did, and whether machines are missing is not for us to judge:
        they may have been taken since. Raises as ``ports.Cloud.acquire``.
        """
        name, began_s = lease.key.name, self._clock.now_s()
        while True:
            stands, found = self._stand(name, begun.operation_url if begun is not None else None)
            if stands is SetPhase.ENDING:
                raise AbandonedError(f"lease {name} is being released: nothing is rented under its key again")
            if stands is SetPhase.FAILED:
                raise self._given_up(lease, found or self._view_faults(name))
            is_listed = self._clock.now_s() > began_s + self._consistency_s
            if stands is SetPhase.READY:
                if begun is None or len(self._listed(name)) >= lease.num_nodes:
                    return
                if is_listed:  # what has not come by now never will
                    raise self._given_up(lease, [])
            if stands is None and is_listed:
                raise CouldNotLookError(f"Azure says that there is a scale set {name}, and does not show it")
            if self._clock.now_s() > began_s + self._settle_s:
                return
            self._clock.sleep(POLL_S)

    # Keeping

    def keep(self, lease: LeaseTags) -> float:
        """Have the set expire no sooner than ``lease`` says, and return when it does (Unix seconds).

        Raises ``LeaseGoneError``, ``CouldNotLookError``.
        """
        name, why = lease.key.name, ""
        for num_tried in range(wire.NUM_TRIES):
            row = self.get(name)
            said = None if row is None else view.said_by(row)
            if row is not None and view.phase(row) is SetPhase.ENDING:
                break
            if said is not None and said.expires_at_s >= lease.expires_at_s:
                return said.expires_at_s
            # One that is not listed yet is changed unseen: if it has gone, this is told.
            etag = "*" if row is None else str(row.get("etag") or "*")
            answer: Answer | None = None
            try:
                with _TAG:
                    answer = self._send("PATCH", name, body=render.tags_patch(lease), headers={"If-Match": etag})
            except NoAnswerError as error:
                why = str(error)
            if answer is not None:
                if answer.is_ok:
                    return lease.expires_at_s
                reaction, fault = answer.react()
                if reaction is Reaction.ABSENT or (row is None and reaction is Reaction.TAKEN):
                    break
                why = str(fault)
                if reaction is Reaction.TAKEN:
                    continue  # it has changed since it was read
                if reaction not in PASSING:
                    raise CouldNotLookError(f"scale set {name} could not be tagged: {why}")
            self._client.pause(num_tried, answer.retry_after_s if answer is not None else None)
        else:
            raise CouldNotLookError(f"whether scale set {name} took its new expiry is unknown: {why}")
        raise LeaseGoneError(f"lease {name} has ended and cannot be renewed: rent anew")

    # Removing

    def remove(self, name: str) -> None:
        """Remove the set and all that came with it. Silent when nothing is left.

        Raises ``LeftoverError``, ``CouldNotLookError``.
        """
        give_up_at_s = self._clock.now_s() + REMOVAL_S
        for num_tried in range(NUM_REMOVAL_TRIES):
            with _REMOVE:
                why = self._deleted(f"{self._path}/{name}", wire.COMPUTE, give_up_at_s, params=_FORCED)
            if why is None:
                return self._sweep(name, give_up_at_s)
            self._client.pause(num_tried)
        raise self._left(name, why)

    def _sweep(self, name: str, give_up_at_s: float) -> None:
        """Remove disks, interfaces and addresses that outlived the machines."""
        for num_tried in range(NUM_REMOVAL_TRIES):
            left = [row for row in self.parts() if view.belongs_to(row, name)]
            if not left:
                return
            for row in left:
                with _SWEEP:
                    self._deleted(str(row["id"]), str(row["version"]), give_up_at_s)
            if num_tried:
                self._client.pause(num_tried)  # an address is held by its interface until that is gone
        left = [row for row in self.parts() if view.belongs_to(row, name)]
        if left:
            ids = [str(row["id"]) for row in left]
            raise LeftoverError(f"lease {name}: Azure did not remove what came with its machines", ids=ids)

    def _deleted(
        self, path: str, version: str, give_up_at_s: float, params: Mapping[str, str] | None = None
    ) -> str | None:
        """Have one thing deleted, and wait until it is. Returns why it was not, None if it was.

        Raises ``CouldNotLookError``.
        """
        try:
            answer = self._client.send("DELETE", path, version=version, params=params)
        except NoAnswerError as error:
            return self._unheard(path, version, error)
        if not answer.is_ok:
            if answer.retry_after_s is not None:
                self._client.pause(0, answer.retry_after_s)
            return None if answer.status == NOT_FOUND else "; ".join(str(fault) for fault in answer.faults)
        if answer.status != ACCEPTED:
            return None
        while self._clock.now_s() < give_up_at_s:
            seen = None if answer.operation_url is None else self._client.operation(answer.operation_url)
            if seen is not None and seen[0] is SetPhase.FAILED:
                return "; ".join(str(fault) for fault in seen[1]) or "Azure does not say why"
            is_over = seen is None or seen[0] is SetPhase.READY
            if is_over and (seen is not None or self._client.look(path, version=version) is None):
                return None
            self._clock.sleep(POLL_S)
        return "Azure has been removing it for too long"

    def _unheard(self, path: str, version: str, error: NoAnswerError) -> str:
        """Return that a deletion went unanswered, if Azure answers at all. Raises ``CouldNotLookError``."""
        self._client.look(path, version=version)
        return str(error)

    def _left(self, name: str, why: str | None) -> LeftoverError:
        machines = [str(row["name"]) for row in self._listed(name)]
        return LeftoverError(f"Azure did not remove scale set {name} ({why})", ids=[name, *machines])

    # Below

    def _send(self, method: wire.Method, name: str, *, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
        return self._client.send(method, f"{self._path}/{name}", version=wire.COMPUTE, body=body, headers=headers)

    def _stand(self, name: str, url: str | None) -> tuple[SetPhase | None, Sequence[AzureFault]]:
        """Return where a creation stands, by its operation or by the set itself; None: not listed."""
        seen = None if url is None else self._client.operation(url)
        if seen is not None:
            return seen
        row = self.get(name)
        return (None, []) if row is None else (view.phase(row), [])

    def _listed(self, name: str) -> Sequence[Row]:
        try:
            return self.machines(name)
        except NoSuchListError:
            return []

    def _view_faults(self, name: str) -> Sequence[AzureFault]:
        seen = self._client.look(f"{self._path}/{name}/instanceView", version=wire.COMPUTE)
        return list(states.view_faults((seen or {}).get("statuses") or []))

    def _refuse(self, lease: LeaseTags, reaction: Reaction, fault: AzureFault, *, is_unsure: bool) -> None:
        """Raise for a creation that Azure refused, unless one before it went through unheard."""
        row = self.get(lease.key.name)
        if row is not None and view.phase(row) is SetPhase.FAILED:
            self.remove(lease.key.name)
        elif row is not None and is_unsure:
            return
        raise _error(lease, reaction, fault)

    def _given_up(self, lease: LeaseTags, found: Sequence[AzureFault]) -> LlmschedError:
        """Remove what there is of a set that will not be whole, and return why that is so."""
        self.remove(lease.key.name)
        named = [fault for fault in found if fault.code]
        try:
            reaction, fault = states.react(named) if named else (Reaction.CAPACITY, _NOT_SAID)
        except InternalError as error:
            return error
        return _error(lease, reaction, fault)

    def _part_path(self, kind: str) -> str:
        return f"{self._settings.group_path}/providers/{kind}"


_NOT_SAID = AzureFault(code="", message="Azure did not say why")


def _error(lease: LeaseTags, reaction: Reaction, fault: AzureFault) -> LlmschedError:
    """Return the error that asks its reader for what Azure's asks of us."""
    pool = lease.pool
    what = f"{lease.num_nodes} nodes of {pool.shape} ({pool.capacity_type}) in {pool.zone or pool.region}"
    match reaction:
        case Reaction.CAPACITY:
            return CapacityError(f"Azure has not got {what}: {fault}. Wait, or try another zone, region or size")
        case Reaction.QUOTA:
            return QuotaError(
                f"no quota for {what}: {fault}. Ask for quota in the Azure portal, or try another region",
                region=pool.region,
            )
        case Reaction.SPEC:
            return SpecError(path="azure", value=pool.shape, hint=f"Azure refuses {what}: {fault}")
        case _:
            return TransientError(f"Azure did not create {what}, and nothing of it is left: {fault}")
