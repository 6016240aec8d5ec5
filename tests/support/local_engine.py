"""The local engine under test: a root of its own, its ranks as tiny real processes, and nothing left behind."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import proc
from airflow_llmsched.domain.gang import GangHandle, GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.engines.local.client import LocalClient
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.testing.engine_contract import EngineHarness, RankScript
from tests.support.at_once import at_once
from tests.support.leftovers import left_of
from tests.support.waiting import wait_until

BEHAVE = Path(__file__).with_name("behave.py")


class LocalHarness(EngineHarness):
    """A fresh local engine of 2 nodes of 2 slots."""

    engine: LocalEngine

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.engine = LocalEngine(root=str(root / "engine"))
        self.client = LocalClient(root / "engine")
        self._threads: list[threading.Thread] = []

    def with_scripts(self, gang: GangSpec, scripts: Sequence[RankScript]) -> GangSpec:
        return with_behaviour(gang, scripts)

    def with_broken_command(self, gang: GangSpec) -> GangSpec:
        return replace(gang, command=("/nowhere/no such program $(false)",))

    def channel_root(self, key: AttemptKey) -> str:
        return str(self.root / "channel" / key.name)

    def advance_until(self, predicate: Callable[[], bool], limit_s: float) -> None:
        wait_until(predicate, limit_s)

    def now_s(self) -> float:
        return time.time()

    def num_live_ranks(self, handle: GangHandle) -> int:
        return sum(1 for process in self.processes(handle) if str(BEHAVE) in _argv(process))

    def preempt(self, node: NodeId, *, grace_s: float, return_after_s: float) -> None:
        thread = threading.Thread(
            target=self.engine.preempt, args=(node,), kwargs={"grace_s": grace_s, "return_after_s": return_after_s}
        )
        thread.start()
        self._threads.append(thread)

    def lose(self, handle: GangHandle, node: NodeId) -> None:
        proc.end_all(lambda: self.processes(handle, node), grace_s=0.0)

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return at_once(calls)

    def reopened(self) -> LocalEngine:
        return LocalEngine(root=str(self.root / "engine"))

    def processes(self, handle: GangHandle, node: str | None = None) -> list[proc.Process]:
        """Return every live process of a gang, supervisors included."""
        if not self.client.exists(handle.native_id):
            return []
        gang = self.client.gang(handle.native_id)
        nodes = [part["node"] for part in self.client.request(handle.native_id)["body"]["nodes"]]
        return [
            process
            for each in nodes
            if node in (None, each)
            for process in proc.marked(gang.marks(handle.native_id, each))
        ]

    def left(self, handle: GangHandle, node: str | None = None) -> list[proc.Process]:
        """Return what is left of a gang, or of its part on one node, that has ended by itself."""
        return left_of(self.processes(handle, node))

    def run_python(self, gang: GangSpec, program: str) -> GangSpec:
        """Return ``gang`` with a Python program for every rank."""
        path = self.root / f"{gang.key.name}.py"
        path.write_text(program)
        return replace(gang, command=(sys.executable, "-S", "-E", str(path)))

    def supervisor(self, handle: GangHandle, node: str) -> proc.Process:
        """Return the supervisor of one node."""
        supervisor = self.client.gang(handle.native_id).node(node).supervisor()
        assert supervisor is not None
        return supervisor

    def close(self) -> None:
        """End what the test left running."""
        for thread in self._threads:
            thread.join()
        for name in self.client.names():
            gang = self.client.gang(name)
            for node in ("n0", "n1"):
                marks = gang.marks(name, node)
                proc.end_all(lambda marks=marks: proc.marked(marks), grace_s=0.0)


def with_behaviour(gang: GangSpec, scripts: Sequence[RankScript]) -> GangSpec:
    """Return ``gang`` with a command that makes each rank do what its script says."""
    told = json.dumps([dataclasses.asdict(script) for script in scripts])
    return replace(gang, command=(sys.executable, "-S", "-E", str(BEHAVE), told))


def _argv(process: proc.Process) -> list[str]:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")[:5]
    except OSError:
        return []
