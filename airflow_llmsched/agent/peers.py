"""What one node's supervisor sees of the gang's other nodes and tells them; and the form for nodes of one machine.

Nodes of one machine see each other through the attempt's directory and through /proc. Nodes on machines of their own
talk: ``agent.peer_host`` on the first of them, ``agent.peer_guest`` on the others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.meeting import LOOPBACK, Meeting
from airflow_llmsched.agent.spool import create_json, read_json, write_json
from airflow_llmsched.agent.watch import TERMINATED, Peer

BEGIN_AFTER_S = 0.1
"""From when the last rank stands ready to when all begin: time for the word to reach every wrapper of a busy node."""


class Heard(NamedTuple):
    """What the others have said so far, each as ``Peers`` has it."""

    others: Mapping[str, Peer] = {}
    notices: Mapping[str, float] = {}
    stop: Mapping[str, Any] | None = None
    abort: Mapping[str, Any] | None = None


class Peers(Protocol):
    """One node's sight of the others, and its voice among them. Methods that touch files raise ``OSError``."""

    def meeting(self) -> Meeting | None:
        """Return where the ranks meet, once every node is there to start its own; None before."""

    def beginning(self) -> float | None:
        """Return when all ranks begin (seconds of this machine's monotonic clock); None: not all stand ready yet."""

    def ports(self) -> Mapping[str, Sequence[int]]:
        """Return the ports that each node's supervisor holds for its members; complete once there is a meeting."""

    def daemon(self) -> list[str] | None:
        """Return what the first node's launcher asks this node to run for it, or None."""

    def others(self) -> Mapping[str, Peer]:
        """Return what is known of the others, by node. Raises ``RuntimeError`` when that can no longer be known."""

    def is_watched(self) -> bool:
        """Whether another node sees all of them, and so watches over the start limit."""

    def ahead_s(self) -> float:
        """Return by how much this node's clock is ahead of the first node's."""

    def notices(self) -> Mapping[str, float]:
        """Return when the platform takes a node, by this node's clock (Unix seconds); for announced nodes only."""

    def abort(self) -> Mapping[str, Any] | None:
        """Return why some node gave the gang up, or None."""

    def stop(self) -> Mapping[str, Any] | None:
        """Return the engine's order to stop, with its ``grace_s``, or None."""

    def armed(self, *, at_s: float) -> None:
        """Say that all ranks of this node stand ready."""

    def started(self, *, at_s: float) -> None:
        """Say that all ranks of this node have started."""

    def done(self, *, at_s: float) -> None:
        """Say that all ranks of this node have exited 0."""

    def announce(self, abort: Mapping[str, Any]) -> None:
        """Say why this node gives the gang up. Who said so first is kept."""

    def leave(self, outcome: str) -> None:
        """Say that this node ends now, and how."""

    def close(self, *, limit_s: float) -> None:
        """Wait until the others know, at most ``limit_s``; nothing is asked or told after that."""


class FilePeers:
    """``Peers`` on one machine: every node's records are in one directory, every supervisor in one /proc.

    ``address`` is what launchers know this node by; ``helper_nodes`` have no trainers.
    """

    def __init__(
        self,
        gang: GangDir,
        *,
        nodes: Sequence[str],
        node: str,
        address: str = "",
        helper_nodes: frozenset[str] = frozenset(),
    ) -> None:
        self.node = node
        self._address = address
        self._helper_nodes = helper_nodes
        self._gang = gang
        self._nodes = nodes
        self._own = gang.node(node)
        self._others = {name: gang.node(name) for name in nodes if name != node}
        self._supervisors: dict[str, proc.Process] = {}
        self._asked: dict[str, list[str]] = {}

    def meeting(self) -> Meeting | None:
        """Once the engine says go: by then every node has its supervisor."""
        port = self._gang.node(self._nodes[0]).port() if self._gang.go.exists() else None
        return None if port is None else Meeting(LOOPBACK, port)

    def beginning(self) -> float | None:
        """Look at every node's record of it: all see the same, and so name the same moment."""
        armed = [read_json(node.armed) for node in (self._own, *self._others.values())]
        ready_s = [float(record["at_s"]) for record in armed if record is not None]
        if len(ready_s) < len(armed):
            return None
        return time.monotonic() + max(ready_s) + BEGIN_AFTER_S - time.time()

    def ports(self) -> dict[str, list[int]]:
        """Read every claim."""
        return {node: self._gang.node(node).ports() for node in self._nodes}

    def daemon(self) -> list[str] | None:
        """Look into the first node's part."""
        return self.asked().get(self._address)

    def asked(self) -> dict[str, list[str]]:
        """Return all that the first node's launcher asks for, by the address of the node that is to run it."""
        self._asked = self._gang.node(self._nodes[0]).daemons(self._asked)
        return self._asked

    def others(self) -> dict[str, Peer]:
        """Look at their records and processes."""
        return {name: self._peer(name) for name in self._others}

    def is_watched(self) -> bool:
        """Each sees all."""
        return False

    def ahead_s(self) -> float:
        """One machine, one clock."""
        return 0.0

    def notices(self) -> dict[str, float]:
        """Read them."""
        return self._gang.notices(self._nodes)

    def abort(self) -> dict[str, Any] | None:
        """Read it."""
        return read_json(self._gang.abort)

    def stop(self) -> dict[str, Any] | None:
        """Read it."""
        return read_json(self._gang.stop)

    def armed(self, *, at_s: float) -> None:
        """Write it down."""
        write_json(self._own.armed, {"v": wire.VERSION, "at_s": at_s})

    def started(self, *, at_s: float) -> None:
        """Write it down."""
        write_json(self._own.started, {"v": wire.VERSION, "at_s": at_s})

    def done(self, *, at_s: float) -> None:
        """Write it down."""
        write_json(self._own.done, {"v": wire.VERSION, "at_s": at_s})

    def announce(self, abort: Mapping[str, Any]) -> None:
        """Write it down, though the disk be full."""
        self._own.write_last(self._gang.abort, dict(abort), once=True)

    def note_stop(self, stop: Mapping[str, Any]) -> None:
        """Write down an order to stop that reached another node."""
        create_json(self._gang.stop, dict(stop))

    def leave(self, outcome: str) -> None:
        """The exit record will say it."""

    def close(self, *, limit_s: float) -> None:
        """Records stay."""

    def _peer(self, name: str) -> Peer:
        peer = self._others[name]
        if name not in self._supervisors:
            supervisor = peer.supervisor()
            if supervisor is None:
                return Peer()  # not there yet: the start limit watches over that
            self._supervisors[name] = supervisor
        is_alive = proc.alive(self._supervisors[name])
        # Looked at after the process, so that an orderly end is never taken for a disappearance.
        end = None if is_alive else read_json(peer.exit)
        is_done = peer.done.exists()
        return Peer(
            here=True,
            armed=peer.armed.exists(),
            started=peer.started.exists(),
            done=is_done,
            ending=is_done and name not in self._helper_nodes,
            gone=not is_alive and end is None,
            terminated=end is not None and end["outcome"] == TERMINATED,
        )
