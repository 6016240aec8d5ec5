"""What a queue decides. Each decision names its gang and its nodes, so that it can be recorded and allocated by itself.

Every record carries a ``kind``, so that a stored union of them is read back exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Literal

from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.queue import Reservation, SliceHold


class WaitReason(StrEnum):
    """Why a gang does not start now."""

    CAPACITY = auto()
    """Fewer accelerators, or less of another resource, are free than it needs."""
    FRAGMENTED = auto()
    """Enough are free, but not in one domain of the level that it requires, or not in whole groups."""
    PROMISED = auto()
    """What is free is promised to a gang that goes before it, which it would delay."""
    IN_ORDER = auto()
    """The queue does not backfill, and a gang that goes before it waits."""
    YIELDING = auto()
    """Others are leaving for it."""
    TEAM_QUOTA = auto()
    """Its team uses all that it may, what it may borrow included."""
    COHORT_QUOTA = auto()
    """The teams of its cohort have nothing left to lend."""
    NO_SLICE = auto()
    """No divided accelerator has as many slices free."""
    NO_PLACE = auto()
    """There is room, but the placement solver refuses it."""
    OVER_QUOTA = auto()
    """It asks for more than its team may ever have."""
    NEVER_FITS = auto()
    """It asks for more than there is, all of it free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """This gang starts now, on slots that nobody else holds. ``ends_by_s`` is None where nobody knows.

    ``held`` are its accelerators by node; one that starts on slices has those instead, and no ``placement``; they are
    ``part_ratio`` of an accelerator.
    """

    gang: RunKey
    held: Mapping[NodeId, tuple[int, ...]] = field(default_factory=dict)
    placement: Placement | None = None
    slices: SliceHold | None = None
    part_ratio: float = 0.0
    ends_by_s: float | None = None
    is_backfill: bool = False
    kind: Literal["start"] = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """This whole gang is to save, leave, and wait again, so that ``beneficiary`` can start.

    ``cost_accelerator_s`` is the work since its last durable checkpoint and its restart, times its accelerators.
    ``domain`` is the one that is freed, as a path; empty where it is quota that is freed, or the whole fleet.
    ``is_reclaim``: its team gives back what it had borrowed.
    """

    gang: RunKey
    beneficiary: RunKey
    leaves_by_s: float
    cost_accelerator_s: float
    domain: tuple[str, ...] = ()
    is_reclaim: bool = False
    kind: Literal["preempt"] = "preempt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A proposal: were this gang moved when it has saved at ``at_s``, ``beneficiary`` could start.

    ``num_slots`` is where it would fit. ``cost_accelerator_s`` is its restart, ``gain_accelerator_s`` what the
    beneficiary's earlier start is worth; both are those of the whole proposal, which holds with all its moves or none.
    """

    gang: RunKey
    beneficiary: RunKey
    at_s: float
    num_slots: Mapping[NodeId, int]
    cost_accelerator_s: float
    gain_accelerator_s: float
    kind: Literal["move"] = "move"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """This gang waits. ``start_s`` is when it is expected to start, None: never, or nobody knows.

    With ``is_promised``, nothing that starts before it delays that; else it is an estimate.
    """

    gang: RunKey
    reason: WaitReason
    detail: str
    start_s: float | None = None
    is_promised: bool = False
    kind: Literal["waits"] = "waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDecision:
    """What follows from a queue's state: each waiting gang starts or waits, and has one entry for that."""

    at_s: float
    starts: tuple[Start, ...] = ()
    preemptions: tuple[Preempt, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    moves: tuple[Move, ...] = ()
    waits: tuple[Waits, ...] = ()
