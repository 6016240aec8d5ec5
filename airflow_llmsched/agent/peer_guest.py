"""Any other node's end of the talk between supervisors: it calls the first node, and calls again when it must."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from airflow_llmsched.agent.meeting import Meeting
from airflow_llmsched.agent.peer_line import Line, Silence
from airflow_llmsched.agent.peer_talk import TalkingPeers
from airflow_llmsched.agent.peer_wire import News, NotAPeerError, Session, news_of
from airflow_llmsched.agent.peers import FilePeers
from airflow_llmsched.agent.say import say
from airflow_llmsched.agent.watch import TERMINATED, Peer

_RECALL_AFTER_BEATS = 2
"""Silence after which a connection is given up for a new one: TCP waits ever longer before it tries a link again."""

_CALL_INTERVAL_S = 0.2
_CALL_LIMIT_S = 1.0
_CALLS_PER_LIMIT = 4


class HostAddress(NamedTuple):
    """Where the first node's supervisor listens, and the token it shares with this one."""

    host: str
    port: int
    token: bytes


class PeerGuest(TalkingPeers):
    """``Peers`` of any node but the first, which is ``host``. ``find`` says where that one listens once it does."""

    def __init__(
        self,
        files: FilePeers,
        *,
        gang: str,
        host: str,
        find: Callable[[], HostAddress | None],
        limit_s: float,
        wake: Callable[[], None],
        ports: Sequence[int] = (),
    ) -> None:
        super().__init__(files, limit_s=limit_s, wake=wake, ports=ports)
        self._gang = gang
        self._host = host
        self._find = find
        self._address: HostAddress | None = None
        self._targets: list[tuple[Any, ...]] = []
        self._line: Line | None = None
        self._is_connecting = False
        self._next_call_s = 0.0
        self._next_beat_s = 0.0
        self._said: Any = None
        self._asked_at_s: tuple[float, float] | None = None
        self._round_trip_s = float("inf")
        self._ahead_s = 0.0
        self._news: News | None = None
        self._begin_s: float | None = None
        self._silence = Silence(step_limit_s=2 * self._step_s)
        self._refusal = Silence(step_limit_s=2 * self._step_s)
        self._is_refused = False
        self._trouble = ""
        self._thread.start()

    def meeting(self) -> Meeting | None:
        """Once the host says that all may go."""
        self._say(here=True)
        news = self._news
        return None if news is None or not news.go or news.meeting is None else Meeting(*news.meeting)

    def beginning(self) -> float | None:
        """Once the host says so; how long that took on its way is not known, and is little."""
        return self._begin_s

    def ports(self) -> Mapping[str, Sequence[int]]:
        """Return what the host has heard of all."""
        return {} if self._news is None else self._news.ports

    def daemon(self) -> list[str] | None:
        """Return what the host's launcher asks for, as the host says."""
        news = self._news
        return None if news is None or news.daemon is None else list(news.daemon)

    def others(self) -> dict[str, Peer]:
        """Say of all others what the host says of them together. Who is gone among them, and who is late, it says."""
        self._check()
        news = self._news
        if news is None:
            return {self._host: Peer()}
        how = f"nothing was heard of it for {self._limit_s:g} s"
        if self._refusal.s >= self._closed_limit_s:
            how = f"nobody listens there since {self._closed_limit_s:g} s"
        peer = Peer(
            here=True,
            armed=True,
            started=True,
            done=news.done,
            ending=news.ending,
            gone=self._is_gone(),
            how=how,
            terminated=news.left == TERMINATED,
        )
        return {self._host: peer}

    def _is_gone(self) -> bool:
        is_silent = self._refusal.s >= self._closed_limit_s or self._silence.s >= self._limit_s
        return self._news is not None and self._news.left is None and is_silent

    def ahead_s(self) -> float:
        """By how much this node's clock is ahead of the host's; 0 when the fastest call cannot tell it from that."""
        return self._ahead_s if abs(self._ahead_s) > self._round_trip_s else 0.0

    def is_watched(self) -> bool:
        """Whether the host, which sees all nodes, watches over the start."""
        return self._news is not None

    def _heard_abort(self) -> Mapping[str, Any] | None:
        return None if self._news is None else self._news.abort

    def _heard_stop(self) -> Mapping[str, Any] | None:
        return None if self._news is None else self._news.stop

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        line = self._line
        if line is None or key.data is not line:
            return
        try:
            if self._is_connecting:
                self._check_call(line)
            if events & selectors.EVENT_WRITE:
                line.send()
            if events & selectors.EVENT_READ:
                was_open = line.session.is_open
                before_s = (time.monotonic(), time.time())
                messages = line.read()
                if line.session.is_open and not was_open:
                    self._asked_at_s = before_s  # what was just sent is answered at once
                for plain in messages:
                    self._hear(news_of(plain))
            self._watch(line, is_connecting=self._is_connecting)
        except (OSError, NotAPeerError) as error:
            self._lose(error)

    def _check_call(self, line: Line) -> None:
        code = line.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code != 0:
            raise OSError(code, os.strerror(code))
        self._is_connecting = False
        self._is_refused = False

    def _hear(self, news: News) -> None:
        if self._asked_at_s is not None:
            self._set_clock(news.at_s, *self._asked_at_s)
            self._asked_at_s = None
        self._silence.end()
        self._trouble = ""
        for node, in_s in news.notices_in_s.items():
            if node != self._files.node:
                self._note_deadline(node, in_s)
        if news.begin_in_s is not None and self._begin_s is None:
            self._begin_s = time.monotonic() + news.begin_in_s
        before = self._news
        self._news = news
        if before is None or _lasting(news) != _lasting(before):
            self._wake()

    def _set_clock(self, host_at_s: float, asked_s: float, asked_wall_s: float) -> None:
        """The host answered half way between question and answer, give or take half of that time."""
        round_trip_s = time.monotonic() - asked_s
        if round_trip_s < self._round_trip_s:
            self._round_trip_s = round_trip_s
            self._ahead_s = asked_wall_s + round_trip_s / 2 - host_at_s

    def _lose(self, error: Exception) -> None:
        if self._line is not None:
            self._drop(self._line)
        self._line = None
        self._is_connecting = False
        self._said = None
        self._next_call_s = time.monotonic() + min(_CALL_INTERVAL_S, self._step_s)
        self._is_refused = isinstance(error, ConnectionRefusedError)
        if not self._is_refused:
            self._refusal.end()
        if isinstance(error, NotAPeerError) and str(error) != self._trouble:
            self._trouble = str(error)
            say(f"llmsched: whoever listens for node {self._host} {self._trouble}")

    def _step(self, passed_s: float) -> None:
        was_gone = self._is_gone()
        if self._news is not None:
            self._silence.pass_by(passed_s)
            if self._is_refused:
                self._refusal.pass_by(passed_s)
            else:
                self._refusal.end()
        if self._is_gone() and not was_gone:
            self._wake()
        self._mind_call(passed_s)
        self._tell()
        news = self._news
        has_told = self._line is not None and self._said is not None and not self._line.is_writing
        if news is None or news.left is not None or self._is_gone() or (has_told and self._said.left is not None):
            self._may_close.set()
        else:
            self._may_close.clear()

    def _mind_call(self, passed_s: float) -> None:
        """Call, call again when the line is dead, and give up one that is not answered."""
        line = self._line
        if line is None:
            if time.monotonic() >= self._next_call_s and (self._news is None or self._news.left is None):
                self._call()
            return
        line.age_s += passed_s
        answer_limit_s = self._limit_s / _CALLS_PER_LIMIT
        if self._is_connecting:
            is_dead = line.age_s >= min(_CALL_LIMIT_S, answer_limit_s)
        else:
            is_silent = self._silence.s >= _RECALL_AFTER_BEATS * self._beat_s
            is_dead = line.age_s >= answer_limit_s and (is_silent or not line.session.is_open)
        if is_dead:
            self._lose(TimeoutError("no answer"))

    def _call(self) -> None:
        try:
            self._address = self._address or self._find()
            if self._address is None:
                self._next_call_s = time.monotonic() + min(_CALL_INTERVAL_S, self._step_s)
                return
            if not self._targets:
                host, port, _ = self._address
                self._targets = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            family, kind, protocol, _, target = self._targets.pop(0)  # each in turn; then names are looked up again
            session = Session(self._address.token, gang=self._gang, node=self._files.node)
            line = Line(socket.socket(family, kind, protocol), session)
        except (OSError, ValueError) as error:
            self._lose(error)
            return
        self._line, self._is_connecting = line, True
        try:
            with contextlib.suppress(BlockingIOError):
                line.socket.connect(target)
            self._watch(line, is_connecting=True)
        except OSError as error:
            self._lose(error)

    def _tell(self) -> None:
        """Say all anew when something has changed, or when it is time for a sign of life."""
        line = self._line
        if line is None or not line.session.is_open:
            return
        told = self._own._replace(notice_in_s=self._own_deadline_s)
        if told == self._said and time.monotonic() < self._next_beat_s:
            return
        try:
            if line.say(told._replace(notice_in_s=self._own_notice_in_s())):
                self._said = told
                self._next_beat_s = time.monotonic() + self._beat_s
            self._watch(line)
        except OSError as error:
            self._lose(error)

    def _hang_up(self) -> None:
        if self._line is not None:
            self._drop(self._line)


def _lasting(news: News) -> News:
    """Return what of the news is not told anew by how late it is."""
    begin_in_s = None if news.begin_in_s is None else 0.0
    return news._replace(at_s=0.0, begin_in_s=begin_in_s, notices_in_s=dict.fromkeys(news.notices_in_s, 0.0))
