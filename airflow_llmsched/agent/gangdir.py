"""The directory of one attempt: where its files are and who writes which. Engines and node supervisors share it.

The engine writes request.json and go.json at submit and stop.json at ``stop``; the first supervisor that gives the gang
up writes abort.json. Where nodes are machines of their own, token.json is what their supervisors know one another by.
An attempt given up before it was submitted has abandoned.json and nothing else. Under ``nodes/<node>/`` a supervisor
claims the node (claim.json), records that all its ranks stand ready (armed.json), have started (started.json) or exited
0 (done.json), which processes below it carry no marks (unmarked.json), and last of all how the ranks ended (exit.json).
notice.json is the platform's.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.proc import Census, Process, alive
from airflow_llmsched.agent.spool import create_json, read_json, write_json

_RESERVE_BYTES = 64 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)


class NodeDir:
    """One node's part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spool = path / wire.SPOOL_DIR
        self.logs = path / wire.LOGS
        self.launcher_log = path / "launcher.log"
        self.supervisor_log = path / "supervisor.log"
        self.armed = path / "armed.json"
        self.started = path / "started.json"
        self.done = path / "done.json"
        self.exit = path / "exit.json"
        self.notice = path / "notice.json"
        self.alive = path / "alive.json"
        self._unmarked = path / "unmarked.json"
        self._claim = path / "claim.json"
        self._daemons = path / wire.DAEMONS
        self._reserve = path / "reserve"

    def make(self) -> None:
        """Create the folders, and keep a little disk back so that the last words fit on a full one."""
        for folder in (self.spool, self.logs):
            folder.mkdir(parents=True)
        self._reserve.write_bytes(b"\0" * _RESERVE_BYTES)

    def claim(
        self,
        supervisor: Process,
        *,
        at_s: float,
        port: int | None = None,
        peers_port: int | None = None,
        ports: Sequence[int] = (),
    ) -> bool:
        """Make ``supervisor`` the node's only one, with the ports it holds; False when there is one already."""
        held = {"port": port, "peers_port": peers_port, "ports": list(ports)}
        claim = {"process": supervisor.text(), "at_s": at_s, **held}
        return create_json(self._claim, {"v": wire.VERSION, **claim})

    def is_claimed(self) -> bool:
        """Whether a supervisor has claimed the node."""
        return self._claim.exists()

    def port(self) -> int | None:
        """Return the port that the node's supervisor holds for the ranks to meet at, or None."""
        claim = read_json(self._claim)
        return None if claim is None else claim["port"]

    def peers_port(self) -> int | None:
        """Return the port at which the node's supervisor can be called by the others, or None."""
        claim = read_json(self._claim)
        return None if claim is None else claim.get("peers_port")

    def ports(self) -> list[int]:
        """Return the ports that the node's supervisor holds for members that others reach by themselves."""
        claim = read_json(self._claim)
        return [] if claim is None else list(claim.get("ports", ()))

    def supervisor(self) -> Process | None:
        """Return who claimed the node, or None."""
        claim = read_json(self._claim)
        return None if claim is None else Process.parse(claim["process"])

    def daemons(self, known: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Return the daemons that the node's launcher has asked for: argument lists by address of the node.

        Each is written once, so that those that are ``known`` are not read again.
        """
        new = {path.stem: read_json(path) for path in self._daemons.glob("*.json") if path.stem not in known}
        return {**known, **{address: found["argv"] for address, found in new.items() if found is not None}}

    def note_unmarked(self, processes: Sequence[Process]) -> None:
        """Record descendants without our marks, so that they can be ended though all above them was killed."""
        write_json(self._unmarked, {"v": wire.VERSION, "processes": [process.text() for process in processes]})

    def unmarked(self) -> list[Process]:
        """Return the live processes among those noted last."""
        noted = read_json(self._unmarked)
        processes = [] if noted is None else [Process.parse(text) for text in noted["processes"]]
        return [process for process in processes if alive(process)]

    def write_last(self, path: Path, value: dict[str, Any], *, once: bool = False) -> bool:
        """Write a record that must not be lost to a full disk: the reserve is given up for it."""
        try:
            return self._write(path, value, once=once)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self.release_reserve()
            return self._write(path, value, once=once)

    def release_reserve(self) -> None:
        """Give the reserve back to the disk."""
        with contextlib.suppress(FileNotFoundError):
            self._reserve.unlink()

    def _write(self, path: Path, value: dict[str, Any], *, once: bool) -> bool:
        if once:
            return create_json(path, value)
        write_json(path, value)
        return True


class GangDir:
    """The whole attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.request = path / "request.json"
        self.go = path / "go.json"
        self.abort = path / "abort.json"
        self.stop = path / "stop.json"
        self.token = path / "token.json"
        self.abandoned = path / "abandoned.json"
        self.submit_lock = path / "submit.lock"
        self.submit = path / "submit.json"
        self.job = path / "job.json"
        self.end = path / "end.json"

    def node(self, node: str) -> NodeDir:
        """Return one node's part."""
        return NodeDir(self.path / "nodes" / node)

    def marks(self, attempt_name: str, node: str) -> dict[str, str]:
        """Environment entries of one node's processes and no others. Only who clears its environment loses them.

        The spool's path keeps two deployments apart that use the same attempt name.
        """
        return {wire.ATTEMPT_NAME: attempt_name, wire.NODE: node, wire.SPOOL: str(self.node(node).spool)}

    def processes(
        self, attempt_name: str, node: str, *, census: Census | None = None, left_by: Process | None = None
    ) -> list[Process]:
        """Return one node's live processes: those that carry its marks, and those noted to carry none.

        They are counted now, or, for who asks about many, as ``Census.marked`` says.
        """
        found = (census or Census()).marked(self.marks(attempt_name, node), left_by=left_by)
        return [*found, *self.node(node).unmarked()]

    def notices(self, nodes: Sequence[str]) -> dict[str, float]:
        """Return the deadline (Unix seconds) of each announced loss, by node."""
        found = {}
        for node in nodes:
            notice = read_json(self.node(node).notice)
            if notice is not None:
                found[node] = float(notice["deadline_s"])
        return found


def is_full(error: OSError) -> bool:
    """Whether an error says that the disk or the quota is full."""
    return error.errno in _FULL
