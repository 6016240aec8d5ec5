"""One simulated run of many days: spot preemption every few hours, hand-overs, restarted workers, measured spans."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_llmsched.control.context import Succeeded
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.domain.ledger import Bucket, Span
from airflow_llmsched.domain.workload import RetrySpec
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.sim.scripts import SimTraining
from tests.support.memory_store import MemoryStore
from tests.support.sim_house import RUN, SimHouse, tree_of, workload_of

DAY_S = 86_400.0
MEAN_PREEMPTION_S = 4 * 3600.0
STEP_S = 300.0
NOTICE_S = 120.0
RETURN_S = 900.0
POLL_S = 120.0
NUM_NODES = 4
USEFUL_RATIO = 0.72
"""About what is left of the time when nodes are away, ranks start and lost steps are taken again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """A finished run, and how it went."""

    house: SimHouse
    store: MemoryStore
    days: float
    num_preemptions: int
    num_restarts: int


class _Platform:
    """Takes nodes at random times, and now and then a worker is replaced or measures something."""

    def __init__(self, house: SimHouse, *, seed: int) -> None:
        self._house = house
        self._random = random.Random(seed)
        self._next_s = house.clock.now_s() + self._gap_s()
        self.num_preemptions = 0
        self.num_restarts = 0

    def __call__(self) -> None:
        now_s = self._house.clock.now_s()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._gap_s()
        node = self._random.choice(self._house.engine.topology().nodes).id
        self._house.engine.preempt(node, grace_s=NOTICE_S, return_after_s=RETURN_S)
        self.num_preemptions += 1
        if self.num_preemptions % 10 == 0:  # a worker dies now and then; its retry goes on and measures its wait
            retry = self._house.driver(owner=f"try-{self.num_restarts}")
            self._house.note_span(Span(bucket=Bucket.QUEUE, start_s=now_s - 30.0, end_s=now_s, label="run_gang"))
            retry.start()
            self.num_restarts += 1

    def _gap_s(self) -> float:
        return self._random.expovariate(1.0 / MEAN_PREEMPTION_S)


def live(days: float, *, seed: int = 0) -> LongRun:
    """Run for about ``days`` days of virtual time."""
    num_steps = int(days * DAY_S / STEP_S * USEFUL_RATIO)
    ranks = 2 * NUM_NODES
    training = SimTraining(
        num_steps=num_steps, init_s=60.0, work_s=STEP_S * ranks, save_s=20.0, checkpoint_interval_steps=3
    )
    store = MemoryStore()
    workload = workload_of(retries=RetrySpec(max_attempts_without_progress=50), hang_limit_s=7200.0)
    house = SimHouse(training=training, workload=workload, tree=tree_of(NUM_NODES, 2), store=store, seed=seed)
    house.context = replace(house.context, poll_interval_s=POLL_S)
    platform = _Platform(house, seed=seed)
    start_s = house.clock.now_s()
    outcome = house.run(before_look=platform)
    assert isinstance(outcome, Succeeded), outcome
    return LongRun(
        house=house,
        store=store,
        days=(house.clock.now_s() - start_s) / DAY_S,
        num_preemptions=platform.num_preemptions,
        num_restarts=platform.num_restarts,
    )


def copy_to_folder(store: MemoryStore, root: Path) -> LocalStore:
    """Write what ``store`` holds to a folder, without the durability that a test need not pay for."""
    for key, data in store.objects.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return LocalStore(str(root))


def driver_elsewhere(run: LongRun, store: LocalStore) -> RunDriver:
    """Return the run's driver as a worker of another machine would open it."""
    house = run.house
    return RunDriver(
        context=house.context,
        journal=Journal(store, RUN),
        engine=house.engine,
        planner=lambda *_: (_ for _ in ()).throw(AssertionError("rebuilding plans nothing")),
        checkpoints=house.checkpoints,
        open_channel=house.hub.open,
        clock=house.clock,
    )


def timed(action: object) -> tuple[float, object]:
    """Return the processor's seconds that ``action`` took, whoever else keeps it busy, and its result."""
    start_s = time.process_time()
    result = action()  # type: ignore[operator]
    return time.process_time() - start_s, result
