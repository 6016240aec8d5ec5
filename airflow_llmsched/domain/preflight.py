"""What was found out about nodes before a gang starts on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.plan import Plan


class CheckOutcome(StrEnum):
    """How a check went. A skipped one says why in its detail; it speaks neither for the node nor against it."""

    OK = "ok"
    BAD = "bad"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of one node. ``value`` is what was measured, if anything was, in ``unit``: more of it is better."""

    name: str
    outcome: CheckOutcome
    detail: str = ""
    value: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChecks:
    """All checks of one node."""

    node: NodeId
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRound:
    """One gang of checks, on the nodes of one plan. ``unfit`` says why nodes must not be used."""

    nodes: tuple[NodeChecks, ...]
    unfit: Mapping[NodeId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRecord:
    """Every round of one generation so far, oldest first. It has passed once a round found all of its nodes fit.

    ``plan`` is the one whose nodes are checked, or were last.
    """

    generation: int
    plan: Plan | None = None
    rounds: tuple[PreflightRound, ...] = ()

    @property
    def unfit(self) -> dict[NodeId, str]:
        """Every node found unfit, and why, whatever the round."""
        return {node: reason for each in self.rounds for node, reason in each.unfit.items()}

    @property
    def passed(self) -> bool:
        """Whether the last round found all of its nodes fit."""
        return bool(self.rounds) and not self.rounds[-1].unfit
