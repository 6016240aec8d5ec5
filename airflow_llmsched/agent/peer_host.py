"""The first node's end of the talk between supervisors: all others call it, and it tells each about the whole gang.

What a guest says is whole each time, and so is what it is told: a connection may break and be made again at any moment.
Who does not hold the gang's token gets a nonce, a few seconds and a kilobyte.
"""

from __future__ import annotations

import errno
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from airflow_llmsched.agent.meeting import Meeting
from airflow_llmsched.agent.peer_line import Line, Silence
from airflow_llmsched.agent.peer_talk import TalkingPeers
from airflow_llmsched.agent.peer_wire import News, NotAPeerError, Session, Told, told_of
from airflow_llmsched.agent.peers import BEGIN_AFTER_S, FilePeers
from airflow_llmsched.agent.say import say
from airflow_llmsched.agent.watch import TERMINATED, Peer

MAX_STRANGERS = 64
"""Connections that have not yet shown that they hold the token. One more, and the oldest is closed."""

STRANGER_LIMIT_S = 5.0
_BACKLOG = 1024
_OTHER_FILES = 256
_NO_ROOM_S = 0.05


def make_room(num_connections: int) -> None:
    """Raise this process's limit of open files, as far as it may, so that all connections have room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class _Guest:
    """One other node."""

    def __init__(self, *, step_limit_s: float) -> None:
        self.told = Told()
        self.line: Line | None = None
        self.was_here = False
        self.was_closed = False
        self.is_due = True
        self.silence = Silence(step_limit_s=step_limit_s)

    def is_gone(self, *, limit_s: float, closed_limit_s: float) -> bool:
        """Whether it was there once and has been silent for too long."""
        limit_s = closed_limit_s if self.was_closed else limit_s
        return self.was_here and self.told.left is None and self.silence.s >= limit_s


class PeerHost(TalkingPeers):
    """``Peers`` of the first node. ``listener`` is bound, not yet listening, and its owner's to close.

    ``addresses`` are what launchers know nodes by; ``helper_nodes`` have no trainers.
    """

    def __init__(
        self,
        files: FilePeers,
        *,
        gang: str,
        token: bytes,
        guests: Sequence[str],
        meeting: Meeting,
        listener: socket.socket,
        limit_s: float,
        wake: Callable[[], None],
        ports: Sequence[int] = (),
        addresses: Mapping[str, str] = MappingProxyType({}),
        helper_nodes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(files, limit_s=limit_s, wake=wake, ports=ports)
        self._addresses = addresses
        self._helper_nodes = helper_nodes
        self._asked: Mapping[str, list[str]] = {}
        self._gang = gang
        self._token = token
        self._meeting = meeting
        self._guests = {node: _Guest(step_limit_s=2 * self._step_s) for node in guests}
        self._strangers: list[Line] = []
        self._accepting = threading.Lock()
        self._abort: Mapping[str, Any] | None = None
        self._stop: Mapping[str, Any] | None = None
        self._go = False
        self._begin_s: float | None = None
        self._news = News(at_s=0.0)
        self._next_beat_s = 0.0
        make_room(len(guests) + MAX_STRANGERS)
        self._listener = listener
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._thread.start()

    def meeting(self) -> Meeting | None:
        """Once every guest has come."""
        self._say(here=True)
        return self._meeting if self._go else None

    def beginning(self) -> float | None:
        """Once every node has said that its ranks stand ready."""
        return self._begin_s

    def ports(self) -> dict[str, Sequence[int]]:
        """Return its own and what each guest said."""
        told = {node: guest.told.ports for node, guest in self._guests.items()}
        return {self._files.node: self._own.ports, **told}

    def daemon(self) -> list[str] | None:
        """Look at what the launcher here asks for, and have each guest told what is for it."""
        asked = self._files.asked()
        if asked != self._asked:
            self._asked = asked
            for guest in self._guests.values():
                guest.is_due = True
            self._nudge()
        return self._files.daemon()

    def others(self) -> dict[str, Peer]:
        """Say what each guest said last, and who is gone."""
        self._check()
        return {node: self._peer(node, guest) for node, guest in self._guests.items()}

    def ahead_s(self) -> float:
        """By this node's clock all others are set right."""
        return 0.0

    def is_watched(self) -> bool:
        """Watch over the start of all nodes; nobody watches over this one."""
        return False

    def announce(self, abort: Mapping[str, Any]) -> None:
        """Say so, unless a guest was first."""
        first = self._accept(abort)
        super().announce(first)

    def _peer(self, node: str, guest: _Guest) -> Peer:
        how = "nothing was heard of it"
        if guest.was_closed:
            how = "it closed the connection and did not come back"
        limit_s = self._closed_limit_s if guest.was_closed else self._limit_s
        return Peer(
            here=guest.told.here,
            armed=guest.told.armed,
            started=guest.told.started,
            done=guest.told.done,
            ending=guest.told.done and node not in self._helper_nodes,
            gone=self._is_gone(guest),
            how=f"{how} for {limit_s:g} s",
            terminated=guest.told.left == TERMINATED,
        )

    def _is_gone(self, guest: _Guest) -> bool:
        return guest.is_gone(limit_s=self._limit_s, closed_limit_s=self._closed_limit_s)

    def _heard_abort(self) -> Mapping[str, Any] | None:
        return self._abort

    def _heard_stop(self) -> Mapping[str, Any] | None:
        return self._stop

    def _accept(self, abort: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keep the first reason to give up, whoever has it."""
        with self._accepting:
            if self._abort is None:
                self._abort = abort
            return self._abort

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        line = key.data
        if line is None:
            self._welcome()
            return
        try:
            if events & selectors.EVENT_WRITE:
                line.send()
            if events & selectors.EVENT_READ:
                was_open = line.session.is_open
                messages = line.read()
                if line.session.is_open and not was_open:
                    self._seat(line)
                for plain in messages:
                    self._hear(line, told_of(plain))
            self._watch(line)
        except (OSError, NotAPeerError) as error:
            self._lose(line, error)

    def _welcome(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(_NO_ROOM_S)  # it waits in the backlog, and would be reported again at once
            return  # else it hung up again, and will call again
        line = Line(accepted, Session(self._token, gang=self._gang))
        self._strangers.append(line)
        if len(self._strangers) > MAX_STRANGERS:
            self._lose(self._strangers[0], None)
        try:
            line.send(line.session.greeting())
            self._watch(line)
        except OSError as error:
            self._lose(line, error)

    def _seat(self, line: Line) -> None:
        """A stranger has shown that it is one of the guests; an older connection of that guest is over."""
        guest = self._guests.get(line.session.node or "")
        if guest is None:
            raise NotAPeerError(f"is no node of this gang: {str(line.session.node)[:100]!r}")
        self._strangers.remove(line)
        if guest.line is not None:
            self._drop(guest.line)
        guest.line, guest.is_due, guest.was_closed = line, True, False
        guest.silence.end()

    def _hear(self, line: Line, told: Told) -> None:
        node = str(line.session.node)
        guest = self._guests[node]
        guest.silence.end()
        guest.was_here = True
        if told.notice_in_s is not None:
            self._note_deadline(node, told.notice_in_s)
        if told.abort is not None:
            self._accept(told.abort)
        if told.stop is not None and self._stop is None:
            self._stop = told.stop
        is_news = told._replace(notice_in_s=None) != guest.told._replace(notice_in_s=None)
        guest.told = told
        if is_news or told.notice_in_s is not None:
            self._wake()

    def _lose(self, line: Line, error: Exception | None) -> None:
        self._drop(line)
        if line in self._strangers:
            self._strangers.remove(line)
        guest = self._guests.get(line.session.node or "")
        if guest is None or guest.line is not line:
            return
        guest.line = None
        if isinstance(error, ConnectionError):
            guest.was_closed = True  # its kernel said so, and was heard
            guest.silence.end()
        elif error is not None:
            say(f"llmsched: node {line.session.node} {error}")

    def _step(self, passed_s: float) -> None:
        for stranger in list(self._strangers):
            stranger.age_s += passed_s
            if stranger.age_s >= STRANGER_LIMIT_S:
                self._lose(stranger, None)
        for guest in self._guests.values():
            was_gone = self._is_gone(guest)
            guest.silence.pass_by(passed_s)
            if self._is_gone(guest) and not was_gone:
                self._wake()
        self._judge()
        self._tell()
        if all(guest.told.left or not guest.was_here or self._is_gone(guest) for guest in self._guests.values()):
            self._may_close.set()
        else:
            self._may_close.clear()

    def _judge(self) -> None:
        """Decide whether all may go, whether ranks may start, and what everybody must know."""
        own = self._own
        if own.abort is not None:
            self._accept(own.abort)
        if own.stop is not None and self._stop is None:
            self._stop = own.stop
        told = [own, *(guest.told for guest in self._guests.values())]
        may_start = self._abort is None and self._stop is None
        before = (self._go, self._begin_s)
        if may_start and not self._go:
            self._go = all(each.here for each in told) and all(guest.line for guest in self._guests.values())
        if may_start and self._go and self._begin_s is None and all(each.armed for each in told):
            self._begin_s = time.monotonic() + BEGIN_AFTER_S
        if (self._go, self._begin_s) != before:
            self._wake()

    def _tell(self) -> None:
        """Tell every guest when something has changed, or when it is time for a sign of life."""
        notices_s = dict(self._deadlines_s)
        if self._own_deadline_s is not None:
            notices_s[self._files.node] = self._own_deadline_s
        news = News(
            at_s=0.0,
            go=self._go,
            begin_in_s=self._begin_s,
            done=self._own.done and all(guest.told.done for guest in self._guests.values()),
            ending=self._is_ending(),
            left=self._own.left,
            meeting=self._meeting,
            ports=self.ports(),
            notices_in_s=notices_s,
            abort=self._abort,
            stop=self._stop,
        )
        if news != self._news or time.monotonic() >= self._next_beat_s:
            self._news = news
            self._next_beat_s = time.monotonic() + self._beat_s
            for guest in self._guests.values():
                guest.is_due = True
        for guest in self._guests.values():
            if guest.is_due and guest.line is not None:
                self._tell_one(guest, guest.line)

    def _is_ending(self) -> bool:
        """Whether all trainers of some node have exited 0."""
        done = [node for node, guest in self._guests.items() if guest.told.done]
        if self._own.done:
            done.append(self._files.node)
        return not self._helper_nodes.issuperset(done)

    def _tell_one(self, guest: _Guest, line: Line) -> None:
        now_s = time.time()
        begin_in_s = None if self._begin_s is None else self._begin_s - time.monotonic()
        notices_in_s = {node: deadline_s - now_s for node, deadline_s in self._news.notices_in_s.items()}
        try:
            daemon = self._asked.get(self._addresses.get(str(line.session.node), ""))
            news = self._news._replace(at_s=now_s, begin_in_s=begin_in_s, notices_in_s=notices_in_s, daemon=daemon)
            guest.is_due = not line.say(news)
            self._watch(line)
        except OSError as error:
            self._lose(line, error)

    def _hang_up(self) -> None:
        for line in [*self._strangers, *(guest.line for guest in self._guests.values() if guest.line is not None)]:
            self._drop(line)
