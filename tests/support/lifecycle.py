"""DAG runs of ``tests/integration/dags/plain_pretrain.py`` under a real Airflow, and what they leave behind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from airflow_llmsched.control import history
from airflow_llmsched.control.events import AnyEvent
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.machine import fold
from airflow_llmsched.control.run_state import RunPhase, RunState
from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.testing.airflow_client import RUN_ENDED
from airflow_llmsched.testing.airflow_stack import AirflowStack
from tests.support.gangs import processes_by_attempt
from tests.support.waiting import wait_until

HOLD_AT = 7
LIMIT_S = 240.0


class Run:
    """One DAG run of a lifecycle DAG, and what it left behind."""

    def __init__(
        self, stack: AirflowStack, run_id: str, hold: Path, *, dag_id: str = "lifecycle_deferrable", **conf: Any
    ) -> None:
        self.client = stack.client
        self.hold = hold / run_id
        self.dag_id = dag_id
        self.run_id = run_id
        self.state_root = stack.home / "llmsched"
        self.engine = LocalEngine(root=str(self.state_root / "engines" / run_id))
        wait_until(lambda: self.client.dag(dag_id), limit_s=60)
        arguments = f'"--step-s=0.02", "--hold={self.hold}", "--hold-at={HOLD_AT}"'
        self.client.trigger(dag_id, run_id=run_id, conf={"max_ranks": 2, "arguments": arguments, **conf})

    def key(self) -> RunKey:
        opened = wait_until(lambda: self.client.xcom(self.dag_id, self.run_id, task("open_run")), limit_s=LIMIT_S)
        return RunKey((json.loads(opened) if isinstance(opened, str) else opened)["run_key"])

    def events(self) -> tuple[AnyEvent, ...]:
        return Journal(open_store(str(self.state_root)), self.key()).read()

    def state(self) -> RunState:
        return fold(self.key(), self.events())

    def num(self, kind: str) -> int:
        return Counter(event.kind for event in self.events())[kind]

    def attempts(self) -> list[tuple[int, int]]:
        return [(each.key.generation, each.key.attempt) for each in history.attempts(self.events())]

    def processes(self) -> dict[str, list[int]]:
        return processes_by_attempt(self.key())

    def phases(self) -> list[GangPhase]:
        handles = self.engine.find(self.key())
        statuses = self.engine.poll(handles)
        return [statuses[handle].phase for handle in handles]

    def tasks(self) -> dict[str, str | None]:
        states = self.client.task_states(self.dag_id, self.run_id)
        return {task_id.rpartition(".")[2]: state for task_id, state in states.items()}

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Wait in mid-run. A run that has ended will not come to it any more."""

        def met() -> Any:
            value = condition()
            if not value:
                assert self.client.dag_run(self.dag_id, self.run_id)["state"] not in RUN_ENDED, (
                    self.tasks(),
                    self.failures(),
                )
            return value

        return wait_until(met, limit_s=LIMIT_S, poll_s=0.2)

    def wait_for_end(self) -> str:
        state: str = self.client.wait(self.dag_id, self.run_id, limit_s=LIMIT_S)["state"]
        return state

    def let_go(self) -> None:
        """Let the ranks that stand still go on."""
        self.hold.touch()

    def instance(self, name: str) -> dict[str, Any]:
        """Return a task instance as Airflow describes it."""
        instances = self.client.task_instances(self.dag_id, self.run_id)
        return next(each for each in instances if each["task_id"] == task(name))

    def wait_until_held(self, task_state: str = "deferred") -> dict[str, list[int]]:
        """Wait until the ranks stand still at the chosen step, watched; return the gang's processes."""
        self.wait_for(lambda: self.tasks().get("run_gang") == task_state and self._held())
        return self.processes()

    def _held(self) -> bool:
        if self.state().phase is not RunPhase.WATCHING:
            return False
        reports = (self.state_root / "runs" / self.key() / "channel").glob("*/up/*.jsonl")
        return any(f'"step":{HOLD_AT}' in path.read_text().replace(" ", "") for path in reports)

    def failures(self) -> dict[str, str]:
        lines = (self.state_root / "failures.jsonl").read_text().splitlines()
        notes = [json.loads(line) for line in lines]
        return {note["task_id"].rpartition(".")[2]: note["message"] for note in notes if note["run_id"] == self.run_id}


def task(name: str) -> str:
    return f"pretraining.{name}"


def worker_of(stack: AirflowStack, run: Run) -> psutil.Process:
    """Return Airflow's worker process that runs the run's gang task: the parent of the one the task runs in."""
    title = f"LocalExecutor: {run.instance('run_gang')['id']}"
    for process in psutil.Process(stack.component_pid("scheduler")).children():
        if process.status() != psutil.STATUS_ZOMBIE and title in " ".join(process.cmdline()):
            return process
    raise AssertionError(f"no worker has the title {title!r}")


def assert_released(run: Run) -> None:
    """Whatever else failed, the teardowns ran, and no process of the run is left on the machine."""
    tasks = run.tasks()
    assert tasks["release"] == tasks["report"] == "success"
    assert run.state().released
    assert run.processes() == {}
    assert all(phase.ended for phase in run.phases())
