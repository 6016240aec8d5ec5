"""What simulated ranks do: scripted ends, or training with checkpoints. Carried in a gang's environment as JSON."""

from __future__ import annotations

from dataclasses import dataclass

SIM_RANKS_COMMAND = ("sim-ranks",)
SIM_TRAIN_COMMAND = ("sim-train",)

RANKS_VARIABLE = "LLMSCHED_SIM_RANKS"
"""JSON list of :class:`SimRankScript`, one per rank."""

TRAINING_VARIABLE = "LLMSCHED_SIM_TRAINING"
"""JSON of :class:`SimTraining`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRankScript:
    """One rank: write ``says``, run ``lasts_s`` (None: for ever), end by ``signal`` or with ``exit_code``."""

    lasts_s: float | None = 0.0
    exit_code: int = 0
    signal: int | None = None
    says: str = ""
    ignores_sigterm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SimTraining:
    """A training job: ``init_s`` to get ready, then steps, still for ``save_s`` at each save; ``leave_s`` to exit.

    A step of ``work_s`` rank-seconds takes ``work_s`` / ranks, so that fewer ranks train more slowly; it varies by
    ``jitter_ratio`` by the engine's seed. It saves every ``checkpoint_interval_steps`` (None: only at the end), when
    asked, and when a node is about to be taken.
    """

    num_steps: int
    init_s: float = 5.0
    work_s: float = 4.0
    save_s: float = 1.0
    leave_s: float = 0.0
    checkpoint_interval_steps: int | None = 10
    tokens_per_step: int = 1024
    jitter_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFails:
    """When the gang would finish ``at_step``, ``rank`` exits with ``exit_code`` instead, having written ``says``."""

    at_step: int
    rank: int = 0
    exit_code: int = 1
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hangs:
    """When the gang would finish ``at_step``, every rank stalls for ``lasts_s`` (None: for ever)."""

    at_step: int
    lasts_s: float | None = None


TrainingFault = RankFails | Hangs
"""Happens once, in the first attempt that comes to its step."""
