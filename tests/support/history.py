"""Builds the records that a run leaves behind: attempts, node reports, steps. Times are seconds after ``T0``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.checkpoint import CheckpointRef, Sound, VerifyDepth
from airflow_llmsched.domain.gang import GangPhase, GangStatus
from airflow_llmsched.domain.health import Fault, FaultKind
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.ledger import Bucket, Span
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.plan import Plan, Prediction
from airflow_llmsched.domain.progress import AgentSpan, AgentSpanKind, CheckpointMark, NodeReport, StepRecord
from airflow_llmsched.domain.run_report import EvaluationResult, PriceList, RunNames, RunOutcome
from airflow_llmsched.reports.build import ModelSpeed

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


def preempted_run() -> dict[str, Any]:
    """What a short run leaves behind: four ranks, a preemption, two lost steps, a stall, two ranks to the end.

    The keys are arguments of ``reports.build.build_report``.
    """
    first, second = _first_gang(), _second_gang()
    return {
        "names": RunNames(
            run_key=RUN, generation=1, workload="tiny-gpt", dag_id="pretrain_local", run_id="manual__2026-09-21"
        ),
        "outcome": RunOutcome.SUCCEEDED,
        "reason": "",
        "run_start_s": T0,
        "run_end_s": T0 + 140,
        "created_at_s": T0 + 141,
        "spans": [
            Span(bucket=bucket, start_s=T0 + start, end_s=T0 + end, label=label)
            for bucket, start, end, label in (
                (Bucket.QUEUE, 0, 3, "scheduler"),
                (Bucket.STAGE, 3, 9, "stage"),
                (Bucket.QUEUE, 9, 11, "scheduler"),
                (Bucket.PROVISION, 11, 13, "plan"),
                (Bucket.HANDOFF, 54, 56, "trigger to worker"),
                (Bucket.RECOVER, 56, 58, "re-plan"),
                (Bucket.QUEUE, 123, 125, "scheduler"),
                (Bucket.EVALUATE, 125, 134, "evaluate"),
                (Bucket.QUEUE, 134, 136, "scheduler"),
                (Bucket.PROVISION, 136, 140, "release"),
            )
        ],
        "attempts": [first[0], second[0]],
        "reports": {1: first[1], 2: second[1]},
        "checkpoints": [
            (checkpoint(80), Sound(depth=VerifyDepth.CONTENT, num_bytes=24_500_000, digest="ab" * 32)),
            (checkpoint(60), None),
            (checkpoint(90, torn_reason="llmsched-seal.json is missing"), None),
        ],
        "evaluation": EvaluationResult(
            checkpoint_step=80, loss=2.31, passed=True, max_loss=2.8, num_tokens=262_144, checkpoint_path="/c"
        ),
        "prices": PriceList(usd_per_hour={"cpu-node": 0.68}, source="AWS c7i.4xlarge on-demand, us-east-1, 2026-08"),
        "speed": ModelSpeed(flop_per_token=((1, 1.2e7),), peak_flop_per_s={"cpu-node": 5e10}),
    }


def _first_gang() -> tuple[AttemptRecord, list[NodeReport]]:
    record = attempt(
        1, intended=13, launched=14, ended=53.2, end_seen=54, phase=GangPhase.PREEMPTED, fault=preempted(49)
    )
    trained = [
        *falling(1, 20, start=21, step_s=0.6),
        *falling(21, 40, start=34, step_s=0.6),
        *falling(41, 42, start=47, step_s=0.6),
    ]
    spans = [
        agent_span(AgentSpanKind.INIT, 14.4, 21),
        agent_span(AgentSpanKind.SAVE, 33, 34),
        agent_span(AgentSpanKind.SAVE, 46, 47),
    ]
    return record, [report(steps=trained, spans=spans, marks=[mark(20, 34), mark(40, 47)])]


def _second_gang() -> tuple[AttemptRecord, list[NodeReport]]:
    record = attempt(
        2,
        intended=57,
        launched=58,
        ended=122,
        end_seen=123,
        phase=GangPhase.SUCCEEDED,
        resumed_step=40,
        nodes=["node-0"],
    )
    trained = [
        *falling(41, 55, start=64, step_s=1.1),
        step(56, 80.5, 88.6, loss=falling_loss(56)),
        *falling(57, 60, start=88.6, step_s=1.1),
        *falling(61, 80, start=94, step_s=1.1),
    ]
    spans = [
        agent_span(AgentSpanKind.INIT, 58.4, 64),
        agent_span(AgentSpanKind.SAVE, 93, 94),
        agent_span(AgentSpanKind.SAVE, 116, 121),
    ]
    return record, [report(steps=trained, spans=spans, marks=[mark(60, 94), mark(80, 121)])]


def falling(first: int, last: int, *, start: float, step_s: float) -> list[StepRecord]:
    """Steps whose loss falls as training goes on."""
    return [replace(each, loss=falling_loss(each.step)) for each in steps(first, last, start=start, step_s=step_s)]


def falling_loss(step: int) -> float:
    """A loss curve with a little noise, the same every time."""
    return 1.9 + 3.6 * math.exp(-step / 24) + 0.05 * math.sin(step * 1.7)
