"""Keeps what runs have rented while somebody watches them: one pass for all runs of a triggerer or of a worker.

A pass renews leases, and orders a checkpoint from a gang whose node the cloud has announced to take: agents hear of
that by themselves only where the machine tells them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.lease_keeping import Kept, LeaseKeeper
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.lease import NoticeKind
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import LlmschedError, StoreError
from airflow_llmsched.provider.channels import open_channel
from airflow_llmsched.provider.clouds import open_cloud
from airflow_llmsched.provider.executor import run_blocking
from airflow_llmsched.provider.metrics import gauge_rentals
from airflow_llmsched.provider.rentals import open_book, open_renter
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.provider.threads import DaemonThreads

log = logging.getLogger(__name__)

_ORDER = EffectPoint("leases.order_checkpoint")

PASS_EVERY_S = 30.0
"""Well below the two minutes' notice of the clouds that give one."""

IDLE_PASS_EVERY_S = 300.0
"""While none of the runs has rented anything."""

GATHER_S = 1.0
"""How long a pass waits for others to subscribe, so that a triggerer that starts with many makes few passes."""

GAUGE_EVERY_S = 300.0
"""How often metrics are set."""

REOPEN_AFTER_S = 3600.0
"""Clouds are opened anew so often, and after any trouble: an Airflow connection may have got other credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A run that is watched, and where its gang's channel is (empty: there is none)."""

    scope: RunScope
    channel_root: str = ""


class LeasePasses:
    """Passes over runs' leases. For one thread at a time. ``alarms`` says what the last one saw go, by run."""

    def __init__(self) -> None:
        self._keeper: LeaseKeeper | None = None
        self._opened_s = 0.0
        self._gauged_s = -GAUGE_EVERY_S
        self._said: dict[RunKey, frozenset[str]] = {}
        self._ordered_for: dict[RunKey, frozenset[NodeId]] = {}
        self.alarms: Mapping[RunKey, str] = {}

    def make(self, watched: Iterable[Watched]) -> float:
        """Keep all leases of the runs. Returns how many seconds later the next pass is due. Raises nothing."""
        try:
            runs = {each.scope.run_key: each for each in watched}
            kept = self._keep(runs)
            self.alarms = {key: words for key, found in kept.items() if (words := _alarm(found))}
            for key, found in kept.items():
                self._say(key, found)
                self._order_checkpoint(runs[key], found)
            self._gauge([runs[key] for key, found in kept.items() if found.num_open])
        except Exception:  # whatever an SDK may raise: the leases live on until they expire, and gangs go on
            log.exception("leases could not be kept; trying again in %.0f s", PASS_EVERY_S)
            self._keeper = None
            return PASS_EVERY_S
        if any(each.troubles for each in kept.values()):
            self._keeper = None
            return PASS_EVERY_S
        return PASS_EVERY_S if any(each.num_open for each in kept.values()) else IDLE_PASS_EVERY_S

    def _keep(self, runs: Mapping[RunKey, Watched]) -> Mapping[RunKey, Kept]:
        if self._keeper is None or time.monotonic() >= self._opened_s + REOPEN_AFTER_S:
            self._keeper = LeaseKeeper(open_cloud=open_cloud, clock=SystemClock())
            self._opened_s = time.monotonic()
        return self._keeper.keep([open_book(each.scope) for each in runs.values()])

    def _say(self, run: RunKey, kept: Kept) -> None:
        """Log what is wrong, each thing once for as long as it lasts."""
        found = frozenset(
            [f"a lease could not be kept, and lives on until it expires: {trouble}" for trouble in kept.troubles]
            + [f"lease {gone.name} is gone" for gone in kept.gone]
            + [f"lease {each.id} has lost {', '.join(node.id for node in each.gone)}" for each in kept.broken]
        )
        for words in sorted(found - self._said.get(run, frozenset())):
            log.warning("run %s: %s", run, words)
        self._said[run] = found

    def _order_checkpoint(self, watched: Watched, kept: Kept) -> None:
        """Have the gang save for each node that is announced to be taken: once, however often it is announced."""
        run = watched.scope.run_key
        announced = _announced(kept)
        if not watched.channel_root or not announced - self._ordered_for.get(run, frozenset()):
            return
        at_s = kept.interrupted_at_s
        when = "soon" if at_s is None else f"in {at_s - time.time():.0f} s"
        log.warning("run %s: %s to be taken %s; ordering a checkpoint", run, ", ".join(sorted(announced)), when)
        try:
            with _ORDER:
                open_channel(watched.channel_root).order_checkpoint()
        except LlmschedError as error:
            log.warning("run %s: the checkpoint could not be ordered: %s", run, error)
        else:
            self._ordered_for[run] = announced

    def _gauge(self, renting: Iterable[Watched]) -> None:
        """Set the gauges of runs that rent, now and then: it takes reading their books once more."""
        if time.monotonic() < self._gauged_s + GAUGE_EVERY_S:
            return
        self._gauged_s = time.monotonic()
        for watched in renting:
            with contextlib.suppress(StoreError):  # which the pass has said; the others are set
                spend = open_renter(watched.scope).spend()
                gauge_rentals(watched.scope.run_key, spend, num_open=len(open_book(watched.scope).open()))


def _announced(kept: Kept) -> frozenset[NodeId]:
    return frozenset(
        node.id
        for lease in kept.leases
        for node in lease.nodes
        if node.notice is not None and node.notice.kind is NoticeKind.INTERRUPTION and not node.state.is_gone
    )


def _alarm(kept: Kept) -> str:
    """Return in words what has gone, or is announced to go, of what a run has rented; empty: nothing."""
    lost = [f"lease {gone.name} is gone" for gone in kept.gone]
    lost += [f"lease {each.id} has lost {', '.join(node.id for node in each.gone)}" for each in kept.broken]
    announced = sorted(_announced(kept))
    return "; ".join(lost + ([f"{', '.join(announced)} to be taken"] if announced else []))


class BackgroundPasses:
    """One run's passes beside a worker that waits: a cloud that hangs must not keep it from its gang."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._passes = LeasePasses()
        self._pass: Future[float] | None = None
        self._due_s = 0.0

    def tend(self) -> None:
        """Begin a pass if one is due and none is under way. Returns at once."""
        if self._pass is not None:
            if not self._pass.done():
                return
            self._due_s = time.monotonic() + self._pass.result()
            self._pass = None
        if time.monotonic() >= self._due_s:
            self._pass = _worker_threads.submit(self._passes.make, [self._watched])

    @property
    def alarm(self) -> str:
        """What the last pass saw go, in words; empty: nothing."""
        return self._passes.alarms.get(self._watched.scope.run_key, "")


_worker_threads = DaemonThreads(1, name="llmsched-leases")


class LeaseAlarm:
    """Rings while a run is watched and something of what it has rented goes, or is announced to."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._words = ""
        self._rings = asyncio.Event()

    def tell(self, words: str) -> None:
        """Take what the newest pass saw go; empty: nothing."""
        self._words = words
        if words:
            self._rings.set()
        else:
            self._rings.clear()

    async def wait(self, *, not_before_s: float) -> str:
        """Return what has gone, in words, once something has, at ``not_before_s`` (Unix seconds) at the earliest."""
        while True:
            await self._rings.wait()
            early_s = not_before_s - time.time()
            if early_s <= 0:
                return self._words
            await asyncio.sleep(early_s)


class _LoopWatch:
    """One event loop's passes, as long as anyone is subscribed."""

    def __init__(self) -> None:
        self._alarms: list[LeaseAlarm] = []
        self._joined = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watching(self, watched: Watched) -> Iterator[LeaseAlarm]:
        alarm = LeaseAlarm(watched)
        self._alarms.append(alarm)
        self._joined.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="llmsched leases")
        try:
            yield alarm
        finally:
            self._alarms.remove(alarm)
            if not self._alarms and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        passes = LeasePasses()
        while True:
            self._joined.clear()
            wait_s = await run_blocking("leases", passes.make, [alarm.watched for alarm in self._alarms])
            for alarm in self._alarms:
                alarm.tell(passes.alarms.get(alarm.watched.scope.run_key, ""))
            await asyncio.sleep(GATHER_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._joined.wait(), wait_s)


_watches: dict[asyncio.AbstractEventLoop, _LoopWatch] = {}


def watching_leases(watched: Watched) -> contextlib.AbstractContextManager[LeaseAlarm]:
    """Keep the run's leases inside of the block, together with those of all others in this event loop."""
    for loop in [each for each in _watches if each.is_closed()]:
        del _watches[loop]
    return _watches.setdefault(asyncio.get_running_loop(), _LoopWatch()).watching(watched)
