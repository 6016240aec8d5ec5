"""What 1,000 deferred gangs cost a triggerer, against 1,000 triggers that only sleep: ``make bench-airflow``.

Each measurement is a process of its own (``tests.bench.triggerer``) with Airflow's ``TriggerRunner`` in it; agents of
all gangs write their reports from another process (``tests.bench.gangs``). Figures are medians over seeds, except the
longest block and the latest event, which are the worst of all. Exits 1 and names the rows that missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from airflow_llmsched import codec
from tests.bench.gangs import ENTRY_POINT
from tests.bench.rows import RESULTS, Row, conclude

ROOT = Path(__file__).resolve().parents[2]
SLEEP = "plain sleep"
MAX_CPU_RATIO = 1.5
MAX_BLOCK_S = 0.2
EVENT_SLACK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How large a measurement is."""

    num_triggers: int = 1000
    poll_interval_s: float = 5.0
    window_s: float = 60.0
    num_ends: int = 50
    lease_s: float = 120.0
    seeds: tuple[int, ...] = (1, 2, 3)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the results; return the exit code."""
    given = _arguments(argv)
    setup = Setup(
        num_triggers=given.triggers,
        poll_interval_s=given.poll_interval,
        window_s=given.window,
        num_ends=max(1, given.triggers // 20),
        seeds=tuple(range(1, given.seeds + 1)),
    )
    with tempfile.TemporaryDirectory(prefix="llmsched-bench-") as folder:
        runs = [
            (measure("sleep", setup, seed, Path(folder)), measure("gang", setup, seed, Path(folder)))
            for seed in setup.seeds
        ]
    title = f"{setup.num_triggers} triggers, looking every {setup.poll_interval_s:g} s, for {setup.window_s:g} s"
    about = {"setup": asdict(setup), "runs": [{"sleep": one, "gang": two} for one, two in runs]}
    return conclude(rows_of(setup, runs), title=title, output=given.results, about=about)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.airflow", description=(__doc__ or "").splitlines()[0])
    usual = Setup()
    parser.add_argument("--triggers", type=int, default=usual.num_triggers)
    parser.add_argument("--poll-interval", type=float, default=usual.poll_interval_s, help="seconds")
    parser.add_argument("--window", type=float, default=usual.window_s, help="seconds measured")
    parser.add_argument("--seeds", type=int, default=len(usual.seeds), help="how many")
    parser.add_argument("--results", type=Path, default=RESULTS / "airflow.json")
    return parser.parse_args(argv)


def measure(form: str, setup: Setup, seed: int, folder: Path) -> dict:
    """Run one measurement in a process of its own and return what it wrote."""
    home = folder / f"{form}-{seed}"
    home.mkdir()
    case = {"form": form, "root": str(home), "num_triggers": setup.num_triggers, "num_ends": setup.num_ends}
    case |= {
        "poll_interval_s": setup.poll_interval_s,
        "window_s": setup.window_s,
        "lease_s": setup.lease_s,
        "seed": seed,
    }
    result, log = home / "result.json", home / "log"
    with agents(home, setup.num_triggers), log.open("wb") as output:
        argv = [sys.executable, "-m", "tests.bench.triggerer", codec.to_json(case).decode(), str(result)]
        done = subprocess.run(argv, cwd=ROOT, env=environment(home), stdout=output, stderr=output, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the measurement {form} failed:\n{log.read_text()[-4000:]}")
    measured: dict = json.loads(result.read_text())
    shutil.rmtree(home)
    return measured


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a process that finds the benchmark's engine like any other, by its entry point."""
    info = home / "site" / "llmsched_bench-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llmsched-bench\nVersion: 0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINT)
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{info.parent}",
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__LLMSCHED__STATE_ROOT": str(home / "state"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }


@contextmanager
def agents(home: Path, num_gangs: int) -> Iterator[None]:
    """Have the agents of all gangs write, in a process of their own that ends with the block."""
    argv = [sys.executable, "-m", "tests.bench.gangs", str(home), str(num_gangs), str(home / "plan.json")]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError("the agents did not start")
        yield
        process.stdin.close()


def rows_of(setup: Setup, runs: Sequence[tuple[dict, dict]]) -> list[Row]:
    """Return the table: what is promised first, then what helps to read it."""
    sleeps, gangs = [run[0] for run in runs], [run[1] for run in runs]

    def median(key: str, of: Sequence[dict]) -> float:
        return statistics.median(each[key] for each in of)

    ratio = statistics.median(gang["cpu_s"] / sleep["cpu_s"] for sleep, gang in runs)
    latest_s = [max(max(each["event_delays_s"]) for each in of) for of in (gangs, sleeps)]
    delay_s = [statistics.median(s for each in of for s in each["event_delays_s"]) for of in (gangs, sleeps)]
    num_cycles = setup.window_s / setup.poll_interval_s
    num_calls = statistics.median(len(each["calls"]) for each in gangs) / num_cycles
    limit_s = setup.poll_interval_s + EVENT_SLACK_S
    return [
        Row(name="CPU, against the reference", unit="x", value=ratio, reference={SLEEP: 1.0}, below=MAX_CPU_RATIO),
        Row(
            name="longest block of the loop",
            unit="s",
            value=max(each["max_block_s"] for each in gangs),
            reference={SLEEP: max(each["max_block_s"] for each in sleeps)},
            below=MAX_BLOCK_S,
        ),
        Row(name="latest event", unit="s", value=latest_s[0], reference={SLEEP: latest_s[1]}, below=limit_s),
        Row(
            name="CPU of the window", unit="s", value=median("cpu_s", gangs), reference={SLEEP: median("cpu_s", sleeps)}
        ),
        Row(
            name="CPU of the start",
            unit="s",
            value=median("startup_cpu_s", gangs),
            reference={SLEEP: median("startup_cpu_s", sleeps)},
        ),
        Row(name="median event", unit="s", value=delay_s[0], reference={SLEEP: delay_s[1]}),
        Row(
            name="longest gap between beats, load included",
            unit="s",
            value=max(each["max_gap_s"] for each in gangs),
            reference={SLEEP: max(each["max_gap_s"] for each in sleeps)},
        ),
        Row(name="calls of the engine per interval", unit="", value=num_calls),
    ]


if __name__ == "__main__":
    started_s = time.monotonic()
    code = main()
    Console().print(f"took {time.monotonic() - started_s:.0f} s")
    sys.exit(code)
