"""What a tool's settings cannot say, and the error for a layout that needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from airflow_llmsched.domain.workload import CompressionKind
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.export.planned import PlannedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One thing that a tool cannot express.

    ``used`` returns what of a run needs it, to be shown; None when the run does without.
    """

    path: str
    why: str
    used: Callable[[PlannedRun], object | None]


def above_one(name: str) -> Callable[[PlannedRun], object | None]:
    """Return a gap's ``used`` for a degree of the layout that must stay 1."""

    def used(run: PlannedRun) -> object | None:
        degree = getattr(run.layout, name)
        return degree if degree > 1 else None

    return used


def one_of(*unusable: object, value: Callable[[PlannedRun], object]) -> Callable[[PlannedRun], object | None]:
    """Return a gap's ``used`` for values that must not occur."""

    def used(run: PlannedRun) -> object | None:
        found = value(run)
        return found if found in unusable else None

    return used


def compresses_unlike(*able: CompressionKind) -> Callable[[PlannedRun], object | None]:
    """Return a gap's ``used`` for a tool that compresses gradients in these ways, or in none."""

    def used(run: PlannedRun) -> object | None:
        asked = run.workload.compression
        return None if asked is None or asked.kind in able else asked.kind.value

    return used


def _of_other_vendors(run: PlannedRun) -> object | None:
    return run.accelerator_vendor if run.accelerator_vendor in {"google", "aws"} else None


NOT_FOR_OTHERS = Gap(
    path="accelerator vendor",
    why="these settings are for PyTorch on GPUs and Gaudi; TPUs and Trainium are trained on by other code",
    used=_of_other_vendors,
)
"""Of each trainer: what it is told has no meaning there."""


def found_gaps(gaps: Iterable[Gap], run: PlannedRun) -> list[tuple[Gap, object]]:
    """Return the gaps that stand in the way of ``run``, each with what needs it."""
    return [(gap, value) for gap in gaps if (value := gap.used(run)) is not None]


def gap_error(gap: Gap, value: object, *, able: Iterable[str]) -> SpecError:
    """Return the error for one gap. ``able`` are the tools that can express the whole layout."""
    names = ", ".join(able)
    instead = f"these can write this plan out: {names}" if names else "no tool here can write this plan out"
    return SpecError(path=gap.path, value=value, hint=f"{gap.why}; {instead}")
