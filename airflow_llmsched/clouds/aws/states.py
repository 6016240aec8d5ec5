"""AWS's words as ours, one table for each kind of word. Pure. A word of EC2's that is in no table is loud."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import StrEnum, auto
from fnmatch import fnmatchcase

from airflow_llmsched.clouds.words import state_of
from airflow_llmsched.domain.lease import LeasedNodeState, NoticeKind

log = logging.getLogger(__name__)


class Reaction(StrEnum):
    """What an error of AWS asks for."""

    WAIT = auto()
    """Not enough there now."""
    QUOTA = auto()
    """The account may not have so much."""
    FIX = auto()
    """It will never be accepted as it is: a wrong parameter, or a missing permission."""
    AGAIN = auto()
    """Asked too often, or with credentials that have just run out: nothing was done."""
    UNKNOWN = auto()
    """The server failed: it may have been done."""
    TAKEN = auto()
    """There already is one of that name."""
    GONE = auto()
    """There is none, or none yet."""
    IN_USE = auto()
    """It can not be removed yet."""
    CLASH = auto()
    """The same token was used for another request: what that one did is not known from here."""


class RequestState(StrEnum):
    """What may still come of a spot request."""

    WAITING = auto()
    """It may yet bring an instance."""
    HOLDING = auto()
    """It has its instance."""
    OVER = auto()


REACTIONS: tuple[tuple[str, Reaction], ...] = (
    # Asked too often (before the quotas, whose names look alike)
    ("RequestLimitExceeded", Reaction.AGAIN),
    ("Throttling*", Reaction.AGAIN),
    ("*Throttled*", Reaction.AGAIN),
    ("TooManyRequests*", Reaction.AGAIN),
    ("SlowDown", Reaction.AGAIN),
    ("ConcurrentTagAccess", Reaction.AGAIN),
    ("RequestExpired", Reaction.AGAIN),
    ("ExpiredToken*", Reaction.AGAIN),
    # The server's own failure
    ("InternalError", Reaction.UNKNOWN),
    ("InternalFailure", Reaction.UNKNOWN),
    ("*Unavailable*", Reaction.UNKNOWN),
    ("RequestTimeout*", Reaction.UNKNOWN),
    ("IdempotentParameterMismatch", Reaction.CLASH),
    # No capacity
    ("Insufficient*", Reaction.WAIT),
    ("UnfulfillableCapacity", Reaction.WAIT),
    ("ReservationCapacityExceeded", Reaction.WAIT),
    ("SpotMaxPriceTooLow", Reaction.WAIT),
    # Quotas
    ("VcpuLimitExceeded", Reaction.QUOTA),
    ("InstanceLimitExceeded", Reaction.QUOTA),
    ("MaxSpotInstanceCountExceeded", Reaction.QUOTA),
    ("MaxSpotFleetRequestCountExceeded", Reaction.QUOTA),
    ("MaxIOPSLimitExceeded", Reaction.QUOTA),
    ("ResourceCountExceeded", Reaction.QUOTA),
    ("ResourceLimitExceeded", Reaction.QUOTA),
    ("PendingVerification", Reaction.QUOTA),
    ("TagLimitExceeded", Reaction.FIX),
    ("*LimitExceeded*", Reaction.QUOTA),
    # Names that are taken, gone, or held
    ("InvalidLaunchTemplateName.AlreadyExistsException", Reaction.TAKEN),
    ("InvalidPlacementGroup.Duplicate", Reaction.TAKEN),
    ("InvalidPlacementGroup.InUse", Reaction.IN_USE),
    ("VolumeInUse", Reaction.IN_USE),
    ("InvalidNetworkInterface.InUse", Reaction.IN_USE),
    ("IncorrectState", Reaction.IN_USE),
    ("IncorrectInstanceState", Reaction.IN_USE),
    ("DependencyViolation", Reaction.IN_USE),
    ("InvalidInstanceID.NotFound", Reaction.GONE),
    ("InvalidLaunchTemplateName.NotFoundException", Reaction.GONE),
    ("InvalidLaunchTemplateId.NotFound*", Reaction.GONE),
    ("InvalidPlacementGroup.Unknown", Reaction.GONE),
    ("InvalidSpotInstanceRequestID.NotFound", Reaction.GONE),
    ("InvalidVolume.NotFound", Reaction.GONE),
    ("InvalidNetworkInterfaceID.NotFound", Reaction.GONE),
    # Never accepted
    ("UnauthorizedOperation", Reaction.FIX),
    ("AccessDenied*", Reaction.FIX),
    ("AuthFailure", Reaction.FIX),
    ("InvalidClientTokenId", Reaction.FIX),
    ("UnrecognizedClientException", Reaction.FIX),
    ("SignatureDoesNotMatch", Reaction.FIX),
    ("OptInRequired", Reaction.FIX),
    ("Blocked", Reaction.FIX),
    ("OperationNotPermitted", Reaction.FIX),
    ("Unsupported*", Reaction.FIX),
    ("MissingParameter*", Reaction.FIX),
    ("ParamValidationError", Reaction.FIX),
    ("ValidationError", Reaction.FIX),
    ("MalformedQueryString", Reaction.FIX),
    ("Invalid*", Reaction.FIX),
)
"""Every error code that we react to, in EC2's words with ``*`` for any rest; the first that fits counts."""


def reaction(code: str) -> Reaction | None:
    """Return what an error code asks for, None for one that is in no table."""
    return next((meant for pattern, meant in REACTIONS if fnmatchcase(code, pattern)), None)


_WORST_FIRST = (Reaction.QUOTA, Reaction.FIX, Reaction.WAIT)


def refusal(codes: Iterable[str]) -> tuple[Reaction | None, str]:
    """Return the reaction to a fleet's error list, and the code that asks for it.

    A quota counts before a wrong parameter, and both before a shortage, which waiting would mend. No code at all is a
    shortage that nobody named.
    """
    by_reaction = {reaction(code): code for code in reversed(list(codes))}
    if not by_reaction:
        return Reaction.WAIT, ""
    meant = next(each for each in (*_WORST_FIRST, *by_reaction) if each in by_reaction)
    return meant, by_reaction[meant]


_LIVE = {"pending": LeasedNodeState.STARTING, "running": LeasedNodeState.RUNNING}
_GONE = frozenset({"shutting-down", "terminated", "stopping", "stopped"})
REMOVED = frozenset({"shutting-down", "terminated"})
"""States of an instance that costs nothing any more, nor will."""

_OFF = frozenset({"terminated", "stopped"})
_HIBERNATED = "Client.UserInitiatedHibernate"

_TAKEN_REASONS = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
_OTHER_REASONS = frozenset(
    {
        "",
        "Server.InsufficientInstanceCapacity",
        "Server.InternalError",
        "Server.ScheduledStop",
        "Client.InstanceInitiatedShutdown",
        "Client.InstanceTerminated",
        "Client.InternalError",
        "Client.InvalidSnapshot.NotFound",
        _HIBERNATED,
        "Client.UserInitiatedShutdown",
        "Client.VolumeLimitExceeded",
    }
)

_REQUESTS = {
    "open": RequestState.WAITING,
    "active": RequestState.HOLDING,
    "disabled": RequestState.HOLDING,
    "closed": RequestState.OVER,
    "cancelled": RequestState.OVER,
    "failed": RequestState.OVER,
}
"""``State`` of a spot request."""
MARKED = frozenset({"marked-for-termination", "marked-for-stop"})
"""Status codes of a spot request whose instance is about to be taken."""
_TAKEN_STATUSES = frozenset(
    {
        "instance-stopped-by-price",
        "instance-stopped-no-capacity",
        "instance-stopped-capacity-oversubscribed",
        "instance-terminated-by-price",
        "instance-terminated-by-schedule",
        "instance-terminated-by-service",
        "instance-terminated-capacity-oversubscribed",
        "instance-terminated-launch-group-constraint",
        "instance-terminated-no-capacity",
    }
)

EVENTS = {
    "instance-reboot": NoticeKind.MAINTENANCE,
    "system-reboot": NoticeKind.MAINTENANCE,
    "system-maintenance": NoticeKind.MAINTENANCE,
    "instance-retirement": NoticeKind.INTERRUPTION,
    "instance-stop": NoticeKind.INTERRUPTION,
}
"""Scheduled events of ``DescribeInstanceStatus``. Retired and stopped instances do not come back to their gang."""

DETAIL_TYPES = {
    "EC2 Spot Instance Interruption Warning": NoticeKind.INTERRUPTION,
    "EC2 Instance Rebalance Recommendation": NoticeKind.REBALANCE,
}
"""EventBridge's ``detail-type`` of what is announced about one instance."""


def node_state(
    state: str, *, instance: str, reason: str, request_status: str = "", is_block_over: bool = False
) -> LeasedNodeState:
    """Return an instance's state; ``reason`` is its state reason's code, ``request_status`` its spot request's.

    What is gone once its capacity block ``is_block_over`` was taken with it.

    An ``instance`` in a state that is new to us may yet start; one that ended for such a reason is lost.
    """
    if state not in _GONE:
        return state_of(_LIVE, state, thing=f"AWS instance {instance}", otherwise=LeasedNodeState.STARTING)
    if is_block_over or reason in _TAKEN_REASONS or request_status in _TAKEN_STATUSES:
        return LeasedNodeState.PREEMPTED
    if reason not in _OTHER_REASONS:
        log.warning("EC2 ended an instance for %r, which is a new reason to us: it counts as lost", reason)
    return LeasedNodeState.LOST


def request_state(state: str, *, request: str) -> RequestState:
    """Return whether a spot request may still bring an instance; one in a state that is new to us may."""
    return state_of(_REQUESTS, state, thing=f"AWS spot request {request}", otherwise=RequestState.WAITING)


def is_off(state: str, *, reason: str) -> bool:
    """Whether an instance in ``state`` has stopped for good: nothing that ran on it goes on, now or later."""
    return state in _OFF and reason != _HIBERNATED
