"""What agents tell control, and what control tells agents. The wire form is the agent's own (``agent.wire``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_llmsched.domain.identity import NodeId


class AgentSpanKind(StrEnum):
    """Stretches of a rank's time that only the rank can measure."""

    INIT = "init"
    SAVE = "save"
    EVALUATE = "evaluate"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step of the gang, as its rank 0 measured it. ``loss`` is the mean over the global batch."""

    step: int
    start_s: float
    end_s: float
    loss: float
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpan:
    """A measured stretch [start_s, end_s) of one rank."""

    kind: AgentSpanKind
    rank: int
    start_s: float
    end_s: float
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMark:
    """The trainer's word that a checkpoint is durable. Control believes the storage, not the mark."""

    step: int
    path: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """One rank's latest: ``step`` is the last it finished, ``heartbeat_s`` when it last gave any sign of progress.

    ``speaks`` is whether its program has used the agent: of one that never does, silence says nothing.
    """

    rank: int
    step: int | None
    heartbeat_s: float
    pid: int
    speaks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One aggregated record of one node and flush interval. ``seq`` counts from 1 within an attempt.

    While a node cannot report it gathers: this record then covers ``num_deferred`` intervals before its own as well,
    less ``num_dropped`` steps, spans and marks, the oldest, which were given up for want of memory.
    """

    node: NodeId
    seq: int
    at_s: float
    ranks: tuple[RankProgress, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    spans: tuple[AgentSpan, ...] = ()
    marks: tuple[CheckpointMark, ...] = ()
    num_deferred: int = 0
    num_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressPoint:
    """How far a run had come at ``at_s`` (Unix seconds), and what it had cost by then."""

    at_s: float
    step: int
    spent_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCursor:
    """How far a reader has read, by node: an opaque position of the channel adapter. JSON-safe."""

    positions: dict[str, int]
