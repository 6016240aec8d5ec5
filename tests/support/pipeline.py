"""A pretraining pipeline whose tasks a test executes one by one: real files, a real local engine, a plain trainer."""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG, Asset, TaskGroup
from airflow.sdk.exceptions import TaskDeferred
from airflow.serialization.serialized_objects import BaseSerialization

from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.lease_book import LeaseBook
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.run_report import RunReport
from airflow_llmsched.engines.local.engine import LocalEngine
from airflow_llmsched.provider.operators.base import RunOperator
from airflow_llmsched.provider.operators.capacity import ProvisionCapacityOperator
from airflow_llmsched.provider.operators.dataset import StageDatasetOperator
from airflow_llmsched.provider.operators.evaluation import EvaluateCheckpointOperator
from airflow_llmsched.provider.operators.gang import RunGangOperator
from airflow_llmsched.provider.operators.open_run import OpenRunOperator
from airflow_llmsched.provider.operators.planning import PlanTrainingOperator
from airflow_llmsched.provider.operators.preflight import PreflightOperator
from airflow_llmsched.provider.operators.release import ReleaseOperator
from airflow_llmsched.provider.operators.report import ReportOperator
from airflow_llmsched.provider.report_run import gather
from airflow_llmsched.provider.run_scope import RunScope, scope_of
from airflow_llmsched.provider.triggers.gang import GangTrigger
from tests.support.airflow_context import UTC, context_of

TRAINER = [sys.executable, str(Path(__file__).with_name("plain_trainer.py"))]
NUM_STEPS = 6
RENTING = {
    "clouds": {"sim": {}},
    "shapes": {"sim.8x": {"num_nodes": 2, "work": "1h"}},
    "deferrable": False,
    "poll_interval_s": 0.05,
}
ASSET = Asset("llmsched://checkpoints/plain")


def plain_spec(
    *, arguments: tuple[str, ...] = (), evaluator: tuple[str, ...] = (*TRAINER, "--evaluate"), **changes: Any
) -> dict[str, Any]:
    """Return a spec of two ranks that take a few short steps; ``changes`` replace whole blocks."""
    traffic = {"group": "trainer", "group_size": 2, "collective": "all_reduce", "bytes_per_step": "1MiB"}
    command = [*TRAINER, "--steps", str(NUM_STEPS), "--step-s=0.02", *arguments]
    return {
        "version": 1,
        "name": "plain",
        "data": {"kind": "files", "source": "corpus", "held_out": "20%"},
        "batch": {"sequence_length": 2, "global_batch": "4 sequences"},
        "budget": {"steps": NUM_STEPS},
        "communication": {"version": 1, "traffic": [traffic]},
        "memory": {"version": 1, "tiers": [{"tier": "hbm", "bytes_per_rank": "1MiB"}]},
        "capacity": {"min_ranks": 2, "max_ranks": 2},
        "checkpoint": {"interval_steps": 5, "format": "dcp"},
        "launcher": {"kind": "plain", "command": command, "start_limit": "60s", "grace": "2s"},
        "evaluation": {"command": list(evaluator), "max_loss": 5.0},
        "retries": {"code": 0},
        **changes,
    }


class Pipeline:
    """One DAG run of one deployment below ``folder``. Every task is a fresh operator, as in a worker."""

    def __init__(self, folder: Path, *, spec: dict[str, Any] | None = None, dag_id: str = "plain") -> None:
        self.spec = spec or plain_spec()
        self.state_root = folder / "state"
        self.folder = folder
        self.options = {"num_nodes": 1, "slots_per_node": 2}
        self.started = datetime.datetime.now(UTC)
        self.generation = 0
        self._dag_id = dag_id
        corpus = folder / "corpus"
        if not corpus.exists():
            corpus.mkdir(parents=True)
            for number in range(5):
                (corpus / f"{number}.txt").write_text(f"text number {number}\n" * 20)

    def task(self, name: str, **arguments: Any) -> Any:
        """Return a new operator of the pipeline."""
        where = {"engine_options": self.options}
        gang = {**where, "deferrable": False, "poll_interval_s": 0.1}
        made = {
            "open_run": (OpenRunOperator, {"spec": self.spec, "spec_folder": str(self.folder)}),
            "stage_dataset": (StageDatasetOperator, {}),
            "plan_training": (PlanTrainingOperator, where),
            "preflight": (PreflightOperator, gang),
            "run_gang": (RunGangOperator, {**gang, "outlets": [ASSET]}),
            "evaluate_checkpoint": (EvaluateCheckpointOperator, gang),
            "provision": (ProvisionCapacityOperator, RENTING),
            "release": (ReleaseOperator, where),
            "report": (ReportOperator, {}),
        }
        operator, defaults = made[name]
        with DAG(self._dag_id, schedule=None), TaskGroup("pretraining"):
            return operator(task_id=name, **{**defaults, **arguments})

    def clear(self) -> None:
        """Have Airflow clear every task: the next ones to execute are of a new generation."""
        self.generation += 1

    def context(self, task: Any, **changes: Any) -> dict[str, Any]:
        """Return the context of ``task`` in this DAG run."""
        number = self.generation + 1
        tries = {"try_number": number, "max_tries": self.generation + (task.retries or 0)}
        ti_id = f"00000000-0000-0000-0000-{number:012d}"
        return context_of(task, **{"started": self.started, "ti_id": ti_id, **tries, **changes})

    def run(self, name: str, *, context: dict[str, Any] | None = None, **arguments: Any) -> Any:
        """Execute a task and return its result. ``context`` holds changes to its context."""
        task = self.task(name, **arguments)
        return task.execute(self.context(task, **(context or {})))

    def prepare(self) -> Pipeline:
        """Execute what comes before training."""
        for name in ("open_run", "stage_dataset", "plan_training"):
            self.run(name)
        return self

    def defer(self, name: str, **arguments: Any) -> Deferred:
        """Execute a deferrable task up to where it defers."""
        task = self.task(name, deferrable=True, **arguments)
        context = self.context(task)
        return Deferred(task, context, deferral_of(task.execute, context))

    @property
    def scope(self) -> RunScope:
        """Return the run's scope."""
        task = self.task("report")
        return scope_of(self.context(task))

    @property
    def engine(self) -> LocalEngine:
        """Return the engine that the tasks use."""
        return LocalEngine(root=str(self.state_root / "engines" / "local"), **self.options)

    def journal(self) -> list[Any]:
        """Return the run's events."""
        return list(Journal(self.scope.store(), self.scope.run_key).read())

    def report(self) -> RunReport:
        """Return the run's report as it would be written now."""
        return gather(self.scope, end_s=time.time())

    def lose(self, name: str) -> None:
        """Delete what the run's tasks left under this name."""
        for path in self.scope.directory.glob(f"tries/*/{name}"):
            path.unlink()

    def book(self) -> LeaseBook:
        """Return what the run has rented."""
        return LeaseBook(self.scope.store(), self.scope.run_key)

    def live(self, key: RunKey | None = None) -> list[GangHandle]:
        """Return the live gangs under ``key``, by default the training's."""
        found = self.engine.find(key or self.scope.run_key)
        return [handle for handle, status in self.engine.poll(found).items() if not status.phase.ended]

    def close(self) -> None:
        """End what the test left running."""
        for key in (self.scope.run_key, self.scope.evaluation_key):
            for handle in self.live(key):
                self.engine.stop(handle, grace_s=0.0)


class Deferred:
    """A task that waits for its trigger."""

    def __init__(self, task: RunOperator, context: dict[str, Any], deferral: TaskDeferred) -> None:
        self.task = task
        self.context = context
        self.deferral = deferral

    @property
    def trigger(self) -> Any:
        """Return the trigger as the triggerer would rebuild it from the database."""
        return stored(self.deferral.trigger)

    def fire(self) -> dict[str, Any]:
        """Run the trigger to its event and return the payload as a worker would get it."""
        return through_json(asyncio.run(first_event(self.trigger)))

    def resume(self, payload: dict[str, Any]) -> Any:
        """Hand a payload to the task, in a new worker."""
        method = getattr(self.task, self.deferral.method_name)
        return method(self.context, event=payload, **through_json(self.deferral.kwargs or {}))

    def finish(self) -> Any:
        """Fire and resume until the task returns or fails."""
        while True:
            try:
                return self.resume(self.fire())
            except TaskDeferred as deferral:
                self.deferral = deferral

    def again(self, call: Any, *arguments: Any) -> None:
        """Expect ``call`` to defer once more."""
        self.deferral = deferral_of(call, *arguments)


def deferral_of(call: Any, *arguments: Any) -> TaskDeferred:
    """Return the deferral that ``call`` raises."""
    try:
        result = call(*arguments)
    except TaskDeferred as deferral:
        return deferral
    raise AssertionError(f"did not defer, but returned {result!r}")


def through_json(value: Any) -> Any:
    """Return ``value`` as it comes back from Airflow's database."""
    return BaseSerialization.deserialize(json.loads(json.dumps(BaseSerialization.serialize(value))))


def stored(trigger: Any) -> Any:
    """Return ``trigger`` as the triggerer rebuilds it."""
    _, arguments = trigger.serialize()
    return type(trigger)(**through_json(arguments))


async def first_event(trigger: Any) -> dict[str, Any]:
    """Return the payload of a trigger's only event."""
    payloads = [event.payload async for event in trigger.run()]
    (payload,) = payloads
    return payload


def watched(trigger: GangTrigger, *, state: str | None, monkeypatch: Any, map_index: int = -1) -> GangTrigger:
    """Return ``trigger`` as its task's, which Airflow reports to be in ``state``."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    task_id = "pretraining.run_gang"
    trigger._task_instance = SimpleNamespace(dag_id="plain", task_id=task_id, run_id="r", map_index=map_index)
    answer = {"r": {task_id if map_index < 0 else f"{task_id}_{map_index}": state}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_asked: answer))
    return trigger


def python_sleeping() -> list[str]:
    """Return a command that runs for minutes and ends at SIGTERM."""
    return [sys.executable, "-c", "import time; time.sleep(600)"]
