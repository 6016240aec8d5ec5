"""A plan: layout, placement and what they are predicted to cost; and what was turned down, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePrediction:
    """What is expected of one batch phase: the layout is the run's, and only the number of micro-batches changes."""

    from_tokens: int
    sequence_length_tokens: int
    num_sequences: int
    num_steps: int
    step_s: float
    memory_bytes_per_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the planner expects of one layout on one placement. Breakdowns sum to their totals.

    Steps and memory are those of the heaviest batch phase (longest sequences, then most). ``phases`` is
    empty for a run of one phase. ``run_s`` and ``run_usd`` are of the whole run, nothing going wrong; 0 where the time
    of a step is not known. ``fullest_rank`` says which ranks the memory is of, and ``allocator_settings`` are
    environment variables without which the allocator would hold more of it. Half of the steps take ``step_p50_s`` at
    most, nine in ten ``step_p90_s``, as far as ranks vary: how far the prediction is off is for ``error_ratio`` to say.
    ``hfu_ratio`` counts what is computed again, ``mfu_ratio`` does not; ``binding_term`` is a step's longest part.
    ``step_energy_j`` is what all ranks draw in a step with their share of their nodes, None where it is not known;
    ``energy_unknown`` then says why, where it is the machine's power that nobody states.
    """

    step_s: float
    step_breakdown_s: Mapping[str, float]
    memory_bytes_per_rank: int
    memory_breakdown_bytes: Mapping[str, int]
    mfu_ratio: float
    tokens_per_s: float
    usd_per_hour: float
    error_ratio: float
    step_p50_s: float = 0.0
    step_p90_s: float = 0.0
    phases: tuple[PhasePrediction, ...] = ()
    run_s: float = 0.0
    run_usd: float = 0.0
    step_energy_j: float | None = None
    run_energy_j: float | None = None
    energy_unknown: str = ""
    fullest_rank: str = ""
    allocator_settings: str = ""
    hfu_ratio: float = 0.0
    binding_term: str = ""
    tokens_per_s_per_rank: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One legal way to run the workload now."""

    layout: ParallelLayout
    placement: Placement
    prediction: Prediction
    node_shape: str
    num_domains: int

    def summary(self) -> str:
        """One line for tables, XCom and logs."""
        return (
            f"{self.layout.describe()} on {len(self.placement.nodes)} nodes of {self.node_shape}: "
            f"{self.prediction.step_s:.3f} s/step, {self.prediction.memory_bytes_per_rank / 2**30:.2f} GiB/rank"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSearch:
    """The Pareto set, best by the objective first, and the number of candidates that fell out for each reason.

    ``plans`` is empty when nothing is legal; ``relaxation`` then says the smallest change known to help. ``notes`` are
    sentences on what the order of plans could not take into account.
    """

    plans: tuple[Plan, ...]
    rejections: Mapping[str, int] = field(default_factory=dict)
    num_candidates: int = 0
    relaxation: str | None = None
    notes: tuple[str, ...] = ()
