"""The functions a training script calls. They cost microseconds, and trouble with files never reaches the training.

Outside a gang (no ``LLMSCHED_SPOOL``) they do nothing. Requests reach the ranks of one gang at different moments: a
trainer whose ranks must act together reduces them (any rank asked means all do) before it acts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.say import say
from airflow_llmsched.agent.spool import LineWriter


class RankLayout(NamedTuple):
    """Who this rank is. ``degrees`` are those of the parallel layout; a lone process is rank 0 of 1.

    ``resume_from`` is a checkpoint of this run, to go on from at its step. ``init_from`` is one of another run, whose
    weights to start with at step 0. At most one of them is set. ``role`` is what the process does in its gang: rank and
    world size are those within its role. ``addresses`` says by role where the gang's helpers are reached
    (``host:port``, in the order of their ranks).
    """

    rank: int
    local_rank: int
    world_size: int
    node: str
    degrees: Mapping[str, int]
    attempt: int
    resume_from: str | None
    checkpoint_root: str | None
    init_from: str | None
    role: str = wire.TRAINER
    addresses: Mapping[str, Sequence[str]] = MappingProxyType({})


class _Rank:
    """The process's state towards its gang."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        spool = environ.get(wire.SPOOL)
        rank = wire.member_of(environ)
        self.writer = LineWriter(str(Path(spool) / wire.rank_spool_name(rank))) if spool else None
        self.orders_path = str(Path(spool) / wire.ORDERS) if spool else None
        self.started_s = float(environ.get(wire.RANK_STARTED_S) or time.time())
        self.last_end_s = time.time()
        self.is_ready = False
        self.num_troubles = 0
        self.seen_checkpoint_seq = 0
        self.served_checkpoint_seq = 0
        self.stop = False
        self.checkpoint_interval_s: float | None = None
        self._orders_stamp: tuple[int, int, int] | None = None

    def append(self, record: dict[str, Any]) -> None:
        if self.writer is None:
            return
        try:
            self.writer.append(record)
        except (OSError, ValueError) as error:
            self.trouble(f"cannot report to the node's supervisor: {error}")

    def trouble(self, text: str) -> None:
        self.num_troubles += 1
        if self.num_troubles == 1:
            say(f"llmsched: {text}; training goes on, further trouble is only counted")

    def span(self, kind: str, *, start_s: float, step: int | None) -> None:
        end_s = time.time()
        self.append(wire.span_record(span=kind, start_s=start_s, end_s=end_s, step=step))
        self.last_end_s = end_s

    def read_orders(self) -> None:
        """Take in the orders if they changed. One stat when they did not."""
        if self.orders_path is None:
            return
        try:
            stat = os.stat(self.orders_path)  # noqa: PTH116  (cheap on the hot path)
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if stamp == self._orders_stamp:
                return
            with open(self.orders_path, "rb") as file:  # noqa: PTH123  (at every step: half the time)
                orders = json.load(file)
            self.seen_checkpoint_seq = int(orders["checkpoint_seq"])
            self.stop = orders["stop"] is not None
            interval_s = orders.get("checkpoint_interval_s")
            self.checkpoint_interval_s = None if interval_s is None else float(interval_s)
            self._orders_stamp = stamp
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            self.trouble(f"cannot read orders: {error}")


_state: _Rank | None = None


def _rank() -> _Rank:
    global _state  # noqa: PLW0603  (one process is one rank)
    if _state is None:
        _state = _Rank(os.environ)
    return _state


def layout() -> RankLayout:
    """Return who this rank is, from its environment."""
    environ = os.environ
    return RankLayout(
        rank=int(environ.get("RANK", "0")),
        local_rank=int(environ.get("LOCAL_RANK", "0")),
        world_size=int(environ.get("WORLD_SIZE", "1")),
        node=environ.get(wire.NODE, ""),
        degrees=json.loads(environ.get(wire.LAYOUT) or "{}"),
        attempt=int(environ.get(wire.ATTEMPT, "0")),
        resume_from=environ.get(wire.RESUME_FROM) or None,
        checkpoint_root=environ.get(wire.CHECKPOINT_ROOT) or None,
        init_from=environ.get(wire.INIT_FROM) or None,
        role=environ.get(wire.ROLE) or wire.TRAINER,
        addresses=json.loads(environ.get(wire.ADDRESSES) or "{}"),
    )


def ready() -> None:
    """Say, once, that start-up is over: imports, rendezvous and loading are done, the next thing is a step."""
    rank = _rank()
    if rank.is_ready:
        return
    rank.is_ready = True
    rank.span("init", start_s=rank.started_s, step=None)


def report(*, step: int, loss: float, tokens: int) -> None:
    """Say that an optimizer step has ended. It began when the step, span or ``ready`` before it ended.

    Args:
        step: Number of the step, counted over the whole run.
        loss: Mean over the global batch (rank 0's is kept).
        tokens: Tokens of the global batch.
    """
    rank = _rank()
    end_s = time.time()
    rank.append(
        wire.step_record(step=int(step), start_s=rank.last_end_s, end_s=end_s, loss=float(loss), num_tokens=int(tokens))
    )
    rank.last_end_s = end_s


@contextmanager
def saving(*, step: int) -> Iterator[None]:
    """Measure the time for which training stands still to save."""
    yield from _measured("save", step)


@contextmanager
def evaluating() -> Iterator[None]:
    """Measure the time for which training stands still to evaluate."""
    yield from _measured("evaluate", None)


def checkpoint_saved(*, step: int, path: str) -> None:
    """Say that the checkpoint of ``step`` is durable at ``path``. Fulfils the requests that were seen so far."""
    rank = _rank()
    rank.append(wire.mark_record(step=int(step), path=str(path), at_s=time.time()))
    rank.served_checkpoint_seq = rank.seen_checkpoint_seq


def prune_checkpoints(*, keep_last: int, step: int) -> None:
    """Keep the newest ``keep_last`` sealed checkpoints of the run, whichever attempt saved them, and delete older ones.

    Call it once ``step`` is saved and sealed. Rank 0 acts. What this attempt resumed from and what is being evaluated
    stays, and so does what has no seal. See :mod:`airflow_llmsched.agent.retention`.
    """
    told = layout()
    if told.checkpoint_root is None or told.rank != 0 or told.role != wire.TRAINER:
        return
    from airflow_llmsched.agent.retention import prune  # noqa: PLC0415  (few ranks ever need it)

    try:
        prune(
            told.checkpoint_root,
            attempt=(int(os.environ.get(wire.GENERATION) or 1), max(1, told.attempt)),
            keep_last=keep_last,
            saved_step=int(step),
            resumed_from=told.resume_from,
            now_s=time.time(),
        )
    except OSError as error:
        _rank().trouble(f"cannot delete old checkpoints: {error}")


def heartbeat() -> None:
    """Say that the rank is getting on, within a step that takes long."""
    _rank().append(wire.beat_record(at_s=time.time()))


def stop_requested() -> bool:
    """Whether control wants the ranks to save and exit 0 at the next step boundary."""
    rank = _rank()
    rank.read_orders()
    return rank.stop


def checkpoint_requested() -> bool:
    """Whether a checkpoint is wanted now: by control's order, or because a node of the gang is about to be taken."""
    rank = _rank()
    rank.read_orders()
    return rank.seen_checkpoint_seq > rank.served_checkpoint_seq


def checkpoint_interval_s() -> float | None:
    """Return the interval at which control now wants checkpoints, None while the trainer's own setting stands."""
    rank = _rank()
    rank.read_orders()
    return rank.checkpoint_interval_s


def _measured(kind: str, step: int | None) -> Iterator[None]:
    rank = _rank()
    start_s = time.time()
    rank.append(wire.beat_record(at_s=start_s))
    try:
        yield
    finally:
        rank.span(kind, start_s=start_s, step=step)
