"""Hears when the queue calls for a run: one look at each cluster's claims for all runs of a triggerer or a worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_ground import Ground
from airflow_llmsched.control.arbiter_watch import summons
from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.provider.executor import run_blocking
from airflow_llmsched.provider.run_scope import RunScope

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""A look lists a folder of some tens of files, and reads what is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A run that waits for its turn, or whose gang may be told to make room."""

    state_root: str
    ground: str
    run: RunKey
    has_gang: bool


class QueueLooks:
    """Looks at claims. For one thread at a time."""

    def __init__(self) -> None:
        self._grounds: dict[tuple[str, str], Ground] = {}

    def make(self, listeners: Iterable[Listener]) -> Mapping[Listener, str]:
        """Return why a worker is to look after each run now, where there is a reason. Raises nothing."""
        called: dict[Listener, str] = {}
        by_ground: dict[tuple[str, str], list[Listener]] = {}
        for each in listeners:
            by_ground.setdefault((each.state_root, each.ground), []).append(each)
        self._grounds = {key: ground for key, ground in self._grounds.items() if key in by_ground}
        for key, runs in by_ground.items():
            try:
                state = self._ground(*key).state()
            except Exception as error:  # noqa: BLE001  (one queue must not end the looks at all the others)
                log.warning("the queue of %s cannot be read now: %s", key[1], error)
                continue
            for each in runs:
                words = summons(state, each.run, has_gang=each.has_gang, now_s=SystemClock().now_s())
                if words:
                    called[each] = words
        return called

    def _ground(self, state_root: str, name: str) -> Ground:
        if (state_root, name) not in self._grounds:
            self._grounds[state_root, name] = Ground(open_store(state_root), name, clock=SystemClock())
        return self._grounds[state_root, name]


def listener_of(scope: RunScope, watch: WatchState) -> Listener | None:
    """Return who listens for a watch; None where its engine has a queue of its own."""
    if not watch.ground:
        return None
    return Listener(
        state_root=scope.state_root,
        ground=watch.ground,
        run=watch.claims_as or scope.run_key,
        has_gang=watch.handle is not None,
    )


class QueueCall:
    """Comes once the queue calls for a run."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._words = ""
        self._came = asyncio.Event()

    def tell(self, words: str) -> None:
        """Take why the run is called for."""
        self._words = words
        self._came.set()

    async def wait(self) -> str:
        """Return why the run is called for, once it is."""
        await self._came.wait()
        return self._words


class _LoopLooks:
    """One event loop's looks, as long as anyone listens."""

    def __init__(self) -> None:
        self._calls: list[QueueCall] = []
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def listening(self, listener: Listener) -> Iterator[QueueCall]:
        call = QueueCall(listener)
        self._calls.append(call)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="llmsched queue")
        try:
            yield call
        finally:
            self._calls.remove(call)
            if not self._calls and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        looks = QueueLooks()
        while True:
            called = await run_blocking("queue", looks.make, [call.listener for call in self._calls])
            for call in self._calls:
                if call.listener in called:
                    call.tell(called[call.listener])
            await asyncio.sleep(LOOK_EVERY_S)


_looks: dict[asyncio.AbstractEventLoop, _LoopLooks] = {}


@contextlib.contextmanager
def listening(listener: Listener | None) -> Iterator[QueueCall | None]:
    """Listen for a run inside of the block, together with all others in this event loop; None: nobody calls for it."""
    if listener is None:
        yield None
        return
    for loop in [each for each in _looks if each.is_closed()]:
        del _looks[loop]
    with _looks.setdefault(asyncio.get_running_loop(), _LoopLooks()).listening(listener) as call:
        yield call
