"""How soon a run decides when Slurm loses a node, and how soon its next attempt is submitted, on a real cluster.

The clock begins when Slurm says of the job that it lost a node, which it does once it has ended what is left of it.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import Watch
from tests.bench.rows import Row
from tests.support.local_house import TRAINER
from tests.support.slurm_cluster import slurm_cluster
from tests.support.slurm_engine import SlurmHarness
from tests.support.slurm_house import SlurmHouse
from tests.support.waiting import wait_until

POLL_S = 2.0
_LIMIT_S = 240.0
_NODE = "s4"


def rows() -> list[Row]:
    """Return the figures of a benchmark's table."""
    decided_s, again_s = _loss()
    return [
        Row(name="slurm: lost node to our decision, s", value=decided_s, below=POLL_S + 2.0),
        Row(name="slurm: lost node to the next attempt submitted, s", value=again_s, below=15.0),
    ]


def _loss() -> tuple[float, float]:
    with slurm_cluster() as cluster, tempfile.TemporaryDirectory(prefix="llmsched-bench-") as folder:
        harness = SlurmHarness(cluster)
        house = SlurmHouse(Path(folder), harness)
        hold = Path(folder) / "hold"
        told = {
            "command": (sys.executable, str(TRAINER), "--steps", "20", "--hold-at", "7", "--hold", str(hold)),
            "poll_interval_s": POLL_S,
        }
        outcome = house.driver(**told).start()
        assert isinstance(outcome, Watch)
        driver = house.driver(**told)
        watcher = threading.Thread(target=lambda: house.finish(driver))
        watcher.start()
        try:
            wait_until(lambda: 7 in house.steps(outcome.state.channel_root), _LIMIT_S)
            cluster.call("scontrol", "update", f"nodename={_NODE}", "state=down", "reason=burnt")
            (name,) = (path.name for path in (harness.root / "gangs").iterdir())
            asked = ("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%T")
            wait_until(lambda: cluster.call(*asked).strip() == "NODE_FAIL", _LIMIT_S)
            lost_at_s = time.time()
            decided_at_s = wait_until(lambda: _when(house, lost_at_s, ev.FaultDetected, ev.GangEnded), _LIMIT_S)
            again_at_s = wait_until(lambda: _when(house, lost_at_s, ev.Launched), _LIMIT_S)
        finally:
            hold.touch()
            watcher.join()
            cluster.bring_back(_NODE)
            harness.close()
    return decided_at_s - lost_at_s, again_at_s - lost_at_s


def _when(house: SlurmHouse, after_s: float, *kinds: type) -> float | None:
    found = (event.at_s for event in house.journal.read() if isinstance(event, kinds))
    return next((at_s for at_s in found if at_s > after_s), None)
