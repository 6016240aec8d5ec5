"""``make bench-placement``: how well and how fast gangs are placed, beside Slurm, Kueue, Volcano and chance.

Step times are judged by a flow simulator that shares no code with the planner (``placement_judge``). Needs the recorded
jobs and the topology in ``../shared/data``. Writes ``bench/results/placement.json``; exits 1 naming what was missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_llmsched.registry import AdapterGroup, load
from tests.bench import placement_exact
from tests.bench.placement_gangs import measured_large, measured_stream, measured_update
from tests.bench.placement_judge.mixes import DATA
from tests.bench.placement_queue import measured_queue
from tests.bench.placement_steps import Terms, measured_steps
from tests.bench.rows import RESULTS, Row, conclude

BESIDE = ("bestfit", "balanced")
"""Solvers of ours whose distance from the optimum is shown beside: how much there is to gain."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solver", default="fleet", help="which of ours: a name of airflow_llmsched.placement_solvers")
    parser.add_argument("--parts", nargs="*", default=["speed", "exact", "queue", "steps"], help="which to measure")
    parser.add_argument("--instances", type=int, default=500, help="random problems that the exact solver solves too")
    parser.add_argument("--arrivals", type=int, default=1000, help="gangs that arrive in each mix")
    parser.add_argument("--seeds", type=int, default=3, help="stretches of each record that are replayed")
    parser.add_argument("--looks", type=int, default=2, help="moments of each at which all gangs step")
    parser.add_argument("--hashes", type=int, default=4, help="ways in which switches spread flows, for each look")
    parser.add_argument("--limit", type=float, default=0.1, help="seconds that ours may take for a gang of a mix")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS / "placement.json")
    arguments = parser.parse_args()
    if "steps" in arguments.parts and not DATA.exists():
        sys.stderr.write(f"no recorded jobs at {DATA}: this bench replays them\n")
        return 2
    parts = parts_of(arguments)
    unknown = [part for part in arguments.parts if part not in parts]
    if unknown:
        parser.error(f"unknown parts {unknown}; known: {', '.join(parts)}")
    rows = [row for name in arguments.parts for row in parts[name]()]
    about = {name: str(value) for name, value in vars(arguments).items() if name != "output"}
    return conclude(rows, title=f"placement by {arguments.solver}", output=arguments.output, about=about)


def parts_of(arguments: argparse.Namespace) -> Mapping[str, Callable[[], list[Row]]]:
    """Return what is measured, by name."""
    solver, seed, num_processes = arguments.solver, arguments.seed, arguments.processes
    terms = Terms(
        solver=solver,
        num_arrivals=arguments.arrivals,
        num_looks=arguments.looks,
        num_seeds=arguments.seeds,
        num_hashes=arguments.hashes,
        time_limit_s=arguments.limit,
        seed=seed,
        num_processes=num_processes,
    )
    return {
        "speed": lambda: [
            *measured_large(solver=solver, seed=seed),
            measured_stream(seed=seed),
            measured_update(seed=seed),
        ],
        "exact": lambda: placement_exact.rows(
            {name: load(AdapterGroup.PLACEMENT_SOLVERS, name)() for name in dict.fromkeys((solver, *BESIDE))},
            default=solver,
            num_instances=arguments.instances,
        ),
        "queue": lambda: measured_queue(num_mixes=6, num_fronts=100, seed=seed),
        "steps": lambda: measured_steps(terms),
    }


if __name__ == "__main__":
    sys.exit(main())
