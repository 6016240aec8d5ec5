"""Azure's words for states and errors in ours, one table each. Pure. A word in no table is loud."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from airflow_llmsched.clouds.words import state_of
from airflow_llmsched.domain.lease import LeasedNodeState
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.errors import InternalError


class SetPhase(Enum):
    """Where a scale set, or an operation on it, stands."""

    COMING = auto()
    READY = auto()
    FAILED = auto()
    ENDING = auto()


SET_PHASES: Mapping[str, SetPhase] = {
    "Creating": SetPhase.COMING,
    "Migrating": SetPhase.READY,
    "Updating": SetPhase.READY,  # of a tag, or of what Azure does to a set that is there
    "Succeeded": SetPhase.READY,
    "Failed": SetPhase.FAILED,
    "Canceled": SetPhase.FAILED,
    "Deleting": SetPhase.ENDING,
}
"""``provisioningState`` of a scale set."""

OPERATION_PHASES: Mapping[str, SetPhase | None] = {
    "InProgress": SetPhase.COMING,
    "Accepted": SetPhase.COMING,
    "Running": SetPhase.COMING,
    "Creating": SetPhase.COMING,
    "Deleting": SetPhase.COMING,
    "Updating": SetPhase.COMING,
    "Succeeded": SetPhase.READY,
    "Failed": SetPhase.FAILED,
    "Canceled": SetPhase.FAILED,
    "Cancelled": SetPhase.FAILED,
}
"""``status`` of a long-running operation."""


class _Machine(Enum):
    STARTING = auto()
    RUNNING = auto()
    TAKEN = auto()
    """Its hardware is given back: by us never, so that it was evicted if it was spot."""
    DEAD = auto()
    BY_POWER = auto()
    """Not to be known from the provisioning alone."""


PROVISIONING: Mapping[str, _Machine] = {
    "Creating": _Machine.STARTING,
    "Updating": _Machine.BY_POWER,
    "Migrating": _Machine.BY_POWER,
    "Succeeded": _Machine.BY_POWER,
    "Failed": _Machine.DEAD,
    "Canceled": _Machine.DEAD,
    "Deleting": _Machine.TAKEN,
}
"""``provisioningState`` of a machine in a scale set."""

POWER: Mapping[str, _Machine] = {
    "starting": _Machine.STARTING,
    "running": _Machine.RUNNING,
    "unknown": _Machine.STARTING,  # Azure cannot tell: no reason to give a machine up
    "stopping": _Machine.DEAD,
    "stopped": _Machine.DEAD,
    "deallocating": _Machine.TAKEN,
    "deallocated": _Machine.TAKEN,
}
"""``PowerState/...`` in a machine's instance view."""


_OFF = frozenset({"PowerState/stopped", "PowerState/deallocated"})


def set_phase(word: str, *, name: str) -> SetPhase:
    """Return where scale set ``name`` stands by its ``provisioningState``; by a word that is new to us it comes."""
    return state_of(SET_PHASES, word, thing=f"Azure scale set {name}", otherwise=SetPhase.COMING)


def operation_phase(word: str, *, url: str) -> SetPhase | None:
    """Return where an operation of status ``word`` stands; None: only what it is about can tell."""
    return state_of(OPERATION_PHASES, word, thing=f"Azure operation {url}", otherwise=None)


def node_state(
    provisioning: str, statuses: Sequence[str], capacity_type: CapacityType, *, name: str
) -> LeasedNodeState:
    """Return a machine's state from its ``provisioningState`` and the codes of its instance view.

    A machine of which Azure has a word that is new to us is what its other word says, or may yet start.
    """
    thing = f"Azure machine {name}"
    machine = state_of(PROVISIONING, provisioning, thing=thing, otherwise=_Machine.BY_POWER)
    if machine is _Machine.BY_POWER:
        power = [code.split("/")[1] for code in statuses if code.startswith("PowerState/")]
        machine = _Machine.STARTING
        if power:
            machine = state_of(POWER, power[-1], thing=f"{thing}'s power", otherwise=_Machine.STARTING)
    match machine:
        case _Machine.RUNNING:
            return LeasedNodeState.RUNNING
        case _Machine.TAKEN:
            return gone(capacity_type)
        case _Machine.DEAD:
            return LeasedNodeState.LOST
        case _:
            return LeasedNodeState.STARTING


def is_off(statuses: Sequence[str]) -> bool:
    """Whether the codes of a machine's instance view say that it does not run: what ran on it is dead."""
    return any(code in _OFF for code in statuses)


def gone(capacity_type: CapacityType) -> LeasedNodeState:
    """Return the state of a machine that Azure gave away: nobody but an eviction takes a spot machine."""
    return LeasedNodeState.PREEMPTED if capacity_type is CapacityType.SPOT else LeasedNodeState.LOST


class Reaction(Enum):
    """What an error asks of us."""

    CAPACITY = auto()
    QUOTA = auto()
    SPEC = auto()
    THROTTLED = auto()
    TRANSIENT = auto()
    BUSY = auto()
    """Another operation on the same thing has not ended."""
    TAKEN = auto()
    """Something of that name is there already, or has changed since it was read."""
    ABSENT = auto()


ERRORS: Sequence[tuple[str, str, Reaction]] = (
    ("AllocationFailed", "", Reaction.CAPACITY),
    ("ZonalAllocationFailed", "", Reaction.CAPACITY),
    ("OverconstrainedAllocationRequest", "", Reaction.CAPACITY),
    ("OverconstrainedZonalAllocationRequest", "", Reaction.CAPACITY),
    ("CapacityReservationCapacityExceeded", "", Reaction.CAPACITY),
    ("SkuNotAvailable", "", Reaction.CAPACITY),
    ("QuotaExceeded", "", Reaction.QUOTA),
    ("OperationNotAllowed", "quota", Reaction.QUOTA),
    ("PublicIPCountLimitReached", "", Reaction.QUOTA),
    ("OperationNotAllowed", "another operation", Reaction.BUSY),
    ("OperationNotAllowed", "marked for deletion", Reaction.BUSY),
    ("OperationNotAllowed", "", Reaction.SPEC),
    ("AuthorizationFailed", "", Reaction.SPEC),
    ("LinkedAuthorizationFailed", "", Reaction.SPEC),
    ("AuthenticationFailed", "", Reaction.SPEC),
    ("InvalidAuthenticationToken", "", Reaction.SPEC),
    ("ExpiredAuthenticationToken", "", Reaction.TRANSIENT),
    ("BadRequest", "", Reaction.SPEC),
    ("InvalidParameter", "", Reaction.SPEC),
    ("InvalidRequestContent", "", Reaction.SPEC),
    ("InvalidRequestFormat", "", Reaction.SPEC),
    ("InvalidResourceReference", "", Reaction.SPEC),
    ("InvalidResourceLocation", "", Reaction.SPEC),
    ("LinkedInvalidPropertyId", "", Reaction.SPEC),
    ("LocationNotAvailableForResourceType", "", Reaction.SPEC),
    ("MarketplacePurchaseEligibilityFailed", "", Reaction.SPEC),
    ("MissingSubscriptionRegistration", "", Reaction.SPEC),
    ("OSProvisioningTimedOut", "", Reaction.SPEC),
    ("PlatformImageNotFound", "", Reaction.SPEC),
    ("PropertyChangeNotAllowed", "", Reaction.SPEC),
    ("RequestDisallowedByPolicy", "", Reaction.SPEC),
    ("ResourceGroupNotFound", "", Reaction.SPEC),
    ("SubnetIsFull", "", Reaction.SPEC),
    ("SubscriptionNotFound", "", Reaction.SPEC),
    ("TooManyRequests", "", Reaction.THROTTLED),
    ("SubscriptionRequestsThrottled", "", Reaction.THROTTLED),
    ("ResourceCollectionRequestsThrottled", "", Reaction.THROTTLED),
    ("OperationCouldNotBeCompletedAsItConflictsWithAnotherOperation", "", Reaction.BUSY),
    ("AnotherOperationInProgress", "", Reaction.BUSY),
    ("OperationPreempted", "", Reaction.BUSY),
    ("ResourceGroupBeingDeleted", "", Reaction.SPEC),
    ("Conflict", "", Reaction.BUSY),
    ("PreconditionFailed", "", Reaction.TAKEN),
    ("ConditionNotMet", "", Reaction.TAKEN),
    ("ResourceNotFound", "", Reaction.ABSENT),
    ("NotFound", "", Reaction.ABSENT),
    ("Canceled", "", Reaction.TRANSIENT),
    ("GatewayTimeout", "", Reaction.TRANSIENT),
    ("InternalExecutionError", "", Reaction.TRANSIENT),
    ("InternalOperationError", "", Reaction.TRANSIENT),
    ("InternalServerError", "", Reaction.TRANSIENT),
    ("NetworkingInternalOperationError", "", Reaction.TRANSIENT),
    ("RetryableError", "", Reaction.TRANSIENT),
    ("ServerTimeout", "", Reaction.TRANSIENT),
    ("ServiceUnavailable", "", Reaction.TRANSIENT),
    ("VMStartTimedOut", "", Reaction.TRANSIENT),
)
"""Error code, a word that the message must hold (in any case), and what it asks of us. The first that fits counts."""

_STATUSES: Mapping[int, Reaction] = {
    404: Reaction.ABSENT,
    408: Reaction.TRANSIENT,
    409: Reaction.BUSY,
    412: Reaction.TAKEN,
    429: Reaction.THROTTLED,
}
"""What an HTTP status asks of us where the answer holds no code at all, as a gateway's does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureFault:
    """An error that Azure named. ``status`` is the HTTP status, 0 where the fault was read from a resource."""

    code: str
    message: str
    status: int = 0

    def __str__(self) -> str:
        return f"{self.code or f'HTTP {self.status}'}: {self.message or 'no reason given'}"


def faults(error: Mapping[str, Any], *, status: int = 0) -> Iterator[AzureFault]:
    """Yield what an ``error`` object of an answer names, the innermost first: outside it often says only that it is."""
    inner = error.get("details")
    for each in inner if isinstance(inner, list) else []:
        if isinstance(each, Mapping):
            yield from faults(each, status=status)
    yield AzureFault(code=str(error.get("code") or ""), message=str(error.get("message") or ""), status=status)


def view_faults(statuses: Sequence[Mapping[str, Any]]) -> Iterator[AzureFault]:
    """Yield what an instance view's ``ProvisioningState/failed/<code>`` entries name."""
    for each in statuses:
        parts = str(each.get("code", "")).split("/")
        if parts[:2] == ["ProvisioningState", "failed"]:
            yield AzureFault(code=parts[2] if len(parts) > 2 else "", message=str(each.get("message") or ""))


def react(found: Sequence[AzureFault]) -> tuple[Reaction, AzureFault]:
    """Return what the faults of one answer ask of us, and which of them says so: the first that a table has.

    Raises ``InternalError`` when no table has any of them.
    """
    for fault in found:
        reaction = _reaction(fault)
        if reaction is not None:
            return reaction, fault
    if found and found[0].status >= 500:
        return Reaction.TRANSIENT, found[0]
    if found and not any(fault.code for fault in found) and found[0].status in _STATUSES:
        return _STATUSES[found[0].status], found[0]
    named = "; ".join(str(fault) for fault in found) or "an error without a name"
    raise InternalError(f"Azure answered with {named}, which clouds.azure.states has no reaction for: report it")


def _reaction(fault: AzureFault) -> Reaction | None:
    for code, word, reaction in ERRORS:
        if fault.code.lower() == code.lower() and word in fault.message.lower():
            return reaction
    return None
