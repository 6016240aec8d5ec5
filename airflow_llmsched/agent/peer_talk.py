"""What both ends of the talk between supervisors share: a thread that talks, and what the supervisor asks of it.

The supervisor reads and writes the files of its own node; the thread touches sockets only. Each replaces values that
the other reads, and wakes it. Other nodes' clocks are never compared with this one's: how long a node has been silent
is counted here, and moments travel as how far off they are.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_llmsched.agent.meeting import Meeting
from airflow_llmsched.agent.peer_line import Line
from airflow_llmsched.agent.peer_wire import Told
from airflow_llmsched.agent.peers import FilePeers
from airflow_llmsched.agent.watch import Peer

PEER_LIMIT_S = 10.0
"""A node that nothing was heard of for this long is gone, and the gang with it. A shorter glitch hurts nothing."""

CLOSED_LIMIT_S = 3.0
"""The same for one whose kernel says that nobody is there: it closed the connection, or refuses a new one."""

BEATS_PER_LIMIT = 5
_STEPS_PER_LIMIT = 20
_STEP_LIMIT_S = 0.2


class TalkingPeers(ABC):
    """``Peers`` of nodes that are machines of their own. ``wake`` is called, by the thread, when there is news."""

    def __init__(
        self, files: FilePeers, *, limit_s: float, wake: Callable[[], None], ports: Sequence[int] = ()
    ) -> None:
        self._files = files
        self._limit_s = limit_s
        self._closed_limit_s = min(CLOSED_LIMIT_S, limit_s)
        self._beat_s = limit_s / BEATS_PER_LIMIT
        self._step_s = min(limit_s / _STEPS_PER_LIMIT, _STEP_LIMIT_S)
        self._wake = wake
        self._own = Told(ports=tuple(ports))
        self._own_deadline_s: float | None = None
        self._deadlines_s: Mapping[str, float] = {}
        self._is_closing = False
        self._may_close = threading.Event()
        self._failure = ""
        self._selector = selectors.DefaultSelector()
        self._nudges, self._nudge_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._nudges, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="llmsched-peers", daemon=True)

    @abstractmethod
    def meeting(self) -> Meeting | None:
        """Return where the ranks meet once all nodes are there; asking says that this one is."""

    @abstractmethod
    def beginning(self) -> float | None:
        """Return when all ranks begin, by this machine's monotonic clock, once all of all nodes stand ready."""

    @abstractmethod
    def ports(self) -> Mapping[str, Sequence[int]]:
        """Return the ports that each node's supervisor holds for its members."""

    @abstractmethod
    def daemon(self) -> list[str] | None:
        """Return what the first node's launcher asks this node to run."""

    @abstractmethod
    def others(self) -> Mapping[str, Peer]:
        """Return what was heard of the others."""

    def notices(self) -> dict[str, float]:
        """Read this node's own, and add what was heard of others'."""
        own = self._files.notices()
        deadline_s = min(own.values(), default=None)
        if deadline_s != self._own_deadline_s:
            self._own_deadline_s = deadline_s
            self._nudge()
        return {**self._deadlines_s, **own}

    def abort(self) -> Mapping[str, Any] | None:
        """Return what this node or another said; of another's word a record is kept here too, for the engine."""
        abort: Mapping[str, Any] | None = self._files.abort()
        if abort is None:
            abort = self._heard_abort()
            if abort is not None:
                with contextlib.suppress(OSError):
                    self._files.announce(abort)
        if abort is not None:
            self._say(abort=abort)
        return abort

    def stop(self) -> Mapping[str, Any] | None:
        """Return the order given to this node or to another; another's is kept here too, for the engine."""
        stop: Mapping[str, Any] | None = self._files.stop()
        if stop is None:
            stop = self._heard_stop()
            if stop is not None:
                with contextlib.suppress(OSError):
                    self._files.note_stop(stop)
        if stop is not None:
            self._say(stop=stop)
        return stop

    def armed(self, *, at_s: float) -> None:
        """Write it down, and say so."""
        self._files.armed(at_s=at_s)
        self._say(armed=True)

    def started(self, *, at_s: float) -> None:
        """Write it down, and say so."""
        self._files.started(at_s=at_s)
        self._say(started=True)

    def done(self, *, at_s: float) -> None:
        """Write it down, and say so."""
        self._files.done(at_s=at_s)
        self._say(done=True)

    def announce(self, abort: Mapping[str, Any]) -> None:
        """Say so first: the disk may be full."""
        self._say(abort=abort)
        self._files.announce(abort)

    def leave(self, outcome: str) -> None:
        """Say that this node ends, so that its silence is none."""
        self._say(left=outcome)

    def close(self, *, limit_s: float) -> None:
        """Wait until the others have heard, at most ``limit_s``; then hang up."""
        self._may_close.wait(limit_s)
        self._is_closing = True
        self._nudge()
        self._thread.join(limit_s)

    @abstractmethod
    def _heard_abort(self) -> Mapping[str, Any] | None: ...

    @abstractmethod
    def _heard_stop(self) -> Mapping[str, Any] | None: ...

    @abstractmethod
    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        """Take in what is ready, in the thread."""

    @abstractmethod
    def _step(self, passed_s: float) -> None:
        """Do what time or news asks for, in the thread."""

    @abstractmethod
    def _hang_up(self) -> None:
        """Close everything, in the thread."""

    def _say(self, **changes: Any) -> None:
        told = self._own._replace(**changes)
        if told != self._own:
            self._own = told
            self._nudge()

    def _own_notice_in_s(self) -> float | None:
        deadline_s = self._own_deadline_s
        return None if deadline_s is None else deadline_s - time.time()

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: the thread will look; closed: it is gone
            os.write(self._nudge_fd, b".")

    def _note_deadline(self, node: str, in_s: float) -> None:
        """Keep the earliest moment named: the same one, told again, is a little later each time by its travel."""
        deadline_s = time.time() + in_s
        known_s = self._deadlines_s.get(node)
        if known_s is None or deadline_s < known_s:
            self._deadlines_s = {**self._deadlines_s, node: deadline_s}

    def _run(self) -> None:
        try:
            last_s = time.monotonic()
            while not self._is_closing:
                for key, events in self._selector.select(self._step_s):
                    if key.fd == self._nudges:
                        os.read(self._nudges, 4096)
                    else:
                        self._handle(key, events)
                now_s = time.monotonic()
                self._step(now_s - last_s)
                last_s = now_s
        except Exception:  # noqa: BLE001  (told to the supervisor, which ends its ranks: nobody watches the peers now)
            self._failure = traceback.format_exc()
            self._wake()
        finally:
            self._may_close.set()
            self._hang_up()

    def _check(self) -> None:
        if self._failure:
            raise RuntimeError(f"the talk with the other nodes broke down:\n{self._failure}")

    def _watch(self, line: Line, *, is_connecting: bool = False) -> None:
        """Have the selector tell what can be done with a line."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.is_writing or is_connecting else 0)
        known = self._selector.get_map().get(line.socket)
        if known is None:
            self._selector.register(line.socket, events, line)
        elif known.events != events:
            self._selector.modify(line.socket, events, line)

    def _drop(self, line: Line) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(line.socket)
        line.close()
