"""A lease: machines of one pool, rented all or none under one key, until an expiry that whoever needs them moves on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from airflow_llmsched.domain.capacity import Pool
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunOrigin

LeaseId = NewType("LeaseId", str)
"""A lease's name in its cloud. It follows from pool and key, so that it is known before anything is created, and it is
enough, with nothing else, to look at the lease and to end it."""


class LeaseState(StrEnum):
    """How much of a lease is there."""

    PENDING = "pending"
    """Asked for; its machines are on their way, or the cloud still looks for them."""
    ACTIVE = "active"
    """All of its nodes run."""
    BROKEN = "broken"
    """At least one node is gone for good, or never came: the rest is of no use, costs money, and is to be released."""
    ENDED = "ended"
    """Nothing of it is left that costs money, or still could."""


class LeasedNodeState(StrEnum):
    """One machine of a lease. Taken by the cloud and gone for another reason are two different ends."""

    STARTING = "starting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    LOST = "lost"

    @property
    def is_gone(self) -> bool:
        """Whether no rank can run on it any more."""
        return self in (LeasedNodeState.PREEMPTED, LeasedNodeState.LOST)


class NoticeKind(StrEnum):
    """What a cloud announces about a machine."""

    INTERRUPTION = "interruption"
    """It will be taken."""
    REBALANCE = "rebalance"
    """It may be taken. Most such hints come to nothing, and no machine is given up for one."""
    MAINTENANCE = "maintenance"
    """It will stop for a while, or be moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNotice:
    """An announcement. ``effective_at_s`` is when it comes true, in Unix seconds; None: the cloud does not say."""

    kind: NoticeKind
    effective_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedNode:
    """A machine of a lease. ``id`` is the cloud's own; its gang reaches it by ``address``, empty until known.

    ``is_off``: its cloud says that it does not run, and it is neither stopping nor asleep: what ran on it is dead.
    """

    id: NodeId
    state: LeasedNodeState
    address: str = ""
    notice: NodeNotice | None = None
    is_off: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease as its cloud sees it now.

    ``expires_at_s`` (Unix seconds) is what its machines say themselves: whoever needs them moves it on, and the reaper
    takes what has expired. ``origin`` is None where they do not say whose they are. ``leftovers`` names what still
    costs money beside the nodes: disks, addresses, requests that may yet be fulfilled. ``reason`` says why it is not
    active.
    """

    id: LeaseId
    key: LeaseKey
    pool: Pool
    num_nodes: int
    state: LeaseState
    expires_at_s: float
    nodes: tuple[LeasedNode, ...] = ()
    origin: RunOrigin | None = None
    leftovers: tuple[str, ...] = ()
    reason: str = ""

    @property
    def gone(self) -> tuple[LeasedNode, ...]:
        """Nodes on which no rank can run any more."""
        return tuple(node for node in self.nodes if node.state.is_gone)

    @property
    def interrupted_at_s(self) -> float | None:
        """When the first of its nodes will be taken (Unix seconds), None when nothing was said, or no time."""
        times_s = [
            node.notice.effective_at_s
            for node in self.nodes
            if node.notice is not None
            and node.notice.kind is NoticeKind.INTERRUPTION
            and node.notice.effective_at_s is not None
        ]
        return min(times_s, default=None)
