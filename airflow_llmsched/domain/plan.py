"""A plan: layout, placement and what they are predicted to cost; and what was turned down, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_llmsched.domain.hardware import Transport
from airflow_llmsched.domain.layout import ParallelLayout, RankGroup
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

    @property
    def step_band_s(self) -> tuple[float, float]:
        """From and to where four of five steps like this one are expected: as many times less as more."""
        return self.step_s / (1 + self.error_ratio), self.step_s * (1 + self.error_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpan:
    """Where the ranks of one kind of group are, of the group that is spread most.

    Attributes:
        group: the kind.
        num_ranks: ranks in it.
        num_nodes: nodes that they are on.
        level: the innermost level (``node``, or one of the topology's) whose domains hold each such group whole; None
            where there is none.
        fabric: the network that its farthest members talk over.
        bytes_per_s: what one rank's data is taken to move at over it.
        transport: who moves the bytes there.
        reduces: its switches add up.
    """

    group: RankGroup
    num_ranks: int
    num_nodes: int
    level: str | None
    fabric: str
    bytes_per_s: float
    transport: Transport
    reduces: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSetting:
    """An environment variable of every rank that a plan counts on, and why."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One legal way to run the workload now.

    ``spans`` has the groups of more than one rank, the closest first. Without ``launch_settings`` the network would be
    slower than predicted. ``accelerator_vendor`` is that of the node shape; empty: not known. ``levels`` are those of
    the topology, outermost first, that ``spans`` speaks of beside ``node``.
    """

    layout: ParallelLayout
    placement: Placement
    prediction: Prediction
    node_shape: str
    num_domains: int
    spans: tuple[GroupSpan, ...] = ()
    launch_settings: tuple[LaunchSetting, ...] = ()
    accelerator_vendor: str = ""
    levels: tuple[str, ...] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        """What every rank needs in its environment for memory and network to be as predicted."""
        name, _, value = self.prediction.allocator_settings.partition("=")
        allocator = {name: value} if name else {}
        return allocator | {each.name: each.value for each in self.launch_settings}

    def summary(self) -> str:
        """One line for tables, XCom and logs."""
        num_nodes = len(self.placement.nodes)
        return (
            f"{self.layout.describe()} on {num_nodes} node{'s' * (num_nodes > 1)} of {self.node_shape}: "
            f"{self.prediction.step_s:.3f} s/step, {self.prediction.memory_bytes_per_rank / 2**30:.2f} GiB/rank"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSearch:
    """The Pareto set, best by the objective first, and the number of candidates that fell out for each reason.

    ``plans`` is empty when nothing is legal; ``relaxation`` then says the smallest change known to help. ``notes`` are
    sentences on what the order of plans could not take into account, and on what gangs of other runs and that of the
    best plan do to each other. ``tools`` are those for which a run was planned:
    only what all of them can express was looked at, and no other plan is of use to it later.
    """

    plans: tuple[Plan, ...]
    rejections: Mapping[str, int] = field(default_factory=dict)
    num_candidates: int = 0
    relaxation: str | None = None
    notes: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
