"""Reads the spools of one node's ranks and folds them into one report per flush interval."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.spool import LineReader

MAX_WAITING = 20_000
"""Records of one kind that wait for a report. Beyond that the oldest are given up, and the next report says so."""

_SPOOL_NAME = re.compile(r"rank-(\d+)\.jsonl")


@dataclass(slots=True)
class RankView:
    """What a rank's spool has said so far. Times are Unix seconds; ``end`` is its end record.

    ``wrapper`` is known once the rank stands ready. ``speaks`` is whether the rank's program itself has said anything,
    through the agent's functions.
    """

    rank: int
    pid: int = 0
    wrapper: str = ""
    started_at_s: float | None = None
    step: int | None = None
    heartbeat_s: float = 0.0
    speaks: bool = False
    end: dict[str, Any] | None = None


_NUMBER = (int, float)
_MAYBE_INT = (int, type(None))
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "armed": {"wrapper": str, "at_s": _NUMBER},
    "start": {"pid": int, "wrapper": str, "at_s": _NUMBER},
    "end": {"rank": int, "exit_code": _MAYBE_INT, "signal": _MAYBE_INT, "at_s": _NUMBER},
    "step": {"step": int, "start_s": _NUMBER, "end_s": _NUMBER, "loss": _NUMBER, "num_tokens": int},
    "span": {"span": str, "start_s": _NUMBER, "end_s": _NUMBER, "step": _MAYBE_INT},
    "mark": {"step": int, "path": str, "at_s": _NUMBER},
    "beat": {"at_s": _NUMBER},
}
_IDENTITY = re.compile(r"\d+:\d+:.*")


def _is_ours(record: dict[str, Any]) -> bool:
    """Whether a record is whole. Passed on, one odd value would cost control the whole report of the node."""
    fields = _FIELDS.get(record["kind"]) if isinstance(record.get("kind"), str) else None
    if fields is None or not all(isinstance(record.get(name, fields), types) for name, types in fields.items()):
        return False
    if record["kind"] in ("armed", "start"):
        return _IDENTITY.fullmatch(record["wrapper"]) is not None
    times_s = [record[name] for name in fields if name.endswith("_s")]
    return all(map(math.isfinite, times_s)) and record.get("span", "init") in wire.SPANS


class Collector:
    """Incremental: each read takes in what is new; each report hands out what no report has held yet.

    Reports are about trainers, the first ``num_trainers`` members; of others only start and end are of interest.
    """

    def __init__(self, spool: Path, *, node: str, num_trainers: int) -> None:
        self._spool = spool
        self._node = node
        self._num_trainers = num_trainers
        self._readers: dict[int, LineReader] = {}
        self._seq = 0
        self._steps: list[dict[str, Any]] = []
        self._spans: list[dict[str, Any]] = []
        self._marks: list[dict[str, Any]] = []
        self._num_deferred = 0
        self._num_dropped = 0
        self.ranks: dict[int, RankView] = {}

    def read(self) -> None:
        """Take in what the ranks have written since. Raises ``OSError`` when the spool cannot be read."""
        for path in sorted(self._spool.iterdir()):
            match = _SPOOL_NAME.fullmatch(path.name)
            if match is None:
                continue
            rank = int(match[1])
            if rank not in self._readers:
                self._readers[rank] = LineReader(str(path))
                self.ranks[rank] = RankView(rank=rank)
            for record in self._readers[rank].read():
                self._take(self.ranks[rank], record)

    def defer(self) -> None:
        """Let an interval pass without a report: the next one covers it too, as far as memory allows."""
        self._num_deferred += 1
        for waiting in (self._steps, self._spans, self._marks):
            too_many = max(0, len(waiting) - MAX_WAITING)
            del waiting[:too_many]
            self._num_dropped += too_many

    def report(self, *, now_s: float) -> dict[str, Any]:
        """Return the next report and forget what it holds."""
        self._seq += 1
        report = wire.node_report(
            node=self._node,
            seq=self._seq,
            at_s=now_s,
            ranks=[
                wire.rank_progress(
                    rank=view.rank, step=view.step, heartbeat_s=view.heartbeat_s, pid=view.pid, speaks=view.speaks
                )
                for _, view in sorted(self.ranks.items())
                if view.rank < self._num_trainers and (view.started_at_s is not None or view.end is not None)
            ],
            steps=self._steps,
            spans=self._spans,
            marks=self._marks,
            num_deferred=self._num_deferred,
            num_dropped=self._num_dropped,
        )
        self._steps, self._spans, self._marks = [], [], []
        self._num_deferred = self._num_dropped = 0
        return report

    def _take(self, view: RankView, record: dict[str, Any]) -> None:
        if not _is_ours(record):
            return  # a line of some other program; what we write ourselves is whole or no JSON at all
        if view.rank >= self._num_trainers and record["kind"] in wire.SPOKEN:
            return
        self._fold(view, record)
        view.speaks = view.speaks or record["kind"] in wire.SPOKEN

    def _fold(self, view: RankView, record: dict[str, Any]) -> None:
        kind = record["kind"]
        if kind == "armed":
            view.wrapper = record["wrapper"]
        elif kind == "start":
            view.pid, view.wrapper, view.started_at_s = record["pid"], record["wrapper"], record["at_s"]
            view.heartbeat_s = record["at_s"]
        elif kind == "end":
            view.end = record
        elif kind == "step":
            view.step = record["step"]
            view.heartbeat_s = record["end_s"]
            if view.rank == 0:  # the gang's steps are told once
                self._steps.append({key: value for key, value in record.items() if key != "kind"})
        elif kind == "span":
            view.heartbeat_s = record["end_s"]
            self._spans.append(
                {
                    "kind": record["span"],
                    "rank": view.rank,
                    "start_s": record["start_s"],
                    "end_s": record["end_s"],
                    "step": record["step"],
                }
            )
        elif kind == "mark":
            view.heartbeat_s = record["at_s"]
            self._marks.append({"step": record["step"], "path": record["path"], "at_s": record["at_s"]})
        elif kind == "beat":
            view.heartbeat_s = record["at_s"]
