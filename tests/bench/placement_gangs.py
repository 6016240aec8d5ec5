"""Part of ``make bench-placement``: how fast gangs are placed, and what a change of one node costs.

The stream of 15,000 gangs has the classes of Kueue's performance test of topology-aware scheduling
(https://github.com/kubernetes-sigs/kueue, test/performance/scheduler/configs/tas/generator.yaml): thirty queues with
350 small, 100 medium and 50 large workloads each, a third of a class required to be in one rack, the others preferring
it (there a third is spread evenly over racks). A pod of theirs asks for some of a node's CPUs; here it is one of its
eight accelerators.
"""

from __future__ import annotations

import argparse
import heapq
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NotPlaced, PlacementProblem
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.placement.fleet_index import FleetIndex
from airflow_llmsched.registry import AdapterGroup, load
from airflow_llmsched.units import GIB, KIB
from tests.bench.rows import Row

SLOTS_PER_NODE = 8
LARGE_LAYOUT = ParallelLayout(dp=128, tp=8, pp=16, zero_stage=1, num_micro_batches=32)
LARGE_FLEET = (6, 16, 16, 8)
"""Pods, blocks, racks and nodes, each in one of the former: 12,288 nodes."""
NUM_QUEUES = 30
CPU = "by its processor time"
"""What the figure would be if nobody else used the machine."""
PUBLISHED_PER_S = 37.4
"""Kueue's published run, with its pacing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadClass:
    """Workloads of one class and queue: ``num_ranks`` pods each, for ``run_s``, one every ``every_s``."""

    count: int
    num_ranks: int
    every_s: float
    run_s: float
    required: bool = False


CLASSES = tuple(
    WorkloadClass(count=count, num_ranks=num_ranks, every_s=every_s, run_s=run_s, required=at == 0)
    for counts, num_ranks, every_s, run_s in (
        ((120, 120, 110), 2, 0.1, 0.2),
        ((34, 33, 33), 4, 0.5, 0.5),
        ((17, 17, 16), 8, 1.2, 1.0),
    )
    for at, count in enumerate(counts)
)


def tree_of(sizes: tuple[int, ...], levels: tuple[str, ...], *, busy_ratio: float = 0.0, seed: int = 0) -> TopologyTree:
    """Return a regular tree of nodes with eight slots, of which some are wholly taken, drawn at random."""
    shape = np.indices(sizes).reshape(len(sizes), -1).T
    busy_N = np.random.default_rng(seed).random(len(shape)) < busy_ratio
    nodes = tuple(
        TopologyNode(
            id=NodeId(f"n{number:06d}"),
            path=tuple(f"{level}{part:03d}" for level, part in zip(levels, place[:-1].tolist(), strict=True)),
            shape="node-of-eight",
            num_slots=SLOTS_PER_NODE,
            num_free_slots=0 if busy else SLOTS_PER_NODE,
        )
        for number, (place, busy) in enumerate(zip(shape, busy_N.tolist(), strict=True))
    )
    return TopologyTree(levels=levels, nodes=nodes)


def large_tree(seed: int) -> TopologyTree:
    """Return 98,304 accelerators below three tiers of switches, 40% of the nodes taken."""
    return tree_of(LARGE_FLEET, ("pod", "block", "rack"), busy_ratio=0.4, seed=seed)


def measured_large(*, solver: str, seed: int, num_runs: int = 3) -> list[Row]:
    """Place 16,384 ranks in processes of their own, which do nothing else; the fastest counts, and the largest."""
    command = [sys.executable, "-m", "tests.bench.placement_gangs", "--solver", solver, "--seed", str(seed)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(num_runs)]
    name = f"gang of {LARGE_LAYOUT.world_size} on {SLOTS_PER_NODE * int(np.prod(LARGE_FLEET))}, 40% busy"
    seconds = min(run["place_s"] for run in runs)
    rss_bytes = max(run["peak_rss_bytes"] for run in runs)
    before_bytes = max(run["rss_before_bytes"] for run in runs)
    return [
        Row(
            name=name,
            value=seconds,
            unit="s",
            below=1.0,
            reference={"slowest": max(run["place_s"] for run in runs), CPU: min(run["cpu_s"] for run in runs)},
        ),
        Row(
            name="peak memory of its process",
            value=rss_bytes / GIB,
            unit="GiB",
            below=1.0,
            reference={"before it is placed": before_bytes / GIB},
        ),
    ]


def placed_large(solver: str, seed: int) -> dict[str, float]:
    """Place the large gang once, in this process, and say what it took. Raises ``RuntimeError`` if it is refused."""
    placing = load(AdapterGroup.PLACEMENT_SOLVERS, solver)()
    problem = PlacementProblem(layout=LARGE_LAYOUT, tree=large_tree(seed))
    before_bytes = _peak_rss_bytes()
    start_s, cpu_start_s = time.perf_counter(), time.process_time()
    result = placing.place(problem, time_limit_s=1.0, seed=seed)
    place_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_start_s
    if isinstance(result, NotPlaced):
        raise RuntimeError(result.summary)  # noqa: TRY004 - no wrong type, but a fleet without room
    return {"place_s": place_s, "cpu_s": cpu_s, "peak_rss_bytes": _peak_rss_bytes(), "rss_before_bytes": before_bytes}


def _peak_rss_bytes() -> int:
    """Return the most memory that this program held; ``ru_maxrss`` would count the one that started it too."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * KIB


def arrivals(seed: int, *, num_queues: int = NUM_QUEUES) -> list[tuple[float, WorkloadClass]]:
    """Return when each workload of all queues comes: evenly spaced in its class, from a moment drawn by ``seed``."""
    rng = np.random.default_rng(seed)
    coming = [
        (float(rng.random() * each.every_s) + number * each.every_s, each)
        for _ in range(num_queues)
        for each in CLASSES
        for number in range(each.count)
    ]
    return sorted(coming, key=lambda pair: pair[0])


def stream(
    coming: list[tuple[float, WorkloadClass]], place: Callable[[WorkloadClass], object], leave: Callable[[object], None]
) -> None:
    """Let each workload come and, ``run_s`` later, leave, in order of time."""
    running: list[tuple[float, int, object]] = []
    for number, (now_s, workload) in enumerate(coming):
        while running and running[0][0] <= now_s:
            leave(heapq.heappop(running)[2])
        heapq.heappush(running, (now_s + workload.run_s, number, place(workload)))


def measured_stream(*, seed: int, num_queues: int = NUM_QUEUES, num_racks: int = 10) -> Row:
    """Place and release every gang of the stream, one after the other as they come. A refused one is a failure."""
    tree = tree_of((1, num_racks, 64), ("block", "rack"))
    index, solver = FleetIndex(tree), FleetSolver()
    problems = {
        each: PlacementProblem(
            layout=ParallelLayout(dp=each.num_ranks),
            tree=tree,
            required_level="rack" if each.required else None,
            preferred_level=None if each.required else "rack",
        )
        for each in CLASSES
    }
    refused = 0

    def place(workload: WorkloadClass) -> object:
        nonlocal refused
        result = solver.place_in(index, problems[workload], time_limit_s=0.0, seed=seed)
        if isinstance(result, NotPlaced):
            refused += 1
            return None
        index.take(result.placement)
        return result.placement

    coming = arrivals(seed, num_queues=num_queues)
    start_s, cpu_start_s = time.perf_counter(), time.process_time()
    stream(coming, place, lambda held: None if held is None else index.give_back(held))
    took_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_start_s
    num_placed = len(coming) - refused
    return Row(
        name=f"{len(coming)} gangs arriving on {len(tree.nodes)} nodes",
        value=num_placed / took_s,
        unit="placed/s",
        above=2000.0,
        reference={"Kueue's published run": PUBLISHED_PER_S, CPU: num_placed / cpu_s, "refused": refused},
    )


def measured_update(*, seed: int, sizes: tuple[int, ...] = LARGE_FLEET, num_updates: int = 1000) -> Row:
    """Change one node after the other, each update with the table that the next gang is placed on."""
    tree = tree_of(sizes, ("pod", "block", "rack"), busy_ratio=0.4, seed=seed)
    index = FleetIndex(tree)
    times_s = []
    for node in _changed(tree, seed, num_updates):
        start_s = time.perf_counter()
        index.update(node)
        index.table(group_size=1)
        times_s.append(time.perf_counter() - start_s)
    return Row(
        name=f"update after one node change at {len(tree.nodes)} nodes, with a new table",
        value=1e3 * float(np.median(times_s)),
        unit="ms",
        below=5.0,
        reference={"95% are below": 1e3 * float(np.quantile(times_s, 0.95))},
    )


def _changed(tree: TopologyTree, seed: int, count: int) -> Iterator[TopologyNode]:
    rng = np.random.default_rng(seed)
    for at in rng.integers(0, len(tree.nodes), size=count).tolist():
        yield replace(tree.nodes[at], num_free_slots=int(rng.integers(0, SLOTS_PER_NODE + 1)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=placed_large.__doc__)
    parser.add_argument("--solver", required=True)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(placed_large(given.solver, given.seed)))
