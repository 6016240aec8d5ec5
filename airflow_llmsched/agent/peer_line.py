"""One connection between two supervisors, never waiting; and how long its other end has been silent."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

from airflow_llmsched.agent.peer_wire import MAX_LINE_BYTES, News, NotAPeerError, Session, Told

_CHUNK_BYTES = 64 * 1024
_MAX_AT_ONCE_BYTES = 2 * MAX_LINE_BYTES


class Line:
    """A connected, or connecting, socket and what is said over it. ``age_s`` is for whoever owns it."""

    def __init__(self, peer: socket.socket, session: Session) -> None:
        self.socket = peer
        self.session = session
        self.age_s = 0.0
        self._waiting = b""
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def is_writing(self) -> bool:
        """Whether something waits for room in the socket."""
        return bool(self._waiting)

    def read(self) -> list[dict[str, Any]]:
        """Return the messages that came. Raises ``OSError`` (``ConnectionError``: its end) and ``NotAPeerError``."""
        messages: list[dict[str, Any]] = []
        num_bytes = 0
        while num_bytes < _MAX_AT_ONCE_BYTES:  # one that never stops talking must leave time for the others
            try:
                data = self.socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                break
            if not data:
                if messages:
                    break  # its end is read again, after what it said last
                raise ConnectionResetError(errno.ECONNRESET, "the other end closed the connection")
            num_bytes += len(data)
            found, answer = self.session.take(data)
            messages += found
            self.send(answer)
        return messages

    def say(self, message: Told | News) -> bool:
        """Send a message, unless one is still on its way: the newest is said later. Raises ``OSError``."""
        if self._waiting or not self.session.is_open:
            return False
        self.send(self.session.wrap(message))
        return True

    def send(self, data: bytes = b"") -> None:
        """Send as much as there is room for. Raises ``OSError``."""
        self._waiting += data
        with contextlib.suppress(BlockingIOError):
            while self._waiting:
                self._waiting = self._waiting[self.socket.send(self._waiting) :]

    def close(self) -> None:
        """Close the socket; what was sent still arrives."""
        self.socket.close()


class Silence:
    """For how long nothing was heard, by the clock of whoever listens, while it could have heard something.

    A listener that was stopped, or got no processor, heard nothing all that time: that tells nothing of the other.
    """

    def __init__(self, *, step_limit_s: float) -> None:
        self._step_limit_s = step_limit_s
        self.s = 0.0

    def pass_by(self, passed_s: float) -> None:
        """Let time pass without a word; of one step, only so much counts as could have been listened to."""
        self.s += min(passed_s, self._step_limit_s)

    def end(self) -> None:
        """Something was heard."""
        self.s = 0.0


__all__ = ["Line", "NotAPeerError", "Silence"]
