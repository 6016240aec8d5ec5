"""Gangs for a benchmark: channel directories as agents write them, and an engine whose one call costs little.

Run as a program it plays the agents: every second a report from each node, and at planned times the end of a gang.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_llmsched.agent import wire
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangStatus, NodeStatus
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey

ENGINE = "bench"
ENTRY_POINT = f"[airflow_llmsched.engines]\n{ENGINE} = tests.bench.gangs:BenchEngine\n"
ENDED = "ended.json"
FLUSH_S = 1.0
RANKS_PER_NODE = 8
NODES_PER_GANG = 2


def key_of(index: int) -> AttemptKey:
    """Return the key of one of the gangs."""
    return AttemptKey(run=RunKey(f"ls-bench-{index:05d}"), generation=1, attempt=1)


def handle_of(index: int) -> GangHandle:
    """Return the handle of one of the gangs."""
    key = key_of(index)
    return GangHandle(engine=ENGINE, key=key, native_id=key.name)


def channel_root(root: Path, index: int) -> Path:
    """Return where the agents of one gang write."""
    return root / "channels" / key_of(index).name


def node_names(index: int) -> list[str]:
    """Return the nodes of one gang."""
    return [f"n{index * NODES_PER_GANG + node}" for node in range(NODES_PER_GANG)]


def ended_in(root: Path) -> dict[str, float]:
    """Return when each gang that has ended did so (Unix seconds), by its name."""
    ended: dict[str, float] = json.loads((root / ENDED).read_text())
    return ended


class BenchEngine:
    """An engine's ``poll`` and nothing else: running, but for those that have ended in ``root``.

    ``calls`` counts, over all instances, how many handles each call was about.
    """

    name = ENGINE
    features: frozenset[str] = frozenset()
    calls: list[int] = []  # noqa: RUF012  (the benchmark reads what the poller's own instance counted)

    def __init__(self, *, root: str) -> None:
        self._root = Path(root)
        self._started_s = time.time()
        self._nodes: dict[GangHandle, tuple[NodeStatus, ...]] = {}

    def poll(self, handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        """Return all statuses from one small file."""
        BenchEngine.calls.append(len(handles))
        ended = ended_in(self._root)
        now_s = time.time()
        return {handle: self._status(handle, ended.get(handle.native_id), now_s=now_s) for handle in handles}

    def _status(self, handle: GangHandle, ended_at_s: float | None, *, now_s: float) -> GangStatus:
        phase = GangPhase.RUNNING if ended_at_s is None else GangPhase.SUCCEEDED
        if handle not in self._nodes or ended_at_s is not None:
            names = node_names(int(handle.key.run[-5:]))
            self._nodes[handle] = tuple(NodeStatus(node=NodeId(name), phase=phase) for name in names)
        nodes = self._nodes[handle]
        return GangStatus(
            phase=phase,
            observed_at_s=now_s,
            nodes=nodes,
            started_at_s=self._started_s,
            ended_at_s=ended_at_s,
        )


class Agents:
    """What the agents of all gangs write, and when which gang ends."""

    def __init__(self, root: Path, num_gangs: int) -> None:
        self._root = root
        self._alive = list(range(num_gangs))
        self._seq = 0
        for index in range(num_gangs):
            for folder in ("up", "down"):
                (channel_root(root, index) / folder).mkdir(parents=True, exist_ok=True)
        self._ended: dict[str, float] = {}
        self._write_ended()

    def flush(self) -> None:
        """Append one report per node of every live gang."""
        self._seq += 1
        now_s = time.time()
        for index in self._alive:
            for node, name in enumerate(node_names(index)):
                line = json.dumps(self._report(name, node, now_s), separators=(",", ":")).encode() + b"\n"
                fd = os.open(
                    channel_root(self._root, index) / "up" / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT
                )
                os.write(fd, line)
                os.close(fd)

    def end(self, indices: Sequence[int]) -> None:
        """End gangs well."""
        self._alive = [each for each in self._alive if each not in set(indices)]
        self._ended |= {key_of(each).name: time.time() for each in indices}
        self._write_ended()

    def _report(self, name: str, node: int, now_s: float) -> dict[str, object]:
        ranks = [
            {"rank": node * RANKS_PER_NODE + local, "step": self._seq, "heartbeat_s": now_s - 0.1, "pid": 1000 + local}
            for local in range(RANKS_PER_NODE)
        ]
        step = {"step": self._seq, "start_s": now_s - 1.0, "end_s": now_s, "loss": 2.5, "num_tokens": 524_288}
        steps = [step] if node == 0 else []
        return wire.node_report(node=name, seq=self._seq, at_s=now_s, ranks=ranks, steps=steps, spans=[], marks=[])

    def _write_ended(self) -> None:
        path = self._root / ENDED
        path.with_suffix(".new").write_text(json.dumps(self._ended))
        path.with_suffix(".new").replace(path)


def plan_ends(*, num_gangs: int, num_ends: int, span_s: float, seed: int) -> list[tuple[float, int]]:
    """Return (seconds after the start, gang) of those that end, in order of time."""
    chance = random.Random(seed)
    return sorted((chance.uniform(0.0, span_s), index) for index in chance.sample(range(num_gangs), num_ends))


def play(root: Path, num_gangs: int, plan: Path) -> None:
    """Write reports until the parent closes stdin; once ``plan`` is there, end the gangs it names at their times."""
    agents = Agents(root, num_gangs)
    agents.flush()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    os.set_blocking(sys.stdin.fileno(), False)
    next_s = time.time() + FLUSH_S
    ends: list[list[float]] | None = None
    while sys.stdin.buffer.raw.read(1) is None:  # type: ignore[attr-defined]  # b"" once the parent is gone
        if ends is None and plan.exists():
            ends = json.loads(plan.read_text())
        now_s = time.time()
        due = [int(index) for at_s, index in ends or [] if at_s <= now_s]
        if due:
            agents.end(due)
            ends = [each for each in ends or [] if each[0] > now_s]
        if now_s >= next_s:
            agents.flush()
            next_s = max(next_s + FLUSH_S, time.time())
        time.sleep(0.02)


if __name__ == "__main__":
    play(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
