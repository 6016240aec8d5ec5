"""Where a run is, and all that is known of it. Pure; how it gets there is ``control.machine``'s."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.checkpoint_line import CheckpointLine
from airflow_llmsched.domain.checkpoint import CheckpointRef
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.health import Fault
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.progress import ProgressPoint
from airflow_llmsched.planner.policies.failure import FailureHistory


class RunPhase(StrEnum):
    """Where a run is."""

    NEW = "new"
    CLOSING = "closing"
    PLANNING = "planning"
    WAITING = "waiting"
    RESUMING = "resuming"
    READY = "ready"
    LAUNCHING = "launching"
    WATCHING = "watching"
    REVIEWING = "reviewing"
    MOVING = "moving"
    YIELDING = "yielding"
    RECOVERING = "recovering"
    ASSESSING = "assessing"
    ENDING = "ending"
    FINISHING = "finishing"
    FAILING = "failing"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether the generation has ended."""
        return self in _TERMINAL


_TERMINAL = frozenset({RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """All that decisions need.

    ``owner_since_s`` is when the owner set out to act for the run, None for one that did not say; a teardown moves it
    on to when it began.
    ``attempt`` counts intended launches of the generation; ``newest`` is the newest durable checkpoint known,
    ``checkpoint`` the one that the next or current launch resumes from. ``line`` says which checkpoints count, in any
    generation; ``own_folder`` where the attempt saves. ``gang_ended`` once the engine has said so.
    ``unlaunched`` is the attempt, of whatever generation, that was intended and whose gang nobody has seen yet.
    ``unfenced`` are the channels of gangs that ended without a witness, in any generation; nothing is launched before
    ``fence_until_s``. ``progress`` are the newest reviews, oldest first, of any attempt of the generation;
    ``pace_ratio`` is how much longer a step takes than was predicted. ``asks`` is what somebody is to decide about the
    budget. ``queued`` is how the run stands in the queue while it waits there.
    """

    run: RunKey
    phase: RunPhase = RunPhase.NEW
    generation: int = 0
    asked_generation: int = 0
    owner: str = ""
    owner_since_s: float | None = None
    attempt: int = 0
    plan: Plan | None = None
    keep_plan: bool = False
    excluded: tuple[NodeId, ...] = ()
    checkpoint: CheckpointRef | None = None
    newest: CheckpointRef | None = None
    line: CheckpointLine = field(default_factory=CheckpointLine)
    own_folder: bool = False
    channel_root: str = ""
    handle: GangHandle | None = None
    launched_at_s: float | None = None
    gang_ended: bool = False
    unlaunched: AttemptKey | None = None
    fault: Fault | None = None
    history: FailureHistory = field(default_factory=FailureHistory)
    last_step: int | None = None
    reason: str = ""
    too_late: ev.DeadlineCause | None = None
    waiting_since_s: float | None = None
    waiting_until_s: float | None = None
    queued: ev.Queued | None = None
    unfenced: tuple[str, ...] = ()
    fence_until_s: float | None = None
    released: bool = False
    review_at_s: float | None = None
    review_cause: str = ""
    progress: tuple[ProgressPoint, ...] = ()
    pace_ratio: float = 1.0
    asks: str = ""
    story: tuple[str, ...] = ()

    @property
    def key(self) -> AttemptKey:
        """The attempt intended last; number 0 before the first."""
        return AttemptKey(run=self.run, generation=self.generation, attempt=self.attempt)

    @property
    def next_key(self) -> AttemptKey:
        """The attempt to be intended next."""
        return replace(self.key, attempt=self.attempt + 1)
