"""A gang over several machines, each with a directory of its own: real supervisors that talk to one another."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import proc
from airflow_llmsched.agent.gangdir import GangDir, NodeDir
from airflow_llmsched.agent.peer_open import new_token
from airflow_llmsched.agent.spool import LineReader, create_json, read_json, write_json
from tests.support.waiting import wait_until

LIMIT_S = 60.0
"""For whatever must happen in the end: far more than it takes on a busy machine."""


def python(program: str) -> list[str]:
    """Return the command that runs a program in an interpreter as small as it gets."""
    return [sys.executable, "-S", "-E", "-c", program]


class TalkingGang:
    """Nodes ``m0``, ``m1``, ... at 127.0.1.1, 127.0.1.2, ..., which ``within`` (argv) may put elsewhere."""

    def __init__(
        self,
        root: Path,
        command: Sequence[str],
        *,
        num_nodes: int = 3,
        ranks_per_node: int = 1,
        is_shared: bool = False,
        addresses: Sequence[str] = (),
        within: Sequence[Sequence[str]] = (),
        **changes: Any,
    ) -> None:
        self.name = f"ls-talk-{os.getpid()}-{time.monotonic_ns()}-g1-a1"
        self.nodes = [f"m{index}" for index in range(num_nodes)]
        self.within = dict(zip(self.nodes, within or [()] * num_nodes, strict=True))
        addresses = addresses or [f"127.0.1.{index + 1}" for index in range(num_nodes)]
        self.addresses = dict(zip(self.nodes, addresses, strict=True))
        self._root = root
        self._is_shared = is_shared
        body = {
            "launcher": "plain",
            "attempt_name": self.name,
            "run_key": "ls-talk",
            "generation": 1,
            "attempt": 1,
            "command": list(command),
            "environment": {},
            "layout": {"dp": num_nodes * ranks_per_node},
            "world_size": num_nodes * ranks_per_node,
            "nodes": [
                {
                    "node": node,
                    "ranks": list(range(index * ranks_per_node, (index + 1) * ranks_per_node)),
                    "slots": list(range(ranks_per_node)),
                    "address": self.addresses[node],
                }
                for index, node in enumerate(self.nodes)
            ],
            "channel_root": str(root / "channel"),
            "start_limit_s": 60.0,
            "grace_s": 0.5,
            "exit_grace_s": 30.0,
            "flush_interval_s": 0.2,
            "lease_s": None,
            **changes,
        }
        request = {"v": 1, "submitted_at_s": time.time(), "body": body}
        token = {"v": 1, "token": new_token()}
        for node in self.nodes:
            self.files(node).make()
            if not self.gang(node).request.exists():
                write_json(self.gang(node).request, request)
            if not is_shared:
                create_json(self.gang(node).token, token)

    def gang(self, node: str) -> GangDir:
        """Return the attempt's directory on a node's own disk, or on the one they share."""
        return GangDir(self._root / ("shared" if self._is_shared else node) / self.name)

    def files(self, node: str) -> NodeDir:
        return self.gang(node).node(node)

    def start(self, *nodes: str) -> None:
        """Start the supervisors of some nodes, or of all; each finds the first one as on its file system."""
        starting = [self._spawn(node) for node in nodes or self.nodes]
        assert [process.wait(LIMIT_S) for process in starting] == [0] * len(starting)
        if not self._is_shared:
            self.point(*(nodes or self.nodes))

    def point(self, *nodes: str) -> None:
        """Tell nodes where the first one listens, as an engine does that can reach each of them."""
        first = self.nodes[0]
        peers = {"host": self.addresses[first], "port": self.files(first).peers_port()}
        for node in nodes:
            create_json(self.gang(node).go, {"v": 1, "at_s": time.time(), "peers": peers})

    def _spawn(self, node: str) -> subprocess.Popen[bytes]:
        environ = {**os.environ, **self.gang(node).marks(self.name, node)}
        argv = [sys.executable, "-P", "-m", "airflow_llmsched.agent.supervisor", str(self.gang(node).path), node]
        with self.files(node).supervisor_log.open("ab") as log:
            return subprocess.Popen([*self.within[node], *argv], env=environ, stdout=log, stderr=log)

    def supervisor(self, node: str) -> proc.Process:
        found = self.files(node).supervisor()
        assert found is not None
        return found

    def wait_started(self) -> None:
        """Wait until every node has said that all its ranks have started."""
        wait_until(lambda: all(self.files(node).started.exists() for node in self.nodes), LIMIT_S)

    def end(self, node: str, *, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait for a node's last record, and for all its processes to be gone."""
        wait_until(self.files(node).exit.exists, limit_s)
        wait_until(lambda: self.processes(node) == [], LIMIT_S)
        record = read_json(self.files(node).exit)
        assert record is not None
        return record

    def ends(self, *, limit_s: float = LIMIT_S) -> dict[str, dict[str, Any]]:
        return {node: self.end(node, limit_s=limit_s) for node in self.nodes}

    def processes(self, node: str) -> list[proc.Process]:
        return proc.marked(self.gang(node).marks(self.name, node))

    def records(self, node: str, kind: str) -> list[dict[str, Any]]:
        """Return what the wrappers of a node's ranks wrote down."""
        found = []
        for path in sorted(self.files(node).spool.glob("rank-*.jsonl")):
            found += [record for record in LineReader(str(path)).read() if record["kind"] == kind]
        return found

    def log(self, node: str) -> str:
        return self.files(node).supervisor_log.read_text()

    def close(self) -> None:
        """End whatever is left of it."""
        proc.end_all(lambda: [each for node in self.nodes for each in self.processes(node)], grace_s=0.0)
