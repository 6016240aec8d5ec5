"""The one poller of a process and connection: it looks at the gangs of all triggers by one call of their engine.

Nothing here blocks the event loop. The engine is asked, and channels are read, on threads of this connection's own,
each call with a time limit: a hung back end delays neither the loop nor another connection, and a hung channel delays
no other gang.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.poller import KeepWatching, Observation, WatchState, observe
from airflow_llmsched.control.watching import Told, Unseen, ask
from airflow_llmsched.domain.gang import GangHandle, GangStatus
from airflow_llmsched.errors import TransientError
from airflow_llmsched.ports import Clock, Engine, RunChannel
from airflow_llmsched.provider.channels import open_channel
from airflow_llmsched.provider.handover import handed_over
from airflow_llmsched.provider.looks import MAX_READERS, STALLED_S, Look, Readers
from airflow_llmsched.provider.run_engine import open_run_engine
from airflow_llmsched.provider.threads import DaemonThreads

log = logging.getLogger(__name__)

CALL_LIMIT_S = 30.0
"""How long one call of the engine, or one look at a channel, may take before it counts as failed."""

MAX_HUNG_CALLS = 2
"""While this many calls of an engine hang, it is not called again: each holds a thread that cannot be ended."""

GATHER_S = 0.2
"""How long a newcomer waits for others: a triggerer that starts gets its triggers within a second or so."""

MAX_GAP_S = 1.0
"""Calls for newcomers are at least this far apart, or a poll interval where that is less."""

Answers = list[tuple[Look, Told]]

_MIN_GAP_S = 0.02
_CHUNK = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An engine by name and options: watches with equal ones share a poller."""

    engine: str
    options: str

    @classmethod
    def of(cls, engine: str, options: Mapping[str, Any]) -> Connection:
        """Return the connection with these options, plain JSON, whatever their order."""
        return cls(engine=engine, options=json.dumps(dict(options), sort_keys=True))

    def open(self) -> Engine:
        """Return its engine. May block; raises ``SpecError``."""
        return open_run_engine(self.engine, json.loads(self.options))


@dataclass(eq=False, slots=True, kw_only=True)
class _Watcher:
    """One subscribed watch. ``look`` is the one that a thread has, or is to have; ``due_s`` is the loop's time."""

    state: WatchState
    channel: RunChannel | None
    ending: asyncio.Future[dict[str, Any]]
    due_s: float
    look: Look | None = None

    @property
    def handle(self) -> GangHandle | None:
        """What to ask the engine for, if anything."""
        return None if self.channel is None else self.state.handle

    @property
    def is_looking(self) -> bool:
        """Whether the result of a look is awaited."""
        return self.look is not None and not self.look.dropped


class SharedPoller:
    """Watches gangs of one connection until each has something to hand over. Lives in one event loop.

    Args:
        open_engine: returns the engine; called on a thread before the first look.
        on_idle: called when the last watch has left. The poller is of no use after that.
        call_limit_s: see ``CALL_LIMIT_S``.
        open_channel: returns the channel below a root; must not block.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        *,
        name: str,
        on_idle: Callable[[], None] = lambda: None,
        call_limit_s: float = CALL_LIMIT_S,
        open_channel: Callable[[str], RunChannel] = open_channel,
    ) -> None:
        self._open_engine = open_engine
        self._name = name
        self._on_idle = on_idle
        self._call_limit_s = call_limit_s
        self._open_channel = open_channel
        self._clock: Clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._threads = DaemonThreads(MAX_HUNG_CALLS + MAX_READERS, name=f"llmsched-{name}")
        self._readers = Readers(self._threads, self._deliver, self._clock)
        self._watchers: set[_Watcher] = set()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._engine: Engine | None = None
        self._call: asyncio.Task[None] | None = None
        self._called_s = float("-inf")
        self._num_calls = 0
        self._closed = False

    async def watch(self, state: WatchState) -> dict[str, Any]:
        """Return the hand-over's payload once there is something to hand over. Raises what broke this watch."""
        watcher = _Watcher(
            state=state,
            channel=self._open_channel(state.channel_root) if state.channel_root else None,
            ending=self._loop.create_future(),
            due_s=self._loop.time() + min(GATHER_S, state.poll_interval_s),
        )
        self._watchers.add(watcher)
        self._woken.set()
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._run(), name=f"llmsched poller of {self._name}")
        try:
            return await watcher.ending
        finally:
            self._leave(watcher)

    def _leave(self, watcher: _Watcher) -> None:
        self._watchers.discard(watcher)
        if watcher.look is not None:
            self._readers.give_up(watcher.look)
        if not self._watchers:
            for task in (self._task, self._call):
                if task is not None:
                    task.cancel()
            self._task = None
            self._close_if_idle()

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    def _close_if_idle(self) -> None:
        """Close once nobody watches and no call is under way: who comes before that finds what hangs still counted."""
        if not self._closed and not self._watchers and self._num_calls == 0 and self._readers.idle:
            self._closed = True
            self.close()
            self._on_idle()

    async def _run(self) -> None:
        try:
            while True:
                await self._until_something_is_to_do()
                await self._give_up_late_looks()
                self._readers.help()
                await self._look_at_those_due()
        except Exception as error:  # noqa: BLE001  (every trigger logs it and hands it over)
            self._break(error)

    def _break(self, error: Exception) -> None:
        for watcher in self._watchers:
            if not watcher.ending.done():
                watcher.ending.set_exception(error)

    async def _until_something_is_to_do(self) -> None:
        while True:
            self._woken.clear()
            call_s = float("inf") if self._call is not None else self._called_s + self._gap_s
            next_s = min((self._next_s(each, call_s) for each in self._watchers), default=float("inf"))
            if self._readers.backlog:
                next_s = min(next_s, self._loop.time() + STALLED_S)
            if next_s <= self._loop.time():
                return
            try:
                async with asyncio.timeout_at(next_s):
                    await self._woken.wait()
            except TimeoutError:
                return

    def _next_s(self, watcher: _Watcher, call_s: float) -> float:
        """Return when there is something to do about a watch (loop time). No call may be made before ``call_s``."""
        look = watcher.look
        if watcher.ending.done():
            return float("inf")
        if look is not None and not look.dropped:
            return float("inf") if look.queued_s is None else look.queued_s + self._call_limit_s
        return watcher.due_s if watcher.handle is None else max(watcher.due_s, call_s)

    @property
    def _pace_s(self) -> float:
        return min((each.state.poll_interval_s for each in self._watchers), default=MAX_GAP_S)

    @property
    def _gap_s(self) -> float:
        return max(_MIN_GAP_S, min(MAX_GAP_S, self._pace_s))

    async def _look_at_those_due(self) -> None:
        """Look at all that are due. A gang due before long is taken along, so that all fall into step."""
        now_s = self._loop.time()
        ready = [each for each in self._watchers if not each.is_looking and not each.ending.done()]
        self._queue([self._begin(each, now_s) for each in ready if each.handle is None and each.due_s <= now_s])
        gangs = [each for each in ready if each.handle is not None]
        if self._call is not None or not any(each.due_s <= now_s for each in gangs):
            return
        soon_s = now_s + self._pace_s / 2
        due = [each for each in gangs if each.due_s <= soon_s]
        stuck = [each for each in due if each.look is not None]
        await self._tell(stuck, f"an earlier look at its channel has not come back for {self._call_limit_s:g} s")
        looks = [self._begin(each, now_s) for each in due if each.look is None]
        if looks:
            self._called_s = now_s
            self._call = self._loop.create_task(self._ask(looks))
            self._call.add_done_callback(self._asked)

    def _begin(self, watcher: _Watcher, now_s: float) -> Look:
        watcher.look = Look(watcher=watcher, channel=watcher.channel, state=watcher.state, asked_s=now_s)
        return watcher.look

    def _queue(self, looks: list[Look]) -> None:
        now_s = self._loop.time()
        for look in looks:
            look.queued_s = now_s
        if looks:
            self._readers.add(looks)

    async def _ask(self, looks: list[Look]) -> None:
        """Ask the engine about the gangs of ``looks``, and pass them on to the readers with what it told."""
        if self._num_calls >= MAX_HUNG_CALLS:
            reason = f"{self._num_calls} calls of engine {self._name} hang; it is not called again yet"
            answers = _all_unseen(looks, reason)
        else:
            answers = await self._call_engine(looks)
        for look, told in answers:
            look.told = told
        self._queue([look for look, _ in answers])

    async def _call_engine(self, looks: list[Look]) -> Answers:
        self._num_calls += 1
        call = asyncio.wrap_future(self._threads.submit(self._poll, looks))
        call.add_done_callback(self._returned)
        done, _ = await asyncio.wait([call], timeout=self._call_limit_s)
        if done:
            return call.result()
        reason = f"engine {self._name} did not answer for {len(looks)} gangs within {self._call_limit_s:g} s"
        log.warning("%s", reason)
        return _all_unseen(looks, reason)

    def _poll(self, looks: list[Look]) -> Answers:
        """On a thread. Ended gangs come first in the answers: someone waits for them."""
        try:
            engine = self._engine = self._engine or self._open_engine()
        except TransientError as error:
            return _all_unseen(looks, str(error))
        told = ask(engine, [look.state.handle for look in looks if look.state.handle is not None])
        answers: Answers = [(look, told[look.state.handle]) for look in looks if look.state.handle is not None]
        return sorted(answers, key=_is_live)

    def _asked(self, call: asyncio.Task[None]) -> None:
        self._call = None
        self._woken.set()
        error = None if call.cancelled() else call.exception()
        if isinstance(error, Exception):  # the engine could not be opened at all
            self._break(error)

    def _returned(self, call: asyncio.Future[Answers]) -> None:
        self._num_calls -= 1
        if not call.cancelled():
            call.exception()  # seen, though whoever asked may long have been told that there was no answer
        self._close_if_idle()

    async def _give_up_late_looks(self) -> None:
        """Count looks that take too long as failed. What a thread already has stays out of the next cycles."""
        limit_s = self._loop.time() - self._call_limit_s
        late = [
            each
            for each in self._watchers
            if each.look is not None
            and each.is_looking
            and each.look.queued_s is not None
            and each.look.queued_s <= limit_s
        ]
        for watcher in late:
            if watcher.look is not None and not self._readers.give_up(watcher.look):
                watcher.look = None
        await self._tell(late, f"its channel could not be read within {self._call_limit_s:g} s")

    async def _tell(self, watchers: Sequence[_Watcher], reason: str) -> None:
        """Let watches know that nobody could look."""
        for index, watcher in enumerate(watchers):
            if index % _CHUNK == _CHUNK - 1:
                await asyncio.sleep(0)
            now_s = self._loop.time()
            state, verdict = observe(watcher.state, Observation(at_s=self._clock.now_s(), error=reason))
            if isinstance(verdict, KeepWatching):
                watcher.state, watcher.due_s = state, now_s + verdict.after_s
            elif not watcher.ending.done():
                watcher.ending.set_result(handed_over(verdict.event))

    def _deliver(self, looks: list[Look]) -> None:
        """Called on a reader's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._take, looks)

    def _take(self, looks: Iterable[Look]) -> None:
        for look in looks:
            watcher: _Watcher = look.watcher
            if watcher.look is look:
                watcher.look = None
            if look.dropped or watcher.ending.done():
                continue
            if look.error is not None:
                watcher.ending.set_exception(look.error)
            elif look.payload is not None:
                watcher.ending.set_result(look.payload)
            elif look.after is not None:
                watcher.state = look.after
                watcher.due_s = look.asked_s + look.wait_s
        if not self._readers.backlog:  # until then nothing new is due
            self._woken.set()
        self._close_if_idle()


def _all_unseen(looks: Iterable[Look], reason: str) -> Answers:
    unseen = Unseen(reason=reason)
    return [(look, unseen) for look in looks]


def _is_live(answer: tuple[Look, Told]) -> bool:
    told = answer[1]
    return not (isinstance(told, GangStatus) and told.phase.ended)


_pollers: dict[asyncio.AbstractEventLoop, dict[Connection, SharedPoller]] = {}


def shared_poller(connection: Connection) -> SharedPoller:
    """Return the running loop's poller of ``connection``. Subscribe before the next ``await``: an idle one closes.

    Those of a loop that is closed (a test's, say) are forgotten.
    """
    for loop in [each for each in _pollers if each.is_closed()]:
        for poller in _pollers.pop(loop).values():
            poller.close()
    mine = _pollers.setdefault(asyncio.get_running_loop(), {})
    if connection not in mine:
        mine[connection] = SharedPoller(
            connection.open, name=connection.engine, on_idle=lambda: _forget(mine, connection)
        )
    return mine[connection]


def _forget(pollers: dict[Connection, SharedPoller], connection: Connection) -> None:
    pollers.pop(connection, None)
