"""Builds the records that a run leaves behind: attempts, node reports, steps. Times are seconds after ``T0``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.checkpoint import CheckpointRef
from airflow_llmsched.domain.gang import GangPhase, GangStatus
from airflow_llmsched.domain.health import Fault, FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.plan import Plan, Prediction
from airflow_llmsched.domain.progress import AgentSpan, AgentSpanKind, CheckpointMark, NodeReport, StepRecord

T0 = 1_790_000_000.0
RUN = RunKey("ls-abcdefghij2345abcdef")


def plan(*nodes: str, slots_per_node: int = 2) -> Plan:
    """A plan that fills ``nodes`` with data-parallel ranks."""
    slots = tuple(
        RankSlot(rank=index * slots_per_node + slot, node=NodeId(node), slot=slot, local_rank=slot)
        for index, node in enumerate(nodes)
        for slot in range(slots_per_node)
    )
    prediction = Prediction(
        step_s=0.5,
        step_breakdown_s={"compute": 0.4, "communication": 0.1},
        memory_bytes_per_rank=1 << 28,
        memory_breakdown_bytes={"parameters": 1 << 28},
        mfu_ratio=0.3,
        tokens_per_s=16384.0,
        usd_per_hour=0.0,
        error_ratio=0.2,
    )
    return Plan(
        layout=ParallelLayout(dp=len(slots), num_micro_batches=2),
        placement=Placement(slots=slots),
        prediction=prediction,
        node_shape="cpu-node",
        num_domains=len(nodes),
    )


def attempt(
    number: int = 1,
    *,
    intended: float = 0.0,
    launched: float | None = 1.0,
    ended: float | None = None,
    end_seen: float | None = None,
    phase: GangPhase | None = None,
    resumed_step: int | None = None,
    nodes: Sequence[str] = ("node-0", "node-1"),
    fault: Fault | None = None,
    **status: Any,
) -> AttemptRecord:
    """One launch, by default of four ranks on two nodes. ``phase`` None: no status known."""
    seen = None
    if phase is not None:
        seen = GangStatus(phase=phase, observed_at_s=T0, ended_at_s=None if ended is None else T0 + ended, **status)
    return AttemptRecord(
        key=AttemptKey(run=RUN, generation=1, attempt=number),
        plan=plan(*nodes),
        channel_root="/channel",
        intended_at_s=T0 + intended,
        resumed_from=None if resumed_step is None else checkpoint(resumed_step),
        launched_at_s=None if launched is None else T0 + launched,
        end_seen_at_s=None if end_seen is None else T0 + end_seen,
        status=seen,
        fault=fault,
    )


def checkpoint(step: int, torn_reason: str | None = None) -> CheckpointRef:
    """A checkpoint as a scan finds it."""
    return CheckpointRef(
        step=step, path=f"/checkpoints/step-{step:08d}", format="dcp", world_size=4, torn_reason=torn_reason
    )


def preempted(at: float, node: str = "node-1") -> Fault:
    """The platform took a node."""
    return Fault(kind=FaultKind.PREEMPTED, summary=f"{node} was preempted", at_s=T0 + at, node=NodeId(node))


def steps(
    first: int, last: int, *, start: float, step_s: float = 1.0, num_tokens: int = 512, loss: float = 3.0
) -> tuple[StepRecord, ...]:
    """Steps ``first`` to ``last``, one after the other from ``start``."""
    return tuple(
        step(number, start + index * step_s, start + (index + 1) * step_s, num_tokens=num_tokens, loss=loss)
        for index, number in enumerate(range(first, last + 1))
    )


def step(number: int, start: float, end: float, *, num_tokens: int = 512, loss: float = 3.0) -> StepRecord:
    """One step."""
    return StepRecord(step=number, start_s=T0 + start, end_s=T0 + end, loss=loss, num_tokens=num_tokens)


def agent_span(kind: AgentSpanKind, start: float, end: float, *, rank: int = 0) -> AgentSpan:
    """A span of one rank."""
    return AgentSpan(kind=kind, rank=rank, start_s=T0 + start, end_s=T0 + end)


def mark(step: int, at: float) -> CheckpointMark:
    """The trainer's word for a checkpoint."""
    return CheckpointMark(step=step, path=f"/checkpoints/step-{step:08d}", at_s=T0 + at)


def report(
    *,
    seq: int = 1,
    node: str = "node-0",
    at: float = 0.0,
    steps: Sequence[StepRecord] = (),
    spans: Sequence[AgentSpan] = (),
    marks: Sequence[CheckpointMark] = (),
) -> NodeReport:
    """One aggregated record of one node."""
    return NodeReport(
        node=NodeId(node), seq=seq, at_s=T0 + at, steps=tuple(steps), spans=tuple(spans), marks=tuple(marks)
    )
