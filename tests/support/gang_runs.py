"""A DAG run of many small gangs (``gang_dags/gangs.py``), looked at from outside: processes, journals, task states."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from airflow_llmsched.agent import wire
from airflow_llmsched.control import history
from airflow_llmsched.control.events import AnyEvent
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.machine import fold
from airflow_llmsched.control.records import read_all
from airflow_llmsched.control.run_state import RunState
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.telemetry.channel import DirectoryChannel
from airflow_llmsched.testing.airflow_client import RUN_ENDED
from airflow_llmsched.testing.airflow_stack import AirflowStack
from tests.support.waiting import wait_until

DAGS = Path(__file__).parent / "gang_dags"
HOLD_AT = 7
NUM_STEPS = 12
LIMIT_S = 240.0

Processes = dict[str, dict[str, list[int]]]


def processes_by_key(keys: Iterable[str]) -> Processes:
    """Return the pids of live processes of these runs by key and attempt name, from one look at all processes."""
    found: Processes = {key: {} for key in keys}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            entries = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # gone, or not ours
        environment = dict(entry.decode(errors="replace").partition("=")[::2] for entry in entries)
        mine = found.get(environment.get(wire.RUN_KEY, ""))
        if mine is not None:
            mine.setdefault(environment[wire.ATTEMPT_NAME], []).append(int(folder.name))
    return {key: {name: sorted(pids) for name, pids in attempts.items()} for key, attempts in found.items()}


class Gang:
    """One gang's run."""

    def __init__(self, runs: GangRuns, task_id: str, key: RunKey) -> None:
        self.task_id = task_id
        self.key = key
        self.journal = Journal(open_store(str(runs.state_root)), key)
        self._channels = runs.state_root / "runs" / key / "channel"
        self._hold = runs.hold / task_id
        self._machine = runs.state_root / "engines" / runs.run_id / task_id

    def events(self) -> tuple[AnyEvent, ...]:
        return self.journal.read()

    def state(self) -> RunState:
        return fold(self.key, self.events())

    def attempts(self) -> list[tuple[int, int]]:
        return [(each.key.generation, each.key.attempt) for each in history.attempts(self.events())]

    def num(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events())

    def is_held(self) -> bool:
        """Whether its ranks stand still at the chosen step, as they say themselves."""
        return any(f'"step":{HOLD_AT}' in path.read_text().replace(" ", "") for path in self._channels.glob("*/up/*"))

    def trained(self) -> list[int]:
        """Return every step that its agents reported, over all attempts."""
        roots = [each.channel_root for each in history.attempts(self.events())]
        return [step.step for root in roots for report in read_all(DirectoryChannel(root)) for step in report.steps]

    def leases_s(self) -> list[float]:
        """Return until when each attempt's lease runs, as its channel has it."""
        return [
            float(json.loads(path.read_text())["until_s"]) for path in sorted(self._channels.glob("*/down/lease.json"))
        ]

    def let_go(self) -> None:
        self._hold.touch()

    def blind(self) -> None:
        """Have the engine look in vain, by a file that cannot be read: a link to itself. To agents it is not there."""
        for gang in self._machine.glob("gangs/*"):
            (gang / "stop.json").symlink_to("stop.json")

    def unblind(self) -> None:
        for gang in self._machine.glob("gangs/*"):
            if (gang / "stop.json").is_symlink():  # a pattern would not find it: it leads nowhere
                (gang / "stop.json").unlink()


class GangRuns:
    """One DAG run of the ``gangs`` family."""

    def __init__(self, stack: AirflowStack, hold: Path, *, dag_id: str, run_id: str, start: bool = True) -> None:
        self.client = stack.client
        self.stack = stack
        self.dag_id = dag_id
        self.run_id = run_id
        self.hold = hold / run_id
        self.hold.mkdir(parents=True)
        self.state_root = stack.home / "llmsched"
        self._gangs: dict[str, Gang] = {}
        if start:
            self.start()

    def start(self) -> None:
        """Trigger the DAG run."""
        wait_until(lambda: self.client.dag(self.dag_id), limit_s=120)
        self.client.trigger(self.dag_id, run_id=self.run_id, conf={"hold": str(self.hold)})

    def has_ended(self) -> bool:
        return self.client.dag_run(self.dag_id, self.run_id)["state"] in RUN_ENDED

    @property
    def gangs(self) -> dict[str, Gang]:
        """The gangs by task id, once they are opened."""
        if not self._gangs:
            keys = self.wait_for(lambda: self.client.xcom(self.dag_id, self.run_id, "open"))
            self._gangs = {task_id: Gang(self, task_id, RunKey(key)) for task_id, key in sorted(keys.items())}
        return self._gangs

    def tasks(self) -> dict[str, str | None]:
        return self.client.task_states(self.dag_id, self.run_id)

    def processes(self) -> Processes:
        """Return the live processes of all gangs, by key and attempt name."""
        return processes_by_key(gang.key for gang in self.gangs.values())

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Wait in mid-run. A run that has ended will not come to it any more."""

        def met() -> Any:
            value = condition()
            if not value:
                assert self.client.dag_run(self.dag_id, self.run_id)["state"] not in RUN_ENDED, self.tasks()
            return value

        return wait_until(met, limit_s=LIMIT_S, poll_s=0.5)

    def wait_until_held(self) -> Processes:
        """Wait until all gangs stand still, each watched by a triggerer; return their processes."""
        self.wait_for(lambda: all(gang.is_held() for gang in self.gangs.values()))
        self.wait_for(lambda: {self.tasks()[task_id] for task_id in self.gangs} == {"deferred"})
        self.wait_for(lambda: None not in self.holders())
        return self.processes()

    def holders(self) -> set[str | None]:
        """Return which triggerers have the gangs' triggers in hand; None among them for a gang that none has."""
        return {self.stack.triggerer_of(self.dag_id, self.run_id, task_id) for task_id in self.gangs}

    def let_be(self) -> set[str]:
        """Return the tasks whose triggerer was told to end their trigger, and left the gang to others."""
        logs = (self.stack.home / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.run_id}").glob("*/*.trigger.*.log")
        told = [path for path in logs if "the gang goes on" in path.read_text()]
        return {path.parent.name.removeprefix("task_id=") for path in told}

    def let_go(self) -> None:
        for gang in self.gangs.values():
            gang.let_go()

    def let_go_early(self, task_id: str) -> None:
        """Let a gang that is not opened yet train through without a stop."""
        (self.hold / task_id).touch()

    def wait_for_end(self) -> str:
        state: str = self.client.wait(self.dag_id, self.run_id, limit_s=LIMIT_S)["state"]
        return state
