"""The talk between supervisors without the supervisors: hosts and guests in one process, on 127.0.0.1."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.meeting import Meeting, hold
from airflow_llmsched.agent.peer_guest import HostAddress, PeerGuest
from airflow_llmsched.agent.peer_host import PeerHost
from airflow_llmsched.agent.peer_talk import TalkingPeers
from airflow_llmsched.agent.peers import FilePeers

TOKEN = b"t" * 32
MEETING = Meeting("127.0.0.1", 20123)
LIMIT_S = 30.0
"""The peers' own limit, unless a test is about it: no busy machine is silent for that long."""


class Talk:
    """The nodes ``m0`` (the host), ``m1``, ... of one gang, each with a directory of its own."""

    def __init__(
        self,
        root: Path,
        *,
        num_nodes: int = 3,
        limit_s: float = LIMIT_S,
        wake: Any = None,
        ports: Mapping[str, Sequence[int]] | None = None,
        helper_nodes: frozenset[str] = frozenset(),
    ) -> None:
        self._ports = ports or {}
        self._helper_nodes = helper_nodes
        self.nodes = [f"m{index}" for index in range(num_nodes)]
        self._root = root
        self._limit_s = limit_s
        self._wake = wake or (lambda: None)
        self._stack = contextlib.ExitStack()
        self.listener = self._stack.enter_context(hold())
        self.port: int = self.listener.getsockname()[1]
        for node in self.nodes:
            self.gang(node).node(node).make()

    def gang(self, node: str) -> GangDir:
        return GangDir(self._root / node / "g")

    def host(self) -> PeerHost:
        host = PeerHost(
            self._files("m0"),
            gang="g",
            token=TOKEN,
            guests=self.nodes[1:],
            meeting=MEETING,
            listener=self.listener,
            limit_s=self._limit_s,
            wake=self._wake,
            ports=self._ports.get("m0", ()),
            addresses={node: self._address(node) for node in self.nodes},
            helper_nodes=self._helper_nodes,
        )
        return self._kept(host)

    def guest(self, node: str, *, port: int | None = None, token: bytes = TOKEN) -> PeerGuest:
        address = HostAddress("127.0.0.1", port or self.port, token)
        return self.guest_that_finds(node, lambda: address)

    def guest_that_finds(self, node: str, find: Callable[[], HostAddress | None]) -> PeerGuest:
        guest = PeerGuest(
            self._files(node),
            gang="g",
            host="m0",
            find=find,
            limit_s=self._limit_s,
            wake=self._wake,
            ports=self._ports.get(node, ()),
        )
        return self._kept(guest)

    def all(self) -> list[TalkingPeers]:
        """Return the ends of the whole gang, host first."""
        return [self.host(), *(self.guest(node) for node in self.nodes[1:])]

    def close(self) -> None:
        self._stack.close()

    def _files(self, node: str) -> FilePeers:
        return FilePeers(self.gang(node), nodes=[node], node=node, address=self._address(node))

    def _address(self, node: str) -> str:
        return f"10.0.0.{self.nodes.index(node)}"

    def _kept(self, peers: Any) -> Any:
        self._stack.callback(peers.close, limit_s=0.0)
        return peers


class Link:
    """A way to the host that can be cut: what a connection through it says arrives only while it is whole."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.is_whole = threading.Event()
        self.is_whole.set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.is_whole.wait()
                target.sendall(data)
        for end in (source, target):
            end.close()

    def close(self) -> None:
        self._server.close()
        self.is_whole.set()


def all_see(condition: Callable[[Any], Any], ends: Sequence[Any]) -> Callable[[], bool]:
    """Return whether every end sees something, once they look."""

    def do_they() -> bool:
        seen = [condition(end) for end in ends]  # each looks, whatever another sees
        return all(seen)

    return do_they
