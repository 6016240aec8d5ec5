"""Effects that the run machine asks for. Each is safe to perform again: a crash loses at most the record of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_llmsched.control.checkpoint_line import CheckpointLine
from airflow_llmsched.control.spending import Spend
from airflow_llmsched.domain.checkpoint import CheckpointRef
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.health import Fault
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.progress import ProgressPoint
from airflow_llmsched.planner.policies.failure import FailureHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOthers:
    """Stop every live gang of the run, up to attempt ``through``, before the generation launches its own.

    ``unlaunched`` is an attempt that an earlier generation intended, and whose gang nobody has seen: it is given up.
    """

    through: AttemptKey
    unlaunched: AttemptKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosePlan:
    """Plan on what is free now: ``keep`` if its nodes are, else anew, off the ``excluded`` nodes where possible.

    ``first`` is set until the generation has launched: a plan made before the run opened may serve. ``unfenced`` are
    the channels of gangs that ended without a witness: their agents must have fenced themselves first. ``newest`` is
    the newest sound checkpoint of ``line``, None while nobody has looked; ``pace_ratio`` how much longer a step takes
    than was predicted. The driver adds ``num_records``, here and below: how much of the journal it has read.
    """

    keep: Plan | None
    excluded: tuple[NodeId, ...]
    first: bool
    waiting_since_s: float | None
    unfenced: tuple[str, ...] = ()
    newest: CheckpointRef | None = None
    line: CheckpointLine = field(default_factory=CheckpointLine)
    pace_ratio: float = 1.0
    num_records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForCapacity:
    """Look again at ``until_s``."""

    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseCheckpoint:
    """Find the newest sound checkpoint of ``line`` that ``plan`` can resume from. ``newest`` was its best."""

    plan: Plan
    newest: CheckpointRef | None
    line: CheckpointLine = field(default_factory=CheckpointLine)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordIntent:
    """Record that a gang is about to be submitted under ``key``, and below which folder it saves by ``plan``."""

    key: AttemptKey
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Adopt the gang that exists under ``key``, or submit it. It saves in a folder of its own or in the shared root.

    Where the platform chooses the nodes, it is kept off the ``excluded`` ones that the plan does without.
    """

    key: AttemptKey
    channel_root: str
    plan: Plan
    checkpoint: CheckpointRef | None
    waiting_since_s: float | None
    own_folder: bool = False
    excluded: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchGang:
    """Watch until there is something to hand over."""

    handle: GangHandle
    channel_root: str
    launched_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """Say whether the gang on ``nodes`` is to go on where it is, and whether the budget lasts; ``cause`` is why now.

    ``progress`` are the newest of earlier reviews, oldest first; ``last_step`` the last step that anyone has seen.
    The driver adds what the run has spent and may spend, which the machine does not know.
    """

    key: AttemptKey
    cause: str
    launched_at_s: float
    resumed_step: int
    last_step: int
    nodes: tuple[NodeId, ...] = ()
    line: CheckpointLine = field(default_factory=CheckpointLine)
    progress: tuple[ProgressPoint, ...] = ()
    pace_ratio: float = 1.0
    spend: Spend = field(default_factory=Spend)
    max_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopGang:
    """Stop the gang and wait until it is gone; ``save_first`` gives it its grace to save and leave by itself."""

    handle: GangHandle
    channel_root: str
    reason: str
    save_first: bool
    line: CheckpointLine = field(default_factory=CheckpointLine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assess:
    """Look for new durable checkpoints; unless one is of the last step, the failure policy decides about ``fault``."""

    fault: Fault
    history: FailureHistory
    newest: CheckpointRef | None
    line: CheckpointLine = field(default_factory=CheckpointLine)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRun:
    """Find the final checkpoint and record success. ``note`` says what its reader should not overlook."""

    last_step: int | None
    line: CheckpointLine = field(default_factory=CheckpointLine)
    note: str = ""
    num_records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailRun:
    """Record the failure. Nothing is alive any more."""

    reason: str
    fault: Fault | None
    num_records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRun:
    """Give up the attempt ``unlaunched``, stop whatever of the run is alive, up to ``through``, then record the end."""

    reason: str
    through: AttemptKey
    unlaunched: AttemptKey | None = None
    num_records: int = 0


Command = (
    StopOthers
    | ChoosePlan
    | WaitForCapacity
    | ChooseCheckpoint
    | RecordIntent
    | Launch
    | WatchGang
    | Review
    | StopGang
    | Assess
    | FinishRun
    | FailRun
    | CancelRun
)
