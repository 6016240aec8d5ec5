"""Part of ``make bench-engines``: the demo's run loses all its hosts at once, and goes on as a job of Slurm.

Real sshd machines, a real Slurm, the demo's own spec and trainer, each cluster with a disk of its own. No step may be
lost but those after the last complete checkpoint; how long it took is told by its parts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from airflow_llmsched.control import events as ev
from tests.bench.rows import RESULTS, Row, conclude
from tests.support.failover import Failover
from tests.support.slurm_cluster import slurm_cluster
from tests.support.ssh_hosts import ssh_hosts

SPEC = Path(__file__).parents[2] / "dags" / "specs" / "byte_gpt_demo.yaml"
INTERVAL_STEPS = 30
NETWORK = "eth0"
"""What machines and Slurm's nodes call their network alike: Gloo would take the one that a host's own name is at."""

LIMIT_S = 900.0
_COPIED = re.compile(r"brought from \S+ to \S+: (?P<mib>[0-9.]+) MiB in (?P<took_s>[0-9.]+) s")


def measured_failover(*, num_steps: int = 3 * INTERVAL_STEPS) -> list[Row]:
    """Cut the power half an interval after the second checkpoint is due, and follow the run to its end."""
    cut_at = INTERVAL_STEPS * 3 // 2
    with _deployment(num_steps) as run:
        run.prepare()
        deferred = run.defer("run_gang")
        run.await_step(cut_at, limit_s=LIMIT_S)
        run.lose_hosts()
        lost_s = time.time()
        result = deferred.finish()
        return _rows(run, lost_s=lost_s, num_steps=num_steps, last_step=int(result["step"]))


@contextlib.contextmanager
def _deployment(num_steps: int) -> Iterator[Failover]:
    spec = yaml.safe_load(SPEC.read_text())
    spec["budget"] = {"steps": num_steps}
    spec["checkpoint"]["interval_steps"] = INTERVAL_STEPS
    spec["launcher"]["environment"] = {"GLOO_SOCKET_IFNAME": NETWORK}
    with tempfile.TemporaryDirectory(prefix="llmsched-failover-") as folder, ssh_hosts() as machines:
        with slurm_cluster() as slurm:
            run = Failover(Path(folder), machines=machines, slurm=slurm, spec=spec)
            os.environ |= {
                "AIRFLOW__LLMSCHED__STATE_ROOT": str(run.state_root),
                "AIRFLOW__LLMSCHED__MIN_DEFERRAL": "0",
                "AIRFLOW__LLMSCHED__FLEET_FILE": str(run.fleet_file),
            }
            try:
                yield run
            finally:
                run.close()


def _rows(run: Failover, *, lost_s: float, num_steps: int, last_step: int) -> list[Row]:
    events = run.journal()
    ended = _last(events, ev.GangEnded, before_s=_last(events, ev.Launched).at_s)
    fence, launched = _last(events, ev.FenceAwaited), _last(events, ev.Launched)
    chosen = _last(events, ev.CheckpointChosen)
    first, second = run.channels()
    reached = max(run.steps(first))
    complete = reached // INTERVAL_STEPS * INTERVAL_STEPS
    resumed = chosen.checkpoint.step if chosen.checkpoint else 0
    copied = _COPIED.search(chosen.note)
    parts = {
        "until both were silent long enough": ended.at_s - lost_s,
        "then until the lease had run out": fence.until_s - ended.at_s,
        "then until Slurm had the job": launched.at_s - fence.until_s,
        "of it to copy": float(copied["took_s"]) if copied else 0.0,
        "MiB copied": float(copied["mib"]) if copied else 0.0,
    }
    return [
        Row(
            name="steps lost before the last complete checkpoint",
            value=complete - resumed,
            below=1,
            reference={"reached": reached, "resumed at": resumed, "went on with": min(run.steps(second))},
        ),
        Row(name="steps of the run that are missing", value=num_steps - last_step, below=1),
        Row(name="from lost power to the job on Slurm", value=launched.at_s - lost_s, unit="s", reference=parts),
    ]


def _last(events: list[Any], kind: type[Any], *, before_s: float = float("inf")) -> Any:
    return [event for event in events if isinstance(event, kind) and event.at_s < before_s][-1]


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3 * INTERVAL_STEPS)
    options = parser.parse_args()
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    rows = measured_failover(num_steps=options.steps)
    about = {"what": "the demo's run fails over from hosts to Slurm", "spec": json.dumps(str(SPEC.name))}
    return conclude(rows, title="Fail-over from hosts to Slurm", output=RESULTS / "engines_failover.json", about=about)


if __name__ == "__main__":
    sys.exit(main())
