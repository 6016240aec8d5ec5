"""How much later a gang's first rank runs when a run's driver launches it than when its script goes in by hand.

Both are measured on a real Slurm, by turns, as its scheduler takes a second more or less: from the call to the moment
that the supervisor records of its ranks.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_llmsched.agent.shelf import Shelf
from airflow_llmsched.agent.spool import read_json
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.engines.slurm.engine import SlurmEngine
from airflow_llmsched.testing.engine_contract import HANGS, gang_of
from tests.bench.rows import Row
from tests.support.slurm_cluster import SlurmCluster, slurm_cluster
from tests.support.slurm_engine import SlurmHarness
from tests.support.slurm_house import SlurmHouse
from tests.support.waiting import wait_until

_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitCost:
    """Seconds from the call to the first rank: medians, by the driver and by hand."""

    driver_s: float
    by_hand_s: float

    @property
    def overhead_s(self) -> float:
        """What the driver adds: journal, planning, looking for what is free, the folder, and looking again."""
        return self.driver_s - self.by_hand_s


def rows() -> list[Row]:
    """Return the figures of a benchmark's table."""
    cost = submit_cost()
    beside = {"driver": cost.driver_s, "by hand": cost.by_hand_s}
    name = "slurm: submit to first rank, over sbatch by hand"
    return [Row(name=name, value=cost.overhead_s, unit="s", below=1.0, reference=beside)]


def submit_cost(*, num_turns: int = 7) -> SubmitCost:
    """Measure on a cluster of our own."""
    with slurm_cluster() as cluster, tempfile.TemporaryDirectory(prefix="llmsched-bench-") as folder:
        turns = [(_driver_s(cluster, Path(folder) / str(turn)), _by_hand_s(cluster)) for turn in range(num_turns)]
    return SubmitCost(
        driver_s=statistics.median(turn[0] for turn in turns), by_hand_s=statistics.median(turn[1] for turn in turns)
    )


def _driver_s(cluster: SlurmCluster, folder: Path) -> float:
    with _harness(cluster) as harness:
        house = SlurmHouse(folder, harness)
        driver = house.driver("--hold-at", "1", "--hold", str(folder / "never"))
        began_s = time.time()
        driver.start()
        (handle,) = house.engine.find(house.run)
        return _first_rank_at_s(harness, handle) - began_s


def _by_hand_s(cluster: SlurmCluster) -> float:
    """Submit the same kind of gang as its rendered script, after making its folder."""
    with _harness(cluster) as harness:
        gang = gang_of(harness, [HANGS] * 8)
        request = harness.engine.render(gang)
        name = gang.key.name
        told = {"channel_root": gang.channel_root, "origin": None, "wanted": {}}
        Shelf(harness.root).claim(name=name, submit=told, environment=gang.environment)
        began_s = time.time()
        cluster.call("sbatch", "--parsable", stdin=request.body["slurm"]["script"])
        handle = GangHandle(engine=SlurmEngine.name, key=gang.key, native_id=name)
        return _first_rank_at_s(harness, handle) - began_s


@contextmanager
def _harness(cluster: SlurmCluster) -> Iterator[SlurmHarness]:
    harness = SlurmHarness(cluster)
    try:
        yield harness
    finally:
        harness.close()


def _first_rank_at_s(harness: SlurmHarness, handle: GangHandle) -> float:
    nodes = harness.gang(handle.native_id).path / "nodes"
    wait_until(lambda: any(nodes.glob("*/started.json")), _LIMIT_S, poll_s=0.05)
    records = [read_json(path) for path in nodes.glob("*/started.json")]
    return min(record["at_s"] for record in records if record is not None)
