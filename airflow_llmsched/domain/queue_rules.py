"""What a run says of its place in the queue, and by which rules a deployment shares its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_llmsched.domain.queue import PriorityClass, QueuePolicy, TeamQuota

DEFAULT_TEAM = "default"
DEFAULT_PRIORITY = "normal"

DEFAULT_CLASSES = (
    PriorityClass(name="low", priority=-100),
    PriorityClass(name=DEFAULT_PRIORITY, priority=0),
    PriorityClass(name="high", priority=100),
    PriorityClass(name="urgent", priority=1000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWish:
    """A run that waits its turn for the size that suits it, with its ``team`` and its ``priority`` (a class's name).

    It gives up once it has waited for ``max_wait_s`` in a row; None: never.
    """

    team: str = DEFAULT_TEAM
    priority: str = DEFAULT_PRIORITY
    max_wait_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWeights:
    """What counts in a decision, relative to the rest (``planner.queue.choices.QueueCosts``). All are 0 or more."""

    throughput: float = 0.0
    cost: float = 0.0
    latency: float = 0.0
    fairness: float = 0.0
    reliability: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """How a deployment shares nodes that have no scheduler of their own: classes by name, and what teams may use.

    With ``objective``, each decision is the one of many that these weights like best; else the policy's.
    """

    classes: tuple[PriorityClass, ...] = DEFAULT_CLASSES
    quotas: tuple[TeamQuota, ...] = ()
    policy: QueuePolicy = field(default_factory=QueuePolicy)
    objective: QueueWeights | None = None

    def __post_init__(self) -> None:
        """Refuse rules that have no class for a run that names none."""
        if DEFAULT_PRIORITY not in {each.name for each in self.classes}:
            raise ValueError(f"there must be a class {DEFAULT_PRIORITY!r}: runs that name none are of it")
