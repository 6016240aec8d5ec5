"""``make bench-journal``: what a run's journal weighs after 90 simulated days, and how fast its state comes back.

Writes ``bench/results/journal.json``; exits 1 naming the row that missed its limit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bench.rows import RESULTS, Row, conclude
from tests.support.long_run import LongRun, copy_to_folder, driver_elsewhere, live, timed

DAYS = 90.0
MAX_OBJECTS = 2_000
MAX_REBUILD_S = 1.0
NUM_TRIES = 3


def measure(run: LongRun, folder: Path) -> list[Row]:
    """Return the figures of a finished run. Seconds are the processor's, of the best of a few tries."""
    store = copy_to_folder(run.store, folder)
    rows = [Row(name="objects of the run", value=len(list(store.list(""))), below=MAX_OBJECTS)]
    rebuild_s = min(timed(lambda: driver_elsewhere(run, store).state())[0] for _ in range(NUM_TRIES))
    history_s = min(timed(lambda: driver_elsewhere(run, store).spans())[0] for _ in range(NUM_TRIES))
    store.delete(next(info.key for info in store.list("") if info.key.endswith("/snapshot.json")))
    bare_s = min(timed(lambda: driver_elsewhere(run, store).state())[0] for _ in range(NUM_TRIES))
    return [
        *rows,
        Row(name="rebuild of the state, s", value=rebuild_s, below=MAX_REBUILD_S),
        Row(name="rebuild of the state without a snapshot, s", value=bare_s, below=MAX_REBUILD_S),
        Row(name="rebuild of the whole history, s", value=history_s, below=MAX_REBUILD_S),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=DAYS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS / "journal.json")
    arguments = parser.parse_args()
    run = live(arguments.days, seed=arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(run, Path(folder))
    about = {
        "days": round(run.days, 2),
        "seed": arguments.seed,
        "num_preemptions": run.num_preemptions,
        "num_worker_restarts": run.num_restarts,
        "num_records": run.house.journal.num_records(),
    }
    return conclude(rows, title=f"journal after {run.days:.0f} days", output=arguments.output, about=about)


if __name__ == "__main__":
    sys.exit(main())
