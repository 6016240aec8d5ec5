"""A queue of gangs as it stands at one moment: who waits, who runs, and by which rules they share the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Literal

from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish
from airflow_llmsched.domain.topology import TopologyTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What gangs use of three resources, or hold a quota of. Slices count as parts of an accelerator.

    ``host_bytes`` is memory of the nodes, ``network_bytes_per_s`` one-way bandwidth between them, both of all nodes
    together.
    """

    num_accelerators: float = 0.0
    host_bytes: float = 0.0
    network_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most of each resource; None: no limit."""

    num_accelerators: float | None = None
    host_bytes: float | None = None
    network_bytes_per_s: float | None = None


class Reclaim(StrEnum):
    """Which gangs of other teams a team may preempt."""

    NEVER = auto()
    LOWER_PRIORITY = auto()
    """Those of a lower class."""
    ANY = auto()
    """Also those of an equal or higher class, if their team borrows of the cohort's quota and the own one does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamQuota:
    """What one team may use. Teams of one cohort lend one another what they leave unused of ``nominal``.

    ``borrowing`` is the most that the team may use beyond ``nominal``, ``lending`` the most of ``nominal`` that others
    may use. A team without a cohort neither borrows nor lends. ``weight`` is the team's share relative to others'.
    """

    team: str
    nominal: Limits
    cohort: str = ""
    borrowing: Limits = field(default_factory=Limits)
    lending: Limits = field(default_factory=Limits)
    reclaim: Reclaim = Reclaim.LOWER_PRIORITY
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a weight that would divide by nothing."""
        if self.weight <= 0:
            raise ValueError(f"team {self.team!r}: weight must be above 0, not {self.weight}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass:
    """Gangs of a higher ``priority`` go first, and may preempt those of a lower one if ``may_preempt``.

    A gang of the class that has started is not preempted for ``protected_s`` seconds.
    """

    name: str
    priority: int
    protected_s: float = 0.0
    may_preempt: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamUsage:
    """What a team has used so far, with what is long past counting less (``planner.queue.usage``), as of ``at_s``."""

    team: str
    accelerator_s: float
    host_byte_s: float = 0.0
    network_bytes: float = 0.0
    at_s: float


class SliceKind(StrEnum):
    """How an accelerator is divided."""

    MIG = auto()
    """Into instances with memory of their own."""
    TIME = auto()
    """Into turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedSlot:
    """An accelerator that is given out in ``num_slices`` equal parts, and to no gang as a whole."""

    node: NodeId
    slot: int
    kind: SliceKind
    num_slices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceAsk:
    """A wish for some slices of one accelerator. ``kind`` None: either will do."""

    num_slices: int = 1
    kind: SliceKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceHold:
    """Slices that are held of one accelerator."""

    node: NodeId
    slot: int
    num_slices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedGang:
    """One gang as the queue knows it, waiting or running: all of its ranks get their slots, or none does.

    ``num_helper_slots`` are accelerators of its other roles. A gang that asks for ``slices`` has one rank.
    ``group_levels`` are the levels that are required of its groups; only then do the degrees of ``layout`` matter
    beside ``tp`` and the number of ranks.
    ``host_bytes`` and ``network_bytes_per_s`` are of the whole gang.
    """

    key: RunKey
    team: str
    priority_class: str
    layout: ParallelLayout = field(default_factory=lambda: ParallelLayout(dp=1))
    required_level: str | None = None
    preferred_level: str | None = None
    group_levels: tuple[PlacementWish, ...] = ()
    excluded: frozenset[NodeId] = frozenset()
    num_helper_slots: int = 0
    host_bytes: float = 0.0
    network_bytes_per_s: float = 0.0
    slices: SliceAsk | None = None

    @property
    def num_slots(self) -> int:
        """Whole accelerators that the gang needs."""
        return 0 if self.slices else self.layout.world_size + self.num_helper_slots

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels that are required of the gang and of its groups."""
        own = () if self.required_level is None else (self.required_level,)
        return (*own, *(each.level for each in self.group_levels))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Room that is kept for this gang from ``start_s`` on: a number of slots on each node.

    ``is_promised`` unless it rests on gangs of which nobody knows when they end. ``is_claim``: others were preempted to
    make the room, so that nobody goes before it.
    """

    gang: RunKey
    start_s: float
    until_s: float | None
    num_slots: Mapping[NodeId, int]
    is_promised: bool
    is_claim: bool = False
    kind: Literal["reservation"] = "reservation"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingGang:
    """A gang that waits since ``since_s``: when it came, or was last preempted (Unix seconds).

    ``runs_for_s`` is the longest that it is expected to run, start-up included; None: nobody knows. ``reserved`` is
    what the last decision kept for it: given back here, it is kept.
    """

    gang: QueuedGang
    since_s: float
    runs_for_s: float | None = None
    reserved: Reservation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGang:
    """A gang that holds slots. Times are Unix seconds.

    ``ends_by_s`` is the latest that it is expected to end, None: nobody knows. What was saved durably by ``saved_s`` is
    not lost when it is stopped; it then takes ``restart_s`` to be where it was again, and up to ``yield_s`` to leave.
    ``next_save_s`` is its next checkpoint boundary: None for a gang that is not to be moved. One that was told to leave
    names the gang that it leaves for in ``yields_to``.
    """

    gang: QueuedGang
    held: Mapping[NodeId, tuple[int, ...]]
    started_s: float
    saved_s: float
    ends_by_s: float | None = None
    restart_s: float = 0.0
    yield_s: float = 60.0
    next_save_s: float | None = None
    slices: SliceHold | None = None
    yields_to: RunKey | None = None
    yields_by_s: float | None = None

    @property
    def num_held(self) -> int:
        """Whole accelerators that the gang holds."""
        return sum(map(len, self.held.values()))


class QueueOrder(StrEnum):
    """Who goes first among gangs of one class that nobody has promised anything."""

    FAIR = auto()
    """A gang of the team that has had least, weighed by its share."""
    FIRST_COME = auto()
    SHORTEST_FIRST = auto()
    """Least accelerator time first."""
    LARGEST_FIRST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """The rules of one queue.

    What was used ``half_life_s`` ago counts half; ``history_ratio`` is what it weighs against what is held now. A gang
    that has waited ``starving_after_s`` goes before all classes. The first ``num_reservations`` gangs of each class
    that cannot start are promised one (1: EASY backfill; None: all of them, conservative backfill). A gang that is over
    its time is thought to end ``overrun_s`` from now, one of which nobody knows when it ends, ``unknown_run_s``.
    Gangs that ``first`` names go before others of their class, in this order. Nodes that fail more often than
    ``max_failures_per_hour`` are given to nobody new.
    """

    half_life_s: float = 7 * 86400.0
    history_ratio: float = 0.5
    starving_after_s: float = 86400.0
    num_reservations: int | None = 4
    overrun_s: float = 600.0
    unknown_run_s: float = 7 * 86400.0
    order: QueueOrder = QueueOrder.FAIR
    may_backfill: bool = True
    may_preempt: bool = True
    may_consolidate: bool = True
    first: tuple[RunKey, ...] = ()
    max_failures_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """All that a decision is made of. The order of its tuples means nothing.

    ``tree`` holds what the queue may give out; slots of running gangs belong to it whether or not the tree calls them
    free. ``host_bytes`` and ``network_bytes_per_s`` of ``capacity`` are the fleet's, None where that is not counted.
    ``totals`` are what there is where nothing hinders a gang beyond its accelerators, as each brings its part: they
    only say how much of the fleet a team has.
    ``failures_per_hour`` are those that are expected of nodes; of one that is not named nobody knows any.
    """

    now_s: float
    tree: TopologyTree
    classes: tuple[PriorityClass, ...]
    waiting: tuple[WaitingGang, ...] = ()
    running: tuple[RunningGang, ...] = ()
    quotas: tuple[TeamQuota, ...] = ()
    usage: tuple[TeamUsage, ...] = ()
    sliced: tuple[SlicedSlot, ...] = ()
    capacity: Limits = field(default_factory=Limits)
    totals: Limits = field(default_factory=Limits)
    policy: QueuePolicy = field(default_factory=QueuePolicy)
    failures_per_hour: Mapping[NodeId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a gang, class, team or slot that is there twice, an unknown class, and a slot that two gangs hold."""
        gangs = [*(each.gang for each in self.waiting), *(each.gang for each in self.running)]
        _refuse_twice("gang", (each.key for each in gangs))
        _refuse_twice("priority class", (each.name for each in self.classes))
        _refuse_twice("quota of team", (each.team for each in self.quotas))
        _refuse_twice("usage of team", (each.team for each in self.usage))
        _refuse_twice("sliced slot", ((each.node, each.slot) for each in self.sliced))
        _refuse_twice("slot", ((node, slot) for each in self.running for node in each.held for slot in each.held[node]))
        known = {each.name for each in self.classes}
        for gang in gangs:
            if gang.priority_class not in known:
                raise ValueError(f"gang {gang.key}: no priority class {gang.priority_class!r}; known: {sorted(known)}")

    def priority(self, gang: QueuedGang) -> PriorityClass:
        """Return a gang's class."""
        return next(each for each in self.classes if each.name == gang.priority_class)


def _refuse_twice(what: str, names: Iterable[object]) -> None:
    twice = sorted(str(name) for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(f"{what} {twice[0]} is there twice")
