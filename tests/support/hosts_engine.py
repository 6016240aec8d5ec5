"""The hosts engine under test on real machines (``ssh_hosts``), each test in folders of its own on them."""

from __future__ import annotations

import dataclasses
import json
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.domain.gang import GangHandle, GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.engines.hosts.engine import HostsEngine
from airflow_llmsched.testing.engine_contract import EngineHarness, RankScript
from tests.support.at_once import at_once
from tests.support.leftovers import left_of
from tests.support.ssh_hosts import SshHosts
from tests.support.waiting import wait_until

BEHAVE = Path(__file__).with_name("behave.py")


class HostsHarness(EngineHarness):
    """A fresh engine of the first ``num_hosts`` machines, 2 slots each."""

    engine: HostsEngine

    def __init__(self, root: Path, machines: SshHosts, *, num_hosts: int = 2, slots: int = 2, **options: Any) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.machines = machines
        self.names = machines.names[:num_hosts]
        self.folder = machines.disk / secrets.token_hex(4)
        for name in self.names:
            self._share_agent(name)
        self.options: dict[str, Any] = {
            "root": str(root / "engine"),
            "hosts": machines.options(self.names, slots=slots),
            "user": "root",
            "key": str(machines.key),
            "known_hosts": str(machines.known_hosts),
            "folder": str(self.folder),
            "python": sys.executable,
            **options,
        }
        self.engine = HostsEngine(**self.options)

    def with_scripts(self, gang: GangSpec, scripts: Sequence[RankScript]) -> GangSpec:
        told = json.dumps([dataclasses.asdict(script) for script in scripts])
        return replace(gang, command=(sys.executable, "-S", "-E", str(BEHAVE), told))

    def with_broken_command(self, gang: GangSpec) -> GangSpec:
        return replace(gang, command=("/nowhere/no such program $(false)",))

    def channel_root(self, key: AttemptKey) -> str:
        return str(self.root / "channel" / key.name)

    def advance_until(self, predicate: Callable[[], bool], limit_s: float) -> None:
        wait_until(predicate, 4 * limit_s, poll_s=0.2)  # all machines share the processors of one

    def now_s(self) -> float:
        return time.time()

    def num_live_ranks(self, handle: GangHandle) -> int:
        return sum(1 for process in self.processes(handle) if str(BEHAVE) in _argv(process))

    def preempt(self, node: NodeId, *, grace_s: float, return_after_s: float) -> None:
        raise AssertionError("whoever rents a machine out takes it; this engine cannot")

    def lose(self, handle: GangHandle, node: NodeId) -> None:
        proc.end_all(lambda: self.processes(handle, node), grace_s=0.0)

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return at_once(calls)

    def reopened(self) -> HostsEngine:
        return HostsEngine(**self.options)

    def processes(self, handle: GangHandle, node: str | None = None) -> list[proc.Process]:
        """Return every live process of a gang, supervisors included, as this machine sees them all."""
        gang = GangDir(self.folder / "gangs" / handle.native_id)
        census = proc.Census()
        return [
            process
            for each in self.names
            if node in (None, each)
            for process in census.marked(gang.marks(handle.native_id, each))
        ]

    def left(self, handle: GangHandle) -> list[proc.Process]:
        """Return what is left of a gang that has ended by itself."""
        return left_of(self.processes(handle))

    def dir_on(self, name: str, handle: GangHandle) -> GangDir:
        """Return an attempt's directory on one machine, as seen from here."""
        inside = self.folder.relative_to(self.machines.disk)
        return GangDir(self.machines.disk_of(name) / inside / "gangs" / handle.native_id)

    def forget_agent(self) -> None:
        """Have no machine hold what is shipped to it."""
        for name in self.names:
            agent = self.machines.disk_of(name) / self.folder.name / "agent"
            agent.unlink() if agent.is_symlink() else shutil.rmtree(agent, ignore_errors=True)

    def _share_agent(self, name: str) -> None:
        """Let the agent be shipped once to a machine, not once for each test."""
        folder = self.machines.disk_of(name) / self.folder.name
        folder.mkdir(mode=0o700)
        (self.machines.disk_of(name) / "agent").mkdir(exist_ok=True)
        (folder / "agent").symlink_to(self.machines.disk / "agent")

    def close(self) -> None:
        """End what the test left running."""
        proc.end_all(self._left, grace_s=0.0)

    def _left(self) -> list[proc.Process]:
        environments = proc.Census().environments(wire.SPOOL)
        return [each for each, told in environments.items() if told[wire.SPOOL].startswith(f"{self.folder}/")]


def _argv(process: proc.Process) -> list[str]:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")[:5]
    except OSError:
        return []
