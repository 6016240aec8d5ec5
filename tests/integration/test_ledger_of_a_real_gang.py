"""The ledger of real processes under the local engine, against delays of known length and clocks of the test's own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_llmsched.control.ledger import build_ledger
from airflow_llmsched.domain.attempt import AttemptRecord
from airflow_llmsched.domain.gang import GangPhase, GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.ledger import Bucket, Ledger
from airflow_llmsched.domain.placement import Placement, RankSlot
from airflow_llmsched.domain.progress import ChannelCursor
from airflow_llmsched.telemetry.channel import DirectoryChannel
from tests.support.history import RUN, plan
from tests.support.local_engine import LocalHarness
from tests.support.waiting import wait_until

TRAINER = Path(__file__).parents[1] / "support" / "faulty_trainer.py"
HANG_S, SAVE_S, WAIT_S = 7.0, 5.0, 6.0
TOLERANCE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Measured:
    ledger: Ledger
    wall_s: float
    launched_s: float
    ready_s: float


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    root = tmp_path_factory.mktemp("gang")
    shared = root / "shared"
    shared.mkdir()
    harness = LocalHarness(root)
    try:
        yield _run(harness, shared)
    finally:
        harness.close()


def _run(harness: LocalHarness, shared: Path) -> Measured:
    key = AttemptKey(run=RUN, generation=1, attempt=1)
    slots = tuple(RankSlot(rank=rank, node=NodeId(f"n{rank}"), slot=0, local_rank=0) for rank in range(2))
    delays = json.dumps({"hang_s": HANG_S, "save_s": SAVE_S, "wait_s": WAIT_S})
    gang = GangSpec(
        key=key,
        placement=Placement(slots=slots),
        layout=ParallelLayout(dp=2),
        command=(sys.executable, str(TRAINER), str(shared), delays),
        channel_root=harness.channel_root(key),
        launcher=Launcher.PLAIN,
        environment={"PYTHONPATH": str(TRAINER.parents[2])},
        flush_interval_s=0.2,
    )
    begun_s, stopwatch_s = time.time(), time.monotonic()
    handle = harness.engine.submit(harness.engine.render(gang), key=key)
    launched_s = time.time()
    wait_until(lambda: harness.engine.poll([handle])[handle].phase.ended, 90)
    wall_s = time.monotonic() - stopwatch_s
    seen_s = time.time()
    status = harness.engine.poll([handle])[handle]
    assert status.phase is GangPhase.SUCCEEDED, status
    attempt = AttemptRecord(
        key=key,
        plan=plan("n0", "n1", slots_per_node=1),
        channel_root=gang.channel_root,
        intended_at_s=begun_s,
        launched_at_s=launched_s,
        end_seen_at_s=seen_s,
        status=status,
    )
    reports, _ = DirectoryChannel(gang.channel_root).read(ChannelCursor(positions={}))
    ledger = build_ledger(run_start_s=begun_s, run_end_s=seen_s, attempts=[attempt], reports={1: reports})
    return Measured(
        ledger=ledger,
        wall_s=wall_s,
        launched_s=min(launched_s, status.started_at_s or launched_s),
        ready_s=float((shared / "ready_at").read_text()),
    )


def test_the_buckets_add_up_to_the_wall_time_that_a_stopwatch_showed(measured):
    assert sum(measured.ledger.totals_s.values()) == pytest.approx(measured.wall_s, abs=0.1)


def test_the_hang_inside_training_is_lost(measured):
    assert measured.ledger.totals_s[Bucket.LOST] == pytest.approx(HANG_S, abs=TOLERANCE_S)


def test_the_slow_save_is_save(measured):
    assert measured.ledger.totals_s[Bucket.SAVE] == pytest.approx(SAVE_S, abs=TOLERANCE_S)


def test_the_wait_for_the_late_rank_is_init(measured):
    init_s = measured.ledger.totals_s[Bucket.INIT]
    assert init_s == pytest.approx(measured.ready_s - measured.launched_s, abs=TOLERANCE_S)
    assert init_s > WAIT_S


def test_the_rest_of_training_is_useful(measured):
    assert measured.ledger.totals_s[Bucket.USEFUL] == pytest.approx(30 * 0.1, abs=2.0)
    assert measured.ledger.totals_s[Bucket.USEFUL] >= 30 * 0.1


def test_hardly_anything_is_unclassified(measured):
    assert measured.ledger.ratio(Bucket.UNCLASSIFIED) < 0.02
