"""What can happen to a run, as the journal keeps it. Times are Unix seconds; ``at_s`` is when control saw the event.

Adding a kind or an optional field keeps old journals readable; anything else needs a new ``journal.FORMAT_VERSION``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Literal, get_args

from pydantic import Field

from airflow_llmsched.domain.checkpoint import CheckpointRef
from airflow_llmsched.domain.decision import Decision
from airflow_llmsched.domain.gang import GangHandle, GangStatus
from airflow_llmsched.domain.health import Fault
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.ledger import Span
from airflow_llmsched.domain.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A generation began. ``asked_generation`` is the caller's own count: a clear advances it, a retry does not.

    ``since_s`` is when the worker set out to begin it, here and in the next two: of two owners the later one is right.
    """

    at_s: float
    generation: int
    asked_generation: int
    owner: str = ""
    since_s: float | None = None
    kind: Literal["opened"] = "opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Another worker went on with the generation, after the last one ended or died."""

    at_s: float
    owner: str = ""
    since_s: float | None = None
    kind: Literal["resumed"] = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopened:
    """A retry went on with a generation that had failed, with its failure budgets whole again."""

    at_s: float
    owner: str = ""
    since_s: float | None = None
    kind: Literal["reopened"] = "reopened"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanNoted:
    """Someone measured a stretch of time that no other event shows (staging, queueing, evaluation)."""

    at_s: float
    span: Span
    kind: Literal["span_noted"] = "span_noted"


@dataclass(frozen=True, slots=True, kw_only=True)
class OthersStopped:
    """Nothing of the run was alive any more; ``stopped`` names the gangs that had been."""

    at_s: float
    stopped: tuple[str, ...] = ()
    kind: Literal["others_stopped"] = "others_stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChosen:
    """The plan of the next launch."""

    at_s: float
    plan: Plan
    note: str = ""
    kind: Literal["plan_chosen"] = "plan_chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRefused:
    """Nothing legal fits what is free now. ``retry_at_s`` is when to look again (None: give up)."""

    at_s: float
    reason: str
    retry_at_s: float | None
    kind: Literal["plan_refused"] = "plan_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The run waits its turn since ``since_s``; ``again_at_s`` is when to look again at the latest.

    ``start_s`` is when it is expected to start (None: nobody knows); with ``is_promised``, nobody who starts before it
    delays that.
    """

    at_s: float
    reason: str
    again_at_s: float
    since_s: float
    start_s: float | None = None
    is_promised: bool = False
    kind: Literal["queued"] = "queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldOrdered:
    """The gang is to save and leave, so that run ``to`` can start: by ``by_s``, if it can (None: at once)."""

    at_s: float
    key: AttemptKey
    to: RunKey
    by_s: float | None = None
    kind: Literal["yield_ordered"] = "yield_ordered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Woke:
    """The wait for capacity is over."""

    at_s: float
    kind: Literal["woke"] = "woke"


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceAwaited:
    """Ranks of an ended gang may be alive on ``nodes``, unseen: nothing is launched before ``until_s``.

    Unless they are known to be dead before: at ``again_at_s`` it is worth looking (None: at no time).
    """

    at_s: float
    until_s: float
    again_at_s: float | None = None
    nodes: tuple[NodeId, ...] = ()
    kind: Literal["fence_awaited"] = "fence_awaited"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedCheckpoint:
    """A newer checkpoint that was passed over, and why."""

    step: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChosen:
    """What the next launch resumes from (None: step 0)."""

    at_s: float
    checkpoint: CheckpointRef | None
    skipped: tuple[SkippedCheckpoint, ...] = ()
    note: str = ""
    kind: Literal["checkpoint_chosen"] = "checkpoint_chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMissing:
    """Nothing can be resumed from although the run may not start at step 0."""

    at_s: float
    reason: str
    skipped: tuple[SkippedCheckpoint, ...] = ()
    kind: Literal["checkpoint_missing"] = "checkpoint_missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchIntended:
    """A gang is about to be submitted under ``key``, with the plan and checkpoint chosen last.

    ``own_folder``: it saves in a folder of its own below the checkpoint root, not in the root itself. That is
    ``checkpoint_root``, as control sees it; empty where the run has only one.
    """

    at_s: float
    key: AttemptKey
    channel_root: str
    own_folder: bool = False
    checkpoint_root: str = ""
    kind: Literal["launch_intended"] = "launch_intended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The engine has the gang."""

    at_s: float
    handle: GangHandle
    kind: Literal["launched"] = "launched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The engine had the gang already: an earlier worker submitted it and could not record it."""

    at_s: float
    handle: GangHandle
    kind: Literal["adopted"] = "adopted"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRefused:
    """Nothing was started: for a ``fault``, or, with None, because what the plan needs was not free any more."""

    at_s: float
    reason: str
    fault: Fault | None = None
    retry_at_s: float | None = None
    kind: Literal["launch_refused"] = "launch_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """A worker took up what a trigger had yielded at ``yielded_at_s``."""

    at_s: float
    yielded_at_s: float
    kind: Literal["handed_over"] = "handed_over"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeReceived:
    """The platform announced that it takes ``node`` at ``deadline_s``."""

    at_s: float
    node: NodeId
    deadline_s: float
    kind: Literal["notice_received"] = "notice_received"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangEnded:
    """The engine says that the gang ended. ``fault`` is None when it did what it was launched for."""

    at_s: float
    key: AttemptKey
    status: GangStatus
    fault: Fault | None
    last_step: int | None = None
    notices: tuple[NoticeReceived, ...] = ()
    kind: Literal["gang_ended"] = "gang_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultDetected:
    """The gang is alive by the engine's account, yet something is wrong with it."""

    at_s: float
    key: AttemptKey
    fault: Fault
    last_step: int | None = None
    notices: tuple[NoticeReceived, ...] = ()
    kind: Literal["fault_detected"] = "fault_detected"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookFailed:
    """Nobody could see the gang for ``num_errors`` polls in a row. It says nothing about the gang."""

    at_s: float
    key: AttemptKey
    num_errors: int
    reason: str
    kind: Literal["look_failed"] = "look_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewDue:
    """It is time to ask whether the gang is to go on where it is, or ``cause`` gives reason to.

    ``last_step`` is the last step seen; None: the watcher did not look.
    """

    at_s: float
    key: AttemptKey
    cause: str
    last_step: int | None = None
    kind: Literal["review_due"] = "review_due"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """The gang goes on where it is (``keeps``) until ``again_at_s`` at least, or is to be stopped and launched anew.

    ``step`` and ``spent_usd`` are how far the run had come and what it had cost, for the pace of the next review.
    ``pace_ratio`` is how much longer a step takes than was predicted; None: not known. ``asks`` is what somebody is to
    decide about the budget; empty: nothing.
    """

    at_s: float
    key: AttemptKey
    keeps: bool
    reason: str
    step: int
    spent_usd: float
    again_at_s: float
    pace_ratio: float | None = None
    asks: str = ""
    kind: Literal["reviewed"] = "reviewed"


class DeadlineCause(StrEnum):
    """What a run has no more of."""

    TIME = "time"
    MONEY = "money"
    PROJECTION = "projection"
    """There is money left, but not for all that is left to train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineReached:
    """The run may not go on. ``last_step`` is the last step seen; ``words`` say how a projection was made."""

    at_s: float
    last_step: int | None = None
    cause: DeadlineCause = DeadlineCause.TIME
    words: str = ""
    kind: Literal["deadline_reached"] = "deadline_reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The gang is gone. ``completed`` when it turned out to have done what it was launched for."""

    at_s: float
    key: AttemptKey
    status: GangStatus
    completed: bool = False
    last_step: int | None = None
    kind: Literal["stopped"] = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSeen:
    """The newest checkpoint on storage that is complete and sound."""

    at_s: float
    checkpoint: CheckpointRef
    digest: str = ""
    kind: Literal["checkpoint_seen"] = "checkpoint_seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What the failure policy chose. Recorded, so that a later policy replays an old journal to the same state."""

    at_s: float
    decision: Decision
    kind: Literal["decided"] = "decided"


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """Someone ended the generation. Recorded before anything is stopped."""

    at_s: float
    reason: str
    kind: Literal["cancel_requested"] = "cancel_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSucceeded:
    """The generation's end: trained to the last step. ``note`` says what a reader should not overlook."""

    at_s: float
    checkpoint: CheckpointRef | None
    last_step: int | None = None
    note: str = ""
    kind: Literal["run_succeeded"] = "run_succeeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """The generation's end: given up."""

    at_s: float
    reason: str
    fault: Fault | None = None
    kind: Literal["run_failed"] = "run_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCancelled:
    """The generation's end: nothing of it is alive."""

    at_s: float
    stopped: tuple[str, ...] = ()
    kind: Literal["run_cancelled"] = "run_cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Teardown found or made sure that nothing is left. ``started_at_s`` is when it began."""

    at_s: float
    started_at_s: float
    stopped: tuple[str, ...] = ()
    kind: Literal["released"] = "released"


AnyEvent = (
    Opened
    | Resumed
    | Reopened
    | SpanNoted
    | OthersStopped
    | PlanChosen
    | PlanRefused
    | Queued
    | YieldOrdered
    | Woke
    | FenceAwaited
    | CheckpointChosen
    | CheckpointMissing
    | LaunchIntended
    | Launched
    | Adopted
    | LaunchRefused
    | HandedOver
    | NoticeReceived
    | GangEnded
    | FaultDetected
    | LookFailed
    | ReviewDue
    | Reviewed
    | DeadlineReached
    | Stopped
    | CheckpointSeen
    | Decided
    | CancelRequested
    | RunSucceeded
    | RunFailed
    | RunCancelled
    | Released
)
Event = Annotated[AnyEvent, Field(discriminator="kind")]

AnyHandover = GangEnded | FaultDetected | LookFailed | ReviewDue | DeadlineReached | Woke
Handover = Annotated[AnyHandover, Field(discriminator="kind")]
"""What a watcher hands over; in codec form it is the payload of a trigger's event."""

EVENT_TYPES: tuple[type, ...] = get_args(AnyEvent)
EVENT_KINDS = frozenset(field.default for type_ in EVENT_TYPES for field in fields(type_) if field.name == "kind")
