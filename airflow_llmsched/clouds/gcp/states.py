"""Google's words for states and errors in ours. One table each; an unknown word is loud, never a guess. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from airflow_llmsched.clouds.words import state_of
from airflow_llmsched.domain.lease import LeasedNodeState
from airflow_llmsched.errors import (
    CapacityError,
    InternalError,
    LlmschedError,
    QuotaError,
    SpecError,
    TransientError,
)

NODE_STATE = {
    "PENDING": LeasedNodeState.STARTING,
    "PROVISIONING": LeasedNodeState.STARTING,
    "STAGING": LeasedNodeState.STARTING,
    "RUNNING": LeasedNodeState.RUNNING,
    # A graceful shutdown: ranks still run, for as long as it takes.
    "PENDING_STOP": LeasedNodeState.RUNNING,
    "REPAIRING": LeasedNodeState.LOST,
    "STOPPING": LeasedNodeState.LOST,
    "STOPPED": LeasedNodeState.LOST,
    "DEPROVISIONING": LeasedNodeState.LOST,
    "SUSPENDING": LeasedNodeState.LOST,
    "SUSPENDED": LeasedNodeState.LOST,
    "TERMINATED": LeasedNodeState.LOST,
}
"""A machine's ``status``. What is lost here was preempted if an operation says so: the status alone does not."""

OFF = frozenset({"STOPPED", "TERMINATED"})
"""``status`` of a machine that does not run, and is not asleep: what ran on it is dead."""

PREEMPTED_OPERATION = "compute.instances.preempted"
"""The operation by which Google takes a spot machine. It is all that tells this from another end."""


class RequestState(Enum):
    """How far a request that waits in a queue has come."""

    WAITING = auto()
    MET = auto()
    FAILED = auto()
    ENDED = auto()


RESIZE_STATE = {
    "ACCEPTED": RequestState.WAITING,
    "CREATING": RequestState.WAITING,
    "SUCCEEDED": RequestState.MET,
    "FAILED": RequestState.FAILED,
    "CANCELLED": RequestState.ENDED,
}
"""``state`` of a resize request of a managed instance group."""


class Reaction(Enum):
    """What an error asks of us, the strongest last: of several errors it is the strongest that counts."""

    SUMMARY = auto()
    """Says that others failed, not why."""
    RETRY = auto()
    ABSENT = auto()
    EXISTS = auto()
    CAPACITY = auto()
    QUOTA = auto()
    SPEC = auto()
    UNKNOWN = auto()
    """No table has it: whoever removes goes on, and whoever rented is told once nothing is left."""


REACTION = {
    # Of operations
    "VM_MIN_COUNT_NOT_REACHED": Reaction.SUMMARY,
    "RESOURCE_OPERATION_RATE_EXCEEDED": Reaction.RETRY,
    "RATE_LIMIT_EXCEEDED": Reaction.RETRY,
    "RESOURCE_NOT_READY": Reaction.RETRY,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": Reaction.RETRY,
    "CONDITION_NOT_MET": Reaction.RETRY,
    "INTERNAL_ERROR": Reaction.RETRY,
    "RESOURCE_NOT_FOUND": Reaction.ABSENT,
    "RESOURCE_ALREADY_EXISTS": Reaction.EXISTS,
    "ZONE_RESOURCE_POOL_EXHAUSTED": Reaction.CAPACITY,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": Reaction.CAPACITY,
    "REGION_RESOURCE_POOL_EXHAUSTED": Reaction.CAPACITY,
    "RESOURCE_POOL_EXHAUSTED": Reaction.CAPACITY,
    "STOCKOUT": Reaction.CAPACITY,
    # What a bulk insert says of a spot machine that was taken again before it ran.
    "UNSUPPORTED_OPERATION": Reaction.CAPACITY,
    "QUOTA_EXCEEDED": Reaction.QUOTA,
    "LIMIT_EXCEEDED": Reaction.QUOTA,
    "INVALID_FIELD_VALUE": Reaction.SPEC,
    "INVALID_USAGE": Reaction.SPEC,
    "PERMISSIONS_ERROR": Reaction.SPEC,
    "IP_SPACE_EXHAUSTED": Reaction.SPEC,
    # Of refused calls
    "rateLimitExceeded": Reaction.RETRY,
    "userRateLimitExceeded": Reaction.RETRY,
    "resourceNotReady": Reaction.RETRY,
    "resourceInUseByAnotherResource": Reaction.RETRY,
    "conditionNotMet": Reaction.RETRY,
    "backendError": Reaction.RETRY,
    "internalError": Reaction.RETRY,
    "notFound": Reaction.ABSENT,
    "alreadyExists": Reaction.EXISTS,
    "insufficientCapacity": Reaction.CAPACITY,
    "resourcePoolExhausted": Reaction.CAPACITY,
    "quotaExceeded": Reaction.QUOTA,
    "limitExceeded": Reaction.QUOTA,
    "invalid": Reaction.SPEC,
    "invalidParameter": Reaction.SPEC,
    "required": Reaction.SPEC,
    "badRequest": Reaction.SPEC,
    "forbidden": Reaction.SPEC,
    "accessNotConfigured": Reaction.SPEC,
    "authError": Reaction.SPEC,
    # Of Cloud TPU: google.rpc.Code by name
    "RESOURCE_EXHAUSTED": Reaction.CAPACITY,
    "UNAVAILABLE": Reaction.RETRY,
    "ABORTED": Reaction.RETRY,
    "INTERNAL": Reaction.RETRY,
    "NOT_FOUND": Reaction.ABSENT,
    "ALREADY_EXISTS": Reaction.EXISTS,
    "INVALID_ARGUMENT": Reaction.SPEC,
    "FAILED_PRECONDITION": Reaction.SPEC,
    "PERMISSION_DENIED": Reaction.SPEC,
    "UNAUTHENTICATED": Reaction.SPEC,
}
"""Error codes of operations and reasons of refused calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeError:
    """One error as Google words it."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


def node_state(instance: dict[str, Any], *, preempted: frozenset[str]) -> LeasedNodeState:
    """Return the state of a machine, whose name is in ``preempted`` if Google took it.

    One of which Google has a word that is new to us may yet start.
    """
    thing, word = f"GCP machine {instance.get('name')}", instance.get("status", "")
    state = state_of(NODE_STATE, word, thing=thing, otherwise=LeasedNodeState.STARTING)
    return LeasedNodeState.PREEMPTED if state.is_gone and instance.get("name") in preempted else state


def request_state(request: dict[str, Any]) -> RequestState:
    """Return how far a resize request has come. One of which Google has a word that is new to us may yet be met."""
    thing = f"GCP resize request {request.get('name')}"
    return state_of(RESIZE_STATE, request.get("state", ""), thing=thing, otherwise=RequestState.WAITING)


def operation_errors(operation: dict[str, Any]) -> tuple[NativeError, ...]:
    """Return what an operation that is done says went wrong; nothing: it did what it was asked."""
    return native_errors(operation.get("error"))


def num_planned(operation: dict[str, Any]) -> int:
    """Return how many machines a bulk insert is to make; 0: it does not say."""
    return sum(each.get("targetVmCount", 0) for each in _by_location(operation))


def num_created(operation: dict[str, Any]) -> int | None:
    """Return how many machines a bulk insert has made; None: it does not say."""
    locations = _by_location(operation)
    return sum(each.get("createdVmCount", 0) for each in locations) if locations else None


def native_errors(error: dict[str, Any] | None) -> tuple[NativeError, ...]:
    """Return the errors of an ``error`` object of an operation or a resize request."""
    listed = (error or {}).get("errors", [])
    return tuple(NativeError(code=each.get("code", ""), message=each.get("message", "")) for each in listed)


def reaction(errors: Iterable[NativeError]) -> Reaction:
    """Return what the errors together ask for."""
    found = (REACTION.get(each.code, Reaction.UNKNOWN) for each in errors)
    return max(found, key=lambda each: each.value, default=Reaction.SUMMARY)


def refusal(errors: Sequence[NativeError], *, what: str, region: str, is_final: bool) -> LlmschedError:
    """Return the error of ours for a request that came to nothing. ``what`` was asked for in ``region``.

    ``is_final``: Google has begun it and failed, so that asking again under the same key only tells the same again.
    """
    told = "; ".join(str(each) for each in errors) or "Google did not say why"
    match reaction(errors):
        case Reaction.QUOTA:
            return QuotaError(f"the quota of {region} does not allow {what} ({told})", region=region)
        case Reaction.RETRY if not is_final:
            return TransientError(f"could not get {what} this time: {told}")
        case Reaction.CAPACITY | Reaction.SUMMARY | Reaction.RETRY:
            return CapacityError(f"could not get {what}: {told}. Wait, or try another zone or shape")
        case Reaction.SPEC | Reaction.ABSENT | Reaction.EXISTS:
            return SpecError(path="options", hint=f"Google never gives {what} so: {told}. Correct what it names")
        case Reaction.UNKNOWN:
            return InternalError(f"could not get {what}, for a reason that is missing in states.py: {told}")


def _by_location(operation: dict[str, Any]) -> list[dict[str, Any]]:
    return list(operation.get("instancesBulkInsertOperationMetadata", {}).get("perLocationStatus", {}).values())
