"""The Slurm engine under test on the tests' own cluster: a root of its own, and no job left behind."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import proc, wire
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.shelf import Shelf
from airflow_llmsched.domain.gang import GangHandle, GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.engines.slurm.client import SlurmCli
from airflow_llmsched.engines.slurm.engine import SlurmEngine
from airflow_llmsched.engines.slurm.options import SlurmOptions
from airflow_llmsched.engines.slurm.records import ENVIRONMENT
from airflow_llmsched.engines.slurm.runner import Completed, LocalRunner
from airflow_llmsched.testing.engine_contract import EngineHarness, RankScript
from tests.support.at_once import at_once
from tests.support.local_engine import BEHAVE, with_behaviour
from tests.support.slurm_cluster import SlurmCluster
from tests.support.waiting import wait_until

_CHECKOUT = Path(__file__).resolve().parent.parent.parent
_PATIENCE = 4.0
"""How much longer than an engine's limits this one may take: a scheduler and twelve daemons share two cores."""


class SlurmHarness(EngineHarness):
    """A fresh Slurm engine on the four nodes of 2 slots."""

    engine: SlurmEngine

    def __init__(self, cluster: SlurmCluster, **options: Any) -> None:
        self.cluster = cluster
        self.root = cluster.shared / uuid.uuid4().hex
        self.root.mkdir()
        self.options: dict[str, Any] = {
            "root": str(self.root),
            "python": str(python_for(cluster)),
            "slots_per_node": 2,
            "gres": "gpu:a100",
            "partition": "small",
            "vanish_grace_s": 10.0,
            **options,
        }
        self.engine = self.reopened()
        self._threads: list[threading.Thread] = []

    def reopened(self, *, spy: list[str] | None = None, forgets: bool = False) -> SlurmEngine:
        """Return the engine as another process would open it; names of commands that it runs are added to ``spy``.

        With ``forgets``, the controller has forgotten every job, as it does minutes after each end.
        """
        runner = _SpiedRunner(LocalRunner(environment={**ENVIRONMENT, **self.cluster.environment}), spy, forgets)
        client = SlurmCli(runner=runner, completion_file=str(self.cluster.completion_file))
        return SlurmEngine(options=SlurmOptions.from_json(self.options), client=client, shelf=Shelf(self.root))

    def with_scripts(self, gang: GangSpec, scripts: Sequence[RankScript]) -> GangSpec:
        return with_behaviour(gang, scripts)

    def with_broken_command(self, gang: GangSpec) -> GangSpec:
        return replace(gang, command=("/nowhere/no such program $(false)",))

    def channel_root(self, key: AttemptKey) -> str:
        return str(self.root / "channel" / key.name)

    def advance_until(self, predicate: Callable[[], bool], limit_s: float) -> None:
        wait_until(predicate, _PATIENCE * limit_s, poll_s=0.1)

    def now_s(self) -> float:
        return time.time()

    def num_live_ranks(self, handle: GangHandle) -> int:
        return sum(1 for process in self.processes(handle) if str(BEHAVE) in _argv(process))

    def preempt(self, node: NodeId, *, grace_s: float, return_after_s: float) -> None:
        raise NotImplementedError

    def lose(self, handle: GangHandle, node: NodeId) -> None:
        proc.end_all(lambda: self.processes(handle, node), grace_s=0.0)

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return at_once(calls)

    def gang(self, name: str) -> GangDir:
        """Return an attempt's folder."""
        return GangDir(self.root / "gangs" / name)

    def job_id(self, handle: GangHandle) -> str:
        """Return the job that runs the gang, once one does."""
        return str(json.loads(self.gang(handle.native_id).job.read_text())["job_id"])

    def processes(self, handle: GangHandle, node: str | None = None) -> list[proc.Process]:
        """Return every live process of a gang on its nodes, supervisors included."""
        marks = {wire.ATTEMPT_NAME: handle.native_id, **({} if node is None else {wire.NODE: node})}
        return proc.marked(marks)

    def close(self) -> None:
        """End the jobs that the test left: what waits at once, what runs through its agents, the rest the hard way."""
        for thread in self._threads:
            thread.join()
        shelf = Shelf(self.root)
        for name in shelf.names():
            shelf.stop(name=name, grace_s=0.0)
        self.cluster.call("scancel", "--user=root", "--state=PENDING")
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.cluster.call("squeue", "--noheader").strip(), 4.0, poll_s=0.1)
        self.cluster.clear()


class _SpiedRunner:
    def __init__(self, runner: LocalRunner, spy: list[str] | None, forgets: bool) -> None:
        self._runner = runner
        self._spy = spy
        self._forgets = forgets

    def run(self, argv: Sequence[str], *, stdin: str = "", limit_s: float) -> Completed:
        if self._spy is not None:
            self._spy.append(argv[0])
        if self._forgets and argv[0] == "squeue":
            return Completed(exit_code=0, stdout="", stderr="")
        return self._runner.run(argv, stdin=stdin, limit_s=limit_s)


def python_for(cluster: SlurmCluster) -> Path:
    """Return a Python that has this checkout's package, whatever environment Slurm gives it."""
    path = cluster.shared / "python"
    if not path.exists():
        partial = path.with_name(uuid.uuid4().hex)
        partial.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(_CHECKOUT))} exec {sys.executable} "$@"\n')
        partial.chmod(0o755)
        partial.rename(path)
    return path


def _argv(process: proc.Process) -> list[str]:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")[:5]
    except OSError:
        return []
