"""One measurement, as a program: Airflow's own ``TriggerRunner`` with many triggers of one form, in this process.

Only the supervisor's end of the runner's socket is played here: it hands the triggers over, as their rows in the
database would read, and takes the events. What is measured is this process's CPU time over a window that begins once
all triggers run, how long the loop stood still, and when events came.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airflow.executors.workloads.trigger import RunTrigger
from airflow.jobs.triggerer_job_runner import TriggerRunner, messages
from airflow.models.trigger import Trigger

from airflow_llmsched import codec
from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.provider.triggers.gang import GangTrigger
from tests.bench.gangs import ENGINE, BenchEngine, channel_root, ended_in, handle_of, key_of, plan_ends
from tests.bench.sleeping import SleepTrigger

BEAT_S = 0.02
FOREVER_S = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What to measure. ``form`` is ``gang`` or ``sleep``."""

    form: str
    root: str
    num_triggers: int
    poll_interval_s: float
    window_s: float
    num_ends: int
    lease_s: float
    seed: int


@dataclass(slots=True, kw_only=True)
class Measured:
    """What came of a case. A block is how long the loop stood still beyond what the machine's load explains."""

    cpu_s: float = 0.0
    startup_cpu_s: float = 0.0
    max_block_s: float = 0.0
    max_gap_s: float = 0.0
    num_events: int = 0
    event_delays_s: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)


class Supervisor:
    """Stands for ``TriggerRunnerSupervisor``: the runner's comms, without the socket."""

    def __init__(self, to_create: list[RunTrigger]) -> None:
        self._to_create = to_create
        self._reader_task = asyncio.ensure_future(asyncio.Event().wait())

    async def asend(self, _changes: messages.TriggerStateChanges) -> messages.TriggerStateSync:
        """Answer a sync of the runner's state: what is new, and nothing to cancel."""
        new, self._to_create = self._to_create, []
        return messages.TriggerStateSync(to_create=new, to_cancel=set())


class StampedEvents(deque[Any]):
    """The runner's outbound queue. Remembers when each trigger's event came."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s: dict[int, float] = {}

    def append(self, entry: Any) -> None:
        """Queue an event."""
        self.at_s[entry.trigger_id] = time.time()
        super().append(entry)


class Runner(TriggerRunner):
    """Airflow's runner, with its supervisor in the same process."""

    def __init__(self, to_create: list[RunTrigger]) -> None:
        super().__init__()
        self.events = self.stamped = StampedEvents()
        self._to_create_first = to_create

    async def init_comms(self) -> None:
        """Take the supervisor's end from here instead of from a socket."""
        self.comms_decoder = Supervisor(self._to_create_first)  # type: ignore[assignment]

    def end(self) -> None:
        """Have ``arun`` return."""
        self.stop = True
        if self._stop_event is not None:
            self._stop_event.set()


class Heart:
    """Beats in the loop, and notes how long it was kept from it."""

    def __init__(self) -> None:
        self.max_gap_s = self.max_block_s = 0.0

    async def beat(self) -> None:
        """Go on until cancelled."""
        while True:
            before_s, waited_s = time.monotonic(), _waited_for_cpu_s()
            await asyncio.sleep(BEAT_S)
            gap_s = time.monotonic() - before_s - BEAT_S
            self.max_gap_s = max(self.max_gap_s, gap_s)
            self.max_block_s = max(self.max_block_s, gap_s - (_waited_for_cpu_s() - waited_s))

    def restart(self) -> None:
        """Forget the past."""
        self.max_gap_s = self.max_block_s = 0.0


def _waited_for_cpu_s() -> float:
    """Return how long this thread was ready to run while others had the processors: no fault of this process."""
    fields = Path("/proc/thread-self/schedstat").read_text().split()
    return int(fields[1]) / 1e9


def triggers(case: Case, begun_s: float) -> list[RunTrigger]:
    """Return the triggers of a case as the database would hand them over, ``begun_s`` being the window's start."""
    ends = {index: begun_s + after_s for after_s, index in _ends(case)}
    made = []
    for index in range(case.num_triggers):
        if case.form == "gang":
            trigger: Any = _gang_trigger(case, index)
        else:
            until_s = ends.get(index, begun_s + FOREVER_S)
            trigger = SleepTrigger(index=index, poll_interval_s=case.poll_interval_s, until_s=until_s)
        classpath, arguments = trigger.serialize()
        made.append(RunTrigger(id=index, classpath=classpath, encrypted_kwargs=Trigger.encrypt_kwargs(arguments)))
    return made


def _gang_trigger(case: Case, index: int) -> GangTrigger:
    watch = WatchState(
        handle=handle_of(index),
        channel_root=str(channel_root(Path(case.root), index)),
        launched_at_s=time.time(),
        poll_interval_s=case.poll_interval_s,
        lease_s=case.lease_s,
        deadline_s=time.time() + FOREVER_S,
    )
    scope = RunScope(
        state_root=f"{case.root}/state",
        run_key=handle_of(index).key.run,
        dag_id="dag",
        run_id=f"run-{index}",
        task_group_id="pretraining",
        started_at_s=watch.launched_at_s,
    )
    settings = {"engine": ENGINE, "engine_options": {"root": case.root}, "scope": codec.to_plain(scope)}
    return GangTrigger(purpose="train", settings=settings, watch=codec.to_plain(watch))


def _ends(case: Case) -> list[tuple[float, int]]:
    span_s = case.window_s - case.poll_interval_s - 3.0
    return plan_ends(num_gangs=case.num_triggers, num_ends=case.num_ends, span_s=max(0.1, span_s), seed=case.seed)


async def measure(case: Case) -> Measured:
    """Run a case from the first trigger to the window's end."""
    settle_s = case.poll_interval_s + 2.0
    result, heart = Measured(), Heart()
    begun_s = time.time() + settle_s + case.num_triggers * 0.01
    runner = Runner(triggers(case, begun_s))
    started_cpu_s = time.process_time()
    running = asyncio.ensure_future(runner.arun())
    beating = asyncio.ensure_future(heart.beat())
    while len(runner.triggers) < case.num_triggers and not running.done():
        await asyncio.sleep(0.1)
    await asyncio.sleep(max(settle_s, begun_s - time.time()))
    plan = [(begun_s + after_s, index) for after_s, index in _ends(case)]
    _publish(Path(case.root) / "plan.json", plan)
    result.startup_cpu_s = time.process_time() - started_cpu_s
    heart.restart()
    BenchEngine.calls.clear()
    before_s = time.process_time()
    await asyncio.sleep(case.window_s)
    result.cpu_s = time.process_time() - before_s
    result.max_gap_s, result.max_block_s = heart.max_gap_s, heart.max_block_s
    result.calls = list(BenchEngine.calls)
    result.num_events = len(runner.stamped.at_s)
    ended = ended_in(Path(case.root))
    for planned_s, index in plan:  # agents may have been late; a gang's end is when they ended it
        at_s = ended.get(key_of(index).name, planned_s) if case.form == "gang" else planned_s
        result.event_delays_s.append(runner.stamped.at_s.get(index, float("inf")) - at_s)
    beating.cancel()
    runner.end()
    await running
    return result


def _publish(path: Path, plan: list[tuple[float, int]]) -> None:
    path.with_suffix(".new").write_text(json.dumps(plan))
    path.with_suffix(".new").replace(path)


def main() -> None:
    """Measure the case in the first argument; write the result to the file in the second."""
    case = codec.from_json(Case, sys.argv[1])
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "client"
    measured = asyncio.run(measure(case))
    Path(sys.argv[2]).write_text(json.dumps(asdict(measured)))


if __name__ == "__main__":
    main()
