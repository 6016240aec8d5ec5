"""An engine and channels in memory for the shared poller: each can be made to hang, to fail, or to end gangs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.domain.gang import GangHandle, GangPhase, GangStatus
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.progress import ChannelCursor, NodeReport


def handle(index: int) -> GangHandle:
    key = AttemptKey(run=RunKey(f"ls-poll-{index}"), generation=1, attempt=1)
    return GangHandle(engine="house", key=key, native_id=key.name)


def state(index: int, **changes: Any) -> WatchState:
    usual = {"channel_root": f"/channel/{index}", "launched_at_s": time.time(), "poll_interval_s": 0.05}
    return WatchState(handle=handle(index), **{**usual, **changes})


class HouseEngine:
    """Every gang runs until it is in ``ended``. ``fails(handles)`` may raise; while ``open`` is clear, calls hang."""

    name = "house"
    features: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.ended: set[GangHandle] = set()
        self.calls: list[list[GangHandle]] = []
        self.threads: set[int] = set()
        self.open = threading.Event()
        self.open.set()
        self.fails: Callable[[Sequence[GangHandle]], None] = lambda _: None

    def poll(self, handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        self.calls.append(list(handles))
        self.threads.add(threading.get_ident())
        assert self.open.wait(60)
        self.fails(handles)
        return {each: self._status(each) for each in handles}

    def _status(self, each: GangHandle) -> GangStatus:
        now_s = time.time()
        if each in self.ended:
            return GangStatus(phase=GangPhase.SUCCEEDED, observed_at_s=now_s, started_at_s=now_s, ended_at_s=now_s)
        return GangStatus(phase=GangPhase.RUNNING, observed_at_s=now_s, started_at_s=now_s)


class HouseChannel:
    """A channel nobody writes to. While ``open`` is clear, looking at it hangs."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.num_looks = 0
        self.renewed_until_s: list[float] = []

    def read(self, cursor: ChannelCursor) -> tuple[Sequence[NodeReport], ChannelCursor]:
        self.num_looks += 1
        assert self.open.wait(60)
        return [], cursor

    latest = read

    def tend(self, cursor: ChannelCursor, *, at_s: float) -> None:
        """Nothing to keep up: agents of this house need no grants."""

    def renew(self, *, until_s: float) -> None:
        self.renewed_until_s.append(until_s)

    extend = renew


class House:
    """All of it. ``channels`` are made as they are asked for."""

    def __init__(self) -> None:
        self.engine = HouseEngine()
        self.channels: dict[str, HouseChannel] = {}

    def channel(self, index: int) -> HouseChannel:
        return self.open_channel(f"/channel/{index}")

    def open_channel(self, root: str) -> HouseChannel:
        return self.channels.setdefault(root, HouseChannel())


async def until(predicate: Callable[[], bool], *, limit_s: float = 20.0) -> None:
    """Wait in the loop; the limit is there to fail."""
    give_up_s = time.monotonic() + limit_s
    while not predicate():
        assert time.monotonic() < give_up_s, f"not within {limit_s} s"
        await asyncio.sleep(0.005)


def run(scenario: Awaitable[None]) -> None:
    """Run a scenario in a loop of its own, with a limit."""

    async def limited() -> None:
        await asyncio.wait_for(scenario, timeout=60)

    asyncio.run(limited())
