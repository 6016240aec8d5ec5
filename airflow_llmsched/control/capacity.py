"""What a run driver asks of whoever chooses the run's capacity, and what it may be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from airflow_llmsched.domain.identity import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a run stands. ``left_ratio`` is the share of its steps that is not durable yet.

    ``pace_ratio`` is how much longer a step took than was thought when that was last seen, and ``step_s`` what a step
    of the gang takes now; None: it has not shown it. ``cause`` is why it is asked now; empty: the run has no gang.
    ``nodes`` are those that the gang is on, as its engine calls them. ``saved_in`` is the storage that its newest
    checkpoint lies in: ``cloud/region`` for a region's own, empty for what everybody sees, or without a checkpoint.
    """

    left_ratio: float
    pace_ratio: float = 1.0
    step_s: float | None = None
    cause: str = ""
    nodes: frozenset[NodeId] = frozenset()
    saved_in: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """The capacity is there: train on it. ``reason`` is why this and nothing else."""

    reason: str
    kind: Literal["holds"] = "holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """There is nothing to train on yet, by choice or for want of it. Ask again at ``again_at_s`` (Unix seconds)."""

    reason: str
    again_at_s: float
    kind: Literal["waits"] = "waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """There will be nothing to train on: the run asks for what its budget or its spec does not allow."""

    reason: str
    kind: Literal["denied"] = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stays:
    """The gang goes on where it is; ask again at ``again_at_s``. ``pace_ratio`` is as in ``Standing``."""

    reason: str
    again_at_s: float
    pace_ratio: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The gang is to save and leave: what it is to go on with is held already, or it is to wait."""

    reason: str
    pace_ratio: float = 1.0


class CapacityChooser(Protocol):
    """Rents for one run, keeps and gives back. Every method may raise ``TransientError``: then it is asked again."""

    def hold(self, standing: Standing) -> Holds | Waits | Denied:
        """Have what the run is to train on, with no gang alive. Whatever else it had is given back."""

    def review(self, standing: Standing) -> Stays | Moves:
        """Say whether a gang that is alive is to go on where it is. What it trains on is never given back here."""
