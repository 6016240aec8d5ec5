"""What a tool's settings are made from: the workload, the layout that was chosen for it, and where its ranks are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from itertools import pairwise

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.node_topology import NodeTopology
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.plan import GroupSpan, LaunchSetting, Plan
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import BatchPhase, WorkloadSpec
from airflow_llmsched.planner.launch_settings import NETWORK_ADDS_UP
from airflow_llmsched.planner.perf.job import heaviest_phase
from airflow_llmsched.planner.perf.stages import stage_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A workload with its layout.

    ``ranks_on_nodes``: how many ranks each node has, in the order of the nodes. ``allocator_settings``: the environment
    of every rank that the planned memory assumes; may be empty. ``launch_settings``: what the planned network does.
    ``placement``, ``spans`` and ``levels`` (outermost first) are the plan's: where ranks are, and how far groups reach;
    so are ``node_shape`` and ``accelerator_vendor``, empty where not known. ``wiring`` is what joins the devices of a
    node, of each alike, None where only its shape is known. ``excluded`` are nodes of the fleet that whoever chooses
    nodes must leave out: those that are not fit to be used, or not what the plan is made for.
    """

    workload: WorkloadSpec
    layout: ParallelLayout
    ranks_on_nodes: tuple[int, ...]
    allocator_settings: str = ""
    launch_settings: tuple[LaunchSetting, ...] = ()
    placement: Placement | None = None
    spans: tuple[GroupSpan, ...] = ()
    levels: tuple[str, ...] = ()
    node_shape: str = ""
    accelerator_vendor: str = ""
    wiring: NodeTopology | None = None
    excluded: tuple[NodeId, ...] = ()

    @property
    def network_adds_up(self) -> bool:
        """Whether the network's switches are to add gradients up."""
        return any(each.name == NETWORK_ADDS_UP for each in self.launch_settings)

    @property
    def phase(self) -> BatchPhase | None:
        """The batch phase that the layout was planned for; None for a workload without any."""
        return heaviest_phase(self.workload) if self.workload.batch else None

    @property
    def num_steps(self) -> int | None:
        """Optimizer steps of the run; None where the batch changes on the way, as settings hold one batch."""
        return self.workload.num_steps if len(self.workload.batch) == 1 else None

    @property
    def expert_tp(self) -> int:
        """Ranks that split each routed expert."""
        return self.layout.expert_tp or self.layout.tp

    @property
    def num_sharing(self) -> int:
        """Ranks among which ZeRO shards one copy of what it shards."""
        return self.layout.shard_size or self.layout.dp * self.layout.cp

    @property
    def num_copies(self) -> int:
        """Copies of what ZeRO shards: 1, or more where shards span only some of the replicas (HSDP)."""
        return self.layout.dp * self.layout.cp // self.num_sharing

    @property
    def uses_sequence_parallel(self) -> bool:
        """Whether tensor-parallel ranks split norms along the sequence."""
        return self.layout.tp > 1 and self.layout.sequence_parallel

    @property
    def chunks(self) -> tuple[range, ...]:
        """Layers of each pipeline chunk, in the order of the layers; chunk i is on stage i modulo pp."""
        if self.workload.model is None:
            return ()
        num_chunks = self.layout.pp * self.layout.vp
        bounds = stage_bounds(self.workload.model.num_layers, num_chunks=num_chunks).tolist()
        return tuple(range(first, end) for first, end in pairwise(bounds))

    @property
    def has_even_chunks(self) -> bool:
        """Whether all pipeline chunks have equally many layers."""
        return len({len(chunk) for chunk in self.chunks}) <= 1


def planned_run(
    workload: WorkloadSpec, plan: Plan, *, wiring: NodeTopology | None = None, tree: TopologyTree | None = None
) -> PlannedRun:
    """Return what ``plan`` says of ``workload`` to a tool, on nodes of ``wiring``, of the fleet ``tree``."""
    ranks = Counter(slot.node for slot in plan.placement.slots)
    return PlannedRun(
        workload=workload,
        layout=plan.layout,
        ranks_on_nodes=tuple(ranks[node] for node in plan.placement.nodes),
        allocator_settings=plan.prediction.allocator_settings,
        launch_settings=plan.launch_settings,
        placement=plan.placement,
        spans=plan.spans,
        levels=plan.levels,
        node_shape=plan.node_shape,
        accelerator_vendor=plan.accelerator_vendor,
        wiring=wiring,
        excluded=() if tree is None else _excluded(tree, plan),
    )


def _excluded(tree: TopologyTree, plan: Plan) -> tuple[NodeId, ...]:
    own = set(plan.placement.nodes)
    unfit = (node.id for node in tree.nodes if node.unusable_reason or node.shape != plan.node_shape)
    return tuple(sorted(id_ for id_ in unfit if id_ not in own))


def common_notes(run: PlannedRun) -> tuple[str, ...]:
    """Say what holds for any tool: which environment the plan counts on, which phases the settings are not for."""
    settings = run.allocator_settings
    assumed = f"The planned memory assumes {settings} in the environment of every rank." if settings else ""
    told = (f"Set {each.name}={each.value} for every rank: {each.why}." for each in run.launch_settings)
    return tuple(filter(None, (_phase_note(run), assumed, *told, _software_note(run))))


def _software_note(run: PlannedRun) -> str:
    """Say what the spec states of the trainer's software: no tool has a setting for all of it."""
    software, usual = run.workload.software, Software()
    stated = [each.name for each in fields(Software) if getattr(software, each.name) != getattr(usual, each.name)]
    listed = ", ".join(f"{name} {str(getattr(software, name)).lower()}" for name in stated)
    return f"The plan counts on software with {listed}: see that the trainer has it." if stated else ""


def _phase_note(run: PlannedRun) -> str:
    chosen = run.phase
    others = [phase for phase in run.workload.batch if phase != chosen]
    if chosen is None or not others:
        return ""
    listed = "; ".join(
        f"from {phase.from_tokens:,} tokens: {phase.num_sequences} sequences of {phase.sequence_length_tokens} tokens"
        for phase in others
    )
    return (
        f"These settings are for the phase of {chosen.num_sequences} sequences of {chosen.sequence_length_tokens} "
        f"tokens, without its length in steps. The others need the same layout with their own batch: {listed}."
    )
