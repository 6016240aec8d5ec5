"""What a finished gang task returns: names, numbers and digests, at most a few hundred bytes."""

from __future__ import annotations

import math
from typing import Any

from airflow_llmsched.control.context import Succeeded
from airflow_llmsched.control.records import read_all
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.checkpoint import CheckpointRef, Sound, VerifyDepth
from airflow_llmsched.ports import CheckpointFormat
from airflow_llmsched.provider.channels import open_channel


def gang_result(driver: RunDriver, outcome: Succeeded, checkpoints: CheckpointFormat) -> dict[str, Any]:
    """Return the run's result, JSON-safe. ``loss`` is the training loss of the last step that any rank reported.

    ``num_attempts`` and ``world_sizes`` are those of the generation that ended; ``loss`` may be older, when that one
    had nothing left to train.
    """
    attempts = driver.attempts()
    generation = driver.state().generation
    checkpoint = outcome.checkpoint
    return {
        "checkpoint": checkpoint.path if checkpoint else None,
        "checkpoint_step": checkpoint.step if checkpoint else None,
        "digest": _digest(checkpoints, checkpoint),
        "step": outcome.last_step,
        "loss": last_loss(attempts),
        "num_attempts": outcome.num_attempts,
        "world_sizes": [each.plan.layout.world_size for each in attempts if each.key.generation == generation],
    }


def last_loss(attempts: tuple[AttemptRecord, ...]) -> float | None:
    """Return the loss of the highest step of the last attempt that trained; None when none did or it is not finite."""
    for attempt in reversed(attempts):
        reports = read_all(open_channel(attempt.channel_root))
        steps = [step for report in reports for step in report.steps]
        if steps:
            loss = max(steps, key=lambda step: step.step).loss
            return loss if math.isfinite(loss) else None  # NaN is no JSON
    return None


def _digest(checkpoints: CheckpointFormat, checkpoint: CheckpointRef | None) -> str | None:
    if checkpoint is None:
        return None
    verdict = checkpoints.verify(checkpoint, depth=VerifyDepth.SIZES)
    return verdict.digest if isinstance(verdict, Sound) else None
