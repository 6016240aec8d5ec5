"""What a run leaves to its reader: where time and money went, what was learnt, what was lost. Values only.

``attempt`` is the attempt's number within the generation. What is not known is None or absent, and ``notes`` says why.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.health import Fault
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.ledger import Ledger
from airflow_llmsched.domain.placement import Placement


class RunOutcome(StrEnum):
    """How the run ended, or that it has not."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """What the run is called, by us and by Airflow. ``dag_id`` and ``run_id`` are None for a run outside Airflow."""

    run_key: RunKey
    generation: int
    workload: str
    dag_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimizer step as rank 0 measured it. ``loss`` is None when it was not a finite number.

    ``stall_s`` is the part of ``step_s`` beyond the attempt's pace, when the step stalled; ``end_s`` is Unix time.
    """

    attempt: int
    step: int
    end_s: float
    step_s: float
    loss: float | None
    num_tokens: int
    kept: bool
    stall_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One launch. Times are Unix seconds; ``resumed_from_step`` None: it began from nothing."""

    attempt: int
    name: str
    layout: ParallelLayout
    placement: Placement
    node_shape: str
    predicted_step_s: float
    intended_at_s: float
    launched_at_s: float | None
    ended_at_s: float | None
    phase: GangPhase | None
    resumed_from_step: int | None
    num_steps_kept: int
    num_steps_lost: int
    step_s_median: float | None
    node_s: float
    usd: float | None
    fault: Fault | None = None
    reason: str = ""


class CheckpointState(StrEnum):
    """What is known of a checkpoint. MARKED: only the trainer's word, not seen on storage when the report was made.

    GIVEN_UP: whole, but a later attempt went on from an earlier step, so that the run does not go on from it.
    """

    VERIFIED = "verified"
    COMPLETE = "complete"
    TORN = "torn"
    DAMAGED = "damaged"
    MARKED = "marked"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One checkpoint. ``attempt`` is the one that wrote it, as far as its marks tell; ``digest`` is a sha256."""

    step: int
    path: str
    state: CheckpointState
    attempt: int | None = None
    saved_at_s: float | None = None
    digest: str | None = None
    num_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Held-out loss of one checkpoint and its gate (``max_loss`` None: there was no gate).

    ``loss`` is None when it was not a finite number. ``evaluated_at_s`` is Unix seconds; 0 in records without it.
    """

    checkpoint_step: int
    loss: float | None
    passed: bool
    max_loss: float | None = None
    num_tokens: int | None = None
    checkpoint_path: str = ""
    evaluated_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """List price of a whole node by shape name. ``source`` says who asks that price, and as of when."""

    usd_per_hour: dict[str, float]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Everything the report shows. ``usd`` is None when a shape that was used has no price.

    ``attempts`` and all that is told of them are those of the last generation. Only ``usd`` is of all, like the budget:
    ``earlier_usd`` of it went to the ``num_earlier_attempts`` launches of generations before the last clear.
    ``rented_usd`` is what the run's ``num_rentals`` rentals have cost at their offers' prices, from order to end,
    whether a gang ran or not; no part of ``usd``, which is launches at list price; None when nothing was rented.
    ``mfu_ratio`` is model FLOP of the kept steps over what the ranks could have done in the same step time.
    """

    names: RunNames
    outcome: RunOutcome
    reason: str
    created_at_s: float
    ledger: Ledger
    attempts: tuple[AttemptRow, ...]
    steps: tuple[StepRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    evaluation: EvaluationResult | None
    usd: float | None
    price_source: str | None
    num_tokens_kept: int
    num_tokens_lost: int
    step_s_median: float | None
    step_s_p95: float | None
    mfu_ratio: float | None
    notes: tuple[str, ...] = ()
    earlier_usd: float | None = 0.0
    num_earlier_attempts: int = 0
    rented_usd: float | None = None
    num_rentals: int = 0

    @property
    def lost_steps(self) -> tuple[int, ...]:
        """Steps that were trained and thrown away, ascending, one entry for each time."""
        return tuple(sorted(row.step for row in self.steps if not row.kept))

    @property
    def steps_trained_twice(self) -> tuple[int, ...]:
        """Steps that have more than one record, ascending, one entry for each time beyond the first."""
        counted = Counter(row.step for row in self.steps)
        return tuple(sorted(step for step, times in counted.items() for _ in range(times - 1)))

    @property
    def retrained_only_lost(self) -> bool:
        """Whether no step was trained again but the lost ones, and all of those were.

        Of a run that did not succeed, lost steps may still wait for their second time.
        """
        if self.outcome is RunOutcome.SUCCEEDED:
            return self.steps_trained_twice == self.lost_steps
        return not Counter(self.steps_trained_twice) - Counter(self.lost_steps)

    @property
    def final_loss(self) -> float | None:
        """Training loss of the last step that was kept."""
        kept = [row for row in self.steps if row.kept]
        return max(kept, key=lambda row: row.step).loss if kept else None

    @property
    def num_faults(self) -> int:
        """Attempts that ended with a fault."""
        return sum(row.fault is not None for row in self.attempts)
