"""What one look at 1,000 gangs on Slurm costs us, on a real controller that has as many jobs.

The jobs are held in the queue, as a machine of two cores cannot run them; what squeue prints of them is told as running
on two nodes each, and their folders hold what agents of running gangs write. Our own CPU time counts, not squeue's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.proc import myself
from airflow_llmsched.agent.shelf import Shelf
from airflow_llmsched.agent.spool import write_json
from airflow_llmsched.domain.gang import GangHandle, GangPhase
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.engines.slurm.client import SlurmCli
from airflow_llmsched.engines.slurm.engine import SlurmEngine
from airflow_llmsched.engines.slurm.options import SlurmOptions
from airflow_llmsched.engines.slurm.records import ENVIRONMENT
from airflow_llmsched.engines.slurm.runner import Completed, LocalRunner
from tests.bench.rows import Row
from tests.support.slurm_cluster import SlurmCluster, slurm_cluster

_NODES = ("n1", "n2")
_AT_ONCE = 25
_BEGAN_S = 600.0
"""How long ago the gangs started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusCost:
    """Of each look: our CPU seconds (median and worst), how long it took, and Slurm's commands that it ran."""

    num_gangs: int
    cpu_s: float
    worst_cpu_s: float
    wall_s: float
    num_calls: float


def rows() -> list[Row]:
    """Return the figures of a benchmark's table."""
    cost = status_cost()
    return [
        Row(name="slurm: calls of one look at 1,000 gangs", value=cost.num_calls, below=1.5),
        Row(
            name="slurm: our CPU for one look",
            value=cost.cpu_s,
            unit="s",
            below=0.5,
            reference={"worst": cost.worst_cpu_s},
        ),
    ]


@dataclass
class _AsRunning:
    """A runner in whose answers the jobs that are held run, and which counts."""

    runner: LocalRunner
    calls: list[str] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, stdin: str = "", limit_s: float) -> Completed:
        self.calls.append(argv[0])
        done = self.runner.run(argv, stdin=stdin, limit_s=limit_s)
        text = done.stdout.replace("PENDING ", "RUNNING ")
        return Completed(exit_code=done.exit_code, stdout=text, stderr=done.stderr)


def status_cost(*, num_gangs: int = 1000, num_looks: int = 10) -> StatusCost:
    """Measure on a cluster of our own. Raises ``AssertionError`` unless every look saw every gang run."""
    with slurm_cluster() as cluster:
        root = cluster.shared / "bench"
        root.mkdir()
        handles = [_gang(root, number) for number in range(num_gangs)]
        _queue(cluster, root, handles)
        runner = _AsRunning(LocalRunner(environment={**ENVIRONMENT, **cluster.environment}))
        options = SlurmOptions(root=str(root), python="/usr/bin/python3", slots_per_node=8)
        engine = SlurmEngine(options=options, client=SlurmCli(runner=runner), shelf=Shelf(root))
        costs = [_timed(lambda: _look(engine, handles)) for _ in range(num_looks)]
    cpu_s = [cost[0] for cost in costs]
    return StatusCost(
        num_gangs=num_gangs,
        cpu_s=statistics.median(cpu_s),
        worst_cpu_s=max(cpu_s),
        wall_s=statistics.median(cost[1] for cost in costs),
        num_calls=len(runner.calls) / num_looks,
    )


def _look(engine: SlurmEngine, handles: Sequence[GangHandle]) -> None:
    seen = engine.poll(handles)
    assert len(seen) == len(handles)
    assert {status.phase for status in seen.values()} == {GangPhase.RUNNING}, next(iter(seen.values()))


def _timed(deed: Callable[[], None]) -> tuple[float, float]:
    cpu_s, wall_s = time.process_time(), time.monotonic()
    deed()
    return time.process_time() - cpu_s, time.monotonic() - wall_s


def _gang(root: Path, number: int) -> GangHandle:
    """Write what a running gang of two nodes has on disk."""
    key = AttemptKey(run=RunKey(f"ls-bench{number:05d}"), generation=1, attempt=1)
    now_s = time.time()
    Shelf(root).claim(
        name=key.name, submit={"channel_root": "/c", "origin": None, "wanted": dict.fromkeys(_NODES, 8)}, environment={}
    )
    gang = GangDir(root / "gangs" / key.name)
    write_json(gang.job, {"v": wire.VERSION, "job_id": str(number + 1), "restart": 0, "at_s": now_s})
    nodes = [
        {"node": node, "ranks": list(range(8 * index, 8 * index + 8)), "slots": list(range(8))}
        for index, node in enumerate(_NODES)
    ]
    body = {"nodes": nodes, "start_limit_s": 120.0, "grace_s": 10.0, "environment": {}}
    write_json(gang.request, {"v": wire.VERSION, "submitted_at_s": now_s - _BEGAN_S, "restart": 0, "body": body})
    write_json(gang.go, {"v": wire.VERSION, "at_s": now_s})
    for node in _NODES:
        files = gang.node(node)
        files.path.mkdir(parents=True)
        files.claim(myself(), at_s=now_s, port=None)
        write_json(files.started, {"v": wire.VERSION, "at_s": now_s})
        write_json(files.alive, {"v": wire.VERSION, "at_s": now_s})
    return GangHandle(engine="slurm", key=key, native_id=key.name)


def _queue(cluster: SlurmCluster, root: Path, handles: Sequence[GangHandle]) -> None:
    """Submit the jobs, one after the other, so that their numbers are those in the folders."""
    names = root / "names"
    names.write_text("".join(f"{handle.native_id}\n" for handle in handles))
    options = "--hold --partition=low --nodes=2 --gres=gpu:h100:8 --output=/dev/null --wrap=true"
    for first in range(0, len(handles), _AT_ONCE):
        part = f"sed -n '{first + 1},{first + _AT_ONCE}p' {names}"
        cluster.call("bash", "-c", f"{part} | while read name; do sbatch --job-name=$name {options}; done")
