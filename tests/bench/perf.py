"""``make bench-perf``: parameters, step times, choices and memory against published figures, each out of sample.

Needs the reference data in ``../shared/data``. Writes ``bench/results/perf.json``; exits 1 naming what was missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from airflow_llmsched.planner.perf.calibration import to_toml
from tests.bench import perf_memory, perf_parameters, perf_search, perf_steps
from tests.bench.perf_rows.every import read_all, show
from tests.bench.rows import RESULTS, conclude


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS / "perf.json")
    parser.add_argument("--rates", type=Path, help="Also write what is fitted to all rows to this file.")
    arguments = parser.parse_args(argv)
    began_s = time.monotonic()
    readings = read_all()
    show(readings)
    steps = [step for reading in readings for step in reading.steps]
    scorer = perf_steps.Scorer(steps, fitted_on=datetime.now(UTC).date().isoformat())
    if arguments.rates is not None:
        arguments.rates.write_text(to_toml(scorer.calibration), encoding="utf-8")
    sources = [reading.file for reading in readings if reading.steps]
    steps_rows = [*perf_steps.rows(scorer, sources), perf_steps.scale_row(scorer.scales())]
    rows = [*perf_parameters.rows(), *steps_rows, *perf_memory.rows(), *perf_search.rows()]
    about = {
        "read": {reading.file: {"steps": len(reading.steps), "left out": reading.left_out} for reading in readings},
        "fitted": {name: asdict(kind) for name, kind in scorer.calibration.kinds.items()},
        "seconds": time.monotonic() - began_s,
    }
    return conclude(rows, title="Performance model", output=arguments.results, about=about)


if __name__ == "__main__":
    sys.exit(main())
