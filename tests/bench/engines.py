"""What gangs cost on real engines: ``make bench-engines``. Exits 1 and names the rows that missed.

Each part starts the servers it measures on; two busy cores make its figures worse, never better.
"""

from __future__ import annotations

import sys

from tests.bench import engines_hosts, engines_slurm, engines_slurm_loss, engines_start, engines_submit
from tests.bench.engines_failover import measured_failover
from tests.bench.rows import RESULTS, Row, conclude


def main() -> int:
    """Measure, print the table, write the results; return the exit code."""
    slurm = (engines_slurm, engines_submit, engines_slurm_loss)
    rows = [*(row for part in (*slurm, engines_hosts) for row in part.rows()), *_start_rows(), *measured_failover()]
    return conclude(rows, title="engines", output=RESULTS / "engines.json", about={})


def _start_rows() -> list[Row]:
    skew, failed = engines_start.start_skew(), engines_start.failed_start()
    name = f"{skew.num_ranks} ranks: skew of their starts"
    return [
        Row(name=name, value=skew.skew_s, unit="s", below=0.2, reference={"worst": skew.worst_skew_s}),
        Row(name="left of a gang of which one node cannot start", value=failed.num_left, below=0.5),
    ]


if __name__ == "__main__":
    sys.exit(main())
