"""Names and record forms that ranks, node supervisors and engines share. Plain dicts and strings, no I/O.

Keys of a node report are those of ``domain.progress.NodeReport``, which control reads it as.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

VERSION = 1

RUN_KEY = "LLMSCHED_RUN_KEY"
GENERATION = "LLMSCHED_GENERATION"
ATTEMPT = "LLMSCHED_ATTEMPT"
ATTEMPT_NAME = "LLMSCHED_ATTEMPT_NAME"
NODE = "LLMSCHED_NODE"
SPOOL = "LLMSCHED_SPOOL"
LAYOUT = "LLMSCHED_LAYOUT"
RESUME_FROM = "LLMSCHED_RESUME_FROM"
INIT_FROM = "LLMSCHED_INIT_FROM"
CHECKPOINT_ROOT = "LLMSCHED_CHECKPOINT_ROOT"
RANK_STARTED_S = "LLMSCHED_RANK_STARTED_S"
"""Unix seconds at which the rank wrapper started the rank's command; the INIT span begins there."""
SUPERVISOR = "LLMSCHED_SUPERVISOR"
"""Identity of the node's supervisor, so that a rank wrapper notices its death."""
GRACE_S = "LLMSCHED_GRACE_S"

ROLE = "LLMSCHED_ROLE"
"""What the process does in its gang, by the words of ``domain.roles.RoleKind``."""
TRAINER = "trainer"
MEMBER = "LLMSCHED_MEMBER"
"""Number of a helper in its gang, from the world size on. A trainer's is its rank, and this is unset."""
FIRST_RANK = "LLMSCHED_FIRST_RANK"
"""First rank of the node, for the wrapper: set where the launcher does not count local ranks from it."""
OF_NODE = "LLMSCHED_OF_NODE"
"""Environment entries (JSON) that each rank gets from its own node, whatever a launcher passes on from another."""

ADDRESSES = "LLMSCHED_ADDRESSES"
"""Where helpers are reached, as JSON: by role, ``host:port`` of each in the order of their indexes."""

CHANNEL = "LLMSCHED_CHANNEL"
"""Where the attempt's agents report."""
ORIGIN = "LLMSCHED_ORIGIN"
"""Whose the gang is, as JSON (``domain.gang.RunOrigin``): it holds when every file of the attempt is gone."""

METADATA = "LLMSCHED_METADATA"
"""Whose metadata service tells a node that it will be taken: ``aws``, ``azure`` or ``gcp``. Set where agents start."""
METADATA_ADDRESS = "LLMSCHED_METADATA_ADDRESS"
"""Where that service is, if not at the address that all clouds use."""

ORDERS = "orders.json"
GATE = "gate.json"
"""File in a node's spool that says when ranks that stand ready start their commands (``begin_s``, monotonic)."""
LOGS = "logs"
SPOOL_DIR = "spool"
DAEMONS = "daemons"
"""Folder of the first node in which mpirun's daemons are asked for: ``<address of the node>.json``."""

_ATTEMPT_FOLDER = re.compile(r"g([0-9]{1,9})-a([0-9]{1,9})")


def attempt_folder(*, generation: int, attempt: int) -> str:
    """Return the name of the folder, below a run's checkpoint root, that one attempt saves in: ``g0001-a0002``."""
    return f"g{generation:04d}-a{attempt:04d}"


def attempt_of_folder(name: str) -> tuple[int, int] | None:
    """Return generation and attempt whose folder ``name`` is; None when it is no attempt's. Later is larger."""
    found = _ATTEMPT_FOLDER.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def member_of(environ: Mapping[str, str]) -> int:
    """Return the number of a process in its gang: a trainer's rank, or what a helper was given."""
    return int(environ.get(MEMBER) or environ.get("RANK") or "0")


def rank_spool_name(rank: int) -> str:
    """Return the file name of one rank's spool."""
    return f"rank-{rank}.jsonl"


def rank_log_name(rank: int) -> str:
    """Return the file name of one rank's log."""
    return f"rank-{rank}.log"


def armed_record(*, rank: int, wrapper: str, at_s: float) -> dict[str, Any]:
    """A rank stands ready to start its command. ``wrapper`` is the identity of the process that will."""
    return {"kind": "armed", "rank": rank, "wrapper": wrapper, "at_s": at_s}


def start_record(
    *, rank: int, local_rank: int, pid: int, start_ticks: int, wrapper: str, at_s: float
) -> dict[str, Any]:
    """A rank's command runs. ``wrapper`` is the identity of the process that will record its end."""
    return {
        "kind": "start",
        "rank": rank,
        "local_rank": local_rank,
        "pid": pid,
        "start_ticks": start_ticks,
        "wrapper": wrapper,
        "at_s": at_s,
    }


def end_record(
    *,
    rank: int,
    exit_code: int | None,
    signal: int | None,
    at_s: float,
    start_error: str | None = None,
    who: str | None = None,
) -> dict[str, Any]:
    """A rank's command has ended, or (``start_error``) could not be started. ``who`` it is, where that is a helper."""
    return {
        "kind": "end",
        "rank": rank,
        "exit_code": exit_code,
        "signal": signal,
        "at_s": at_s,
        "start_error": start_error,
        **({} if who is None else {"who": who}),
    }


def step_record(*, step: int, start_s: float, end_s: float, loss: float, num_tokens: int) -> dict[str, Any]:
    """One optimizer step."""
    return {"kind": "step", "step": step, "start_s": start_s, "end_s": end_s, "loss": loss, "num_tokens": num_tokens}


def span_record(*, span: str, start_s: float, end_s: float, step: int | None = None) -> dict[str, Any]:
    """A measured stretch of the rank's time: init, save or evaluate."""
    return {"kind": "span", "span": span, "start_s": start_s, "end_s": end_s, "step": step}


def mark_record(*, step: int, path: str, at_s: float) -> dict[str, Any]:
    """The trainer's word that a checkpoint is durable."""
    return {"kind": "mark", "step": step, "path": path, "at_s": at_s}


def beat_record(*, at_s: float) -> dict[str, Any]:
    """A sign of life."""
    return {"kind": "beat", "at_s": at_s}


SPANS = frozenset({"init", "save", "evaluate"})
"""Kinds of measured stretches: those of ``domain.progress.AgentSpanKind``."""

SPOKEN = frozenset({"step", "span", "mark", "beat"})
"""Kinds of records that a rank's program writes itself; the rank's wrapper writes the others."""


def rank_progress(*, rank: int, step: int | None, heartbeat_s: float, pid: int, speaks: bool) -> dict[str, Any]:
    """One rank's latest, within a node report."""
    return {"rank": rank, "step": step, "heartbeat_s": heartbeat_s, "pid": pid, "speaks": speaks}


def node_report(
    *,
    node: str,
    seq: int,
    at_s: float,
    ranks: Iterable[Mapping[str, Any]],
    steps: Iterable[Mapping[str, Any]],
    spans: Iterable[Mapping[str, Any]],
    marks: Iterable[Mapping[str, Any]],
    num_deferred: int = 0,
    num_dropped: int = 0,
) -> dict[str, Any]:
    """One aggregated record of one node and flush interval, and of ``num_deferred`` intervals before it."""
    return {
        "node": node,
        "seq": seq,
        "at_s": at_s,
        "ranks": list(ranks),
        "steps": list(steps),
        "spans": list(spans),
        "marks": list(marks),
        "num_deferred": num_deferred,
        "num_dropped": num_dropped,
    }
