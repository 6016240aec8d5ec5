"""The port at which the ranks of a gang meet: free, checked, and kept from others until torch binds it.

The kernel is the lock. The port is bound here without SO_REUSEADDR, which fails if anyone at all has it, and held
without listening; only then is SO_REUSEADDR set, which lets the rendezvous store (it sets that option as well) bind and
listen on the same port, while it stays out of reach of whoever asks for a free one. Two launches at once can never pick
the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

_FIRST_PORT = 20_000
_NUM_PORTS = 12_000
"""Below the kernel's range for outgoing connections (32768 on), none of which can then be in the way."""


LOOPBACK = "127.0.0.1"


class Meeting(NamedTuple):
    """Where the ranks of a gang meet: the address of its first node as the others reach it, and a port held there."""

    host: str
    port: int

    @property
    def endpoint(self) -> str:
        """``host:port``; an IPv6 address has brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@contextlib.contextmanager
def hold_port() -> Iterator[int]:
    """Hold a free TCP port. Raises ``OSError`` when none is free."""
    with hold() as held:
        yield held.getsockname()[1]


@contextlib.contextmanager
def hold() -> Iterator[socket.socket]:
    """Hold a socket bound to a free TCP port of every address of this machine. Raises ``OSError`` when none is free."""
    start = int.from_bytes(os.urandom(4), "big")
    for step in range(_NUM_PORTS):
        port = _FIRST_PORT + (start + step) % _NUM_PORTS
        held = _try_hold(port)
        if held is not None:
            with held:
                yield held
            return
    raise OSError(f"no free port between {_FIRST_PORT} and {_FIRST_PORT + _NUM_PORTS}")


@contextlib.contextmanager
def hold_ports(num_ports: int) -> Iterator[list[int]]:
    """Hold so many free TCP ports. Raises ``OSError`` when there are too few."""
    with contextlib.ExitStack() as held:
        yield [held.enter_context(hold_port()) for _ in range(num_ports)]


def _try_hold(port: int) -> socket.socket | None:
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104  (never listens)
        try:
            held = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a kernel without IPv6
        try:
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # one socket stands for both families
            held.bind((address, port))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError as error:
            held.close()
            if family == socket.AF_INET6 and not _is_taken(error):
                continue  # IPv6 switched off
            return None
        return held
    return None


def _is_taken(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EACCES)
