"""A gang: an all-or-nothing set of ranks, as asked for, as launched and as seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_llmsched.domain.health import FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunOrigin
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.roles import RoleKind


class GangPhase(StrEnum):
    """Where a gang is. Preempted, failed, lost and stopped are four different ends."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PREEMPTED = "preempted"
    LOST = "lost"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """Whether no rank of the gang can still be running by the engine's account."""
        return self not in (GangPhase.PENDING, GangPhase.STARTING, GangPhase.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRole:
    """What the helpers of one kind run, as an argument list; ``Placement.helpers`` says how many, and where."""

    kind: RoleKind
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeness:
    """Each run of ``num_nodes`` nodes, from the first in the order of ranks, is to be in one domain of ``level``."""

    level: str
    num_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSpec:
    """What to launch. ``command`` is an argument list for each rank and never meets a shell.

    ``environment`` holds plain settings only; secrets travel by reference. ``channel_root`` is where agents report and
    take orders, and ``channel_links`` the folder of the 0600 files that let them, where the channel needs such
    (``RunChannel.prepare``); ``lease_s`` is how long an agent keeps its ranks alive without being renewed (None: for
    ever). Once a rank has exited 0, the others must follow within ``exit_grace_s``, or the gang has failed: that rank
    left early. ``origin`` travels with the gang, so that the reaper never takes another deployment's for one of ours.
    ``roles`` are the helpers' (``placement.helpers``): they start with the trainers or not at all, one that fails fails
    the gang, and once the trainers are done they are ended. ``accelerator_vendor`` (``domain.hardware.Accelerator``)
    says by which variables a process is shown its slots. ``close`` is what of the placement matters where the platform
    chooses the nodes, and ``excluded`` are those that it must not choose: none of them is the placement's.
    """

    key: AttemptKey
    placement: Placement
    layout: ParallelLayout
    command: tuple[str, ...]
    channel_root: str
    launcher: Launcher = Launcher.TORCHRUN
    environment: Mapping[str, str] = field(default_factory=dict)
    start_limit_s: float = 120.0
    grace_s: float = 10.0
    flush_interval_s: float = 0.5
    lease_s: float | None = None
    exit_grace_s: float = 60.0
    origin: RunOrigin | None = None
    channel_links: str | None = None
    roles: tuple[GangRole, ...] = ()
    accelerator_vendor: str = ""
    close: tuple[Closeness, ...] = ()
    excluded: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A printable request to one engine. ``body`` is JSON-safe; rendering it had no effect."""

    engine: str
    key: AttemptKey
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangHandle:
    """A launched gang, by the engine's own id. JSON-safe and valid in any process."""

    engine: str
    key: AttemptKey
    native_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGang:
    """A live gang as an engine lists it. ``origin`` is None for one that was launched without.

    ``agents_seen_at_s`` is when its agents last gave a sign that the engine itself saw (None: it sees none).
    """

    handle: GangHandle
    channel_root: str
    submitted_at_s: float
    origin: RunOrigin | None = None
    agents_seen_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended: ``exit_code`` or ``signal``, whichever applies, and the last lines it wrote."""

    rank: int
    node: NodeId
    exit_code: int | None
    signal: int | None
    at_s: float
    log_tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node's part of the gang. ``notice_deadline_s`` is set once the platform announced that it takes the node."""

    node: NodeId
    phase: GangPhase
    notice_deadline_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStatus:
    """A gang as the engine sees it now. ``first_end`` is the rank whose end explains the gang's.

    ``fault`` is the engine's word for why the gang ended, where it knows more than the phase says, else None; of a live
    gang, why it must be ended from outside: what is left of it will never end by itself.
    ``unconfirmed_nodes`` are those of an ended gang on which its ranks may be alive all the same: they cannot be seen.
    ``queued_until_s`` is when the platform's own queue gave the gang its nodes, now while it waits there, and None
    where there is no such queue: limits on its start count from then.
    """

    phase: GangPhase
    observed_at_s: float
    nodes: tuple[NodeStatus, ...] = ()
    reason: str = ""
    first_end: RankEnd | None = None
    fault: FaultKind | None = None
    started_at_s: float | None = None
    ended_at_s: float | None = None
    unconfirmed_nodes: tuple[NodeId, ...] = ()
    queued_until_s: float | None = None

    @property
    def noticed(self) -> tuple[NodeStatus, ...]:
        """Nodes that the platform has announced it will take."""
        return tuple(node for node in self.nodes if node.notice_deadline_s is not None)


def abandoned_status(*, observed_at_s: float, at_s: float) -> GangStatus:
    """Return the status of a gang that was given up at ``at_s`` (Unix seconds), before it was submitted."""
    reason = "given up before it was submitted"
    return GangStatus(phase=GangPhase.STOPPED, observed_at_s=observed_at_s, ended_at_s=at_s, reason=reason)
