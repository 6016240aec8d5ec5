"""Shots at Airflow's own workers and triggerers: a folder says who is shot where, and each is shot by itself, once.

Targets are files ``targets/<where>/<who>.json``; a test lays them out with :class:`ShootingRange`, and the
:class:`Gunman` in each process looks for its own at every effect. Whoever fires first makes ``fired/<name>`` by an
exclusive create, so that no retry is shot again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.poller import WatchState
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.domain.gang import GangHandle
from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.effect_points import Side
from airflow_llmsched.provider.gang_run import GangSettings
from airflow_llmsched.provider.run_scope import RunScope
from tests.support.crashing import Shot

RANGE = "LLMSCHED_TEST_RANGE"
"""Environment: the folder."""

WORKER, TRIGGERER, ON_KILL = "worker", "triggerer", "on_kill"
"""Where: a task's process; a triggerer that watches; a triggerer that ends a gang because its task was ended."""

KILL, KILL_ALL, STOP = "kill", "killall", "stop"
"""How: SIGKILL, the same with the process above it (supervisor of the task or of the triggers), SIGSTOP of both."""


class Gunman:
    """Listens to the effects of one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, point: str, side: Side) -> None:
        where = _where()
        targets = self._folder / "targets" / where
        recording = (self._folder / "recording").exists()
        # In a triggerer, whose run it is costs a walk up the stack: only while somebody is a target.
        if not recording and where != WORKER and not os.listdir(targets):  # noqa: PTH208 - at every effect
            return
        who = worker_name(*_task()) if where == WORKER else _run_of(sys._getframe(1))
        if who is None:
            return
        if recording:
            line = json.dumps({"where": where, "who": who, "pid": os.getpid(), "point": point, "side": side})
            with (self._folder / "recorded" / f"{os.getpid()}.jsonl").open("a") as file:
                file.write(line + "\n")
        try:
            target = json.loads((targets / f"{who}.json").read_text())
        except FileNotFoundError:
            return
        if (target["point"], target["side"]) == (point, side):
            with self._lock:
                self._counts[target["name"]] += 1
                due = self._counts[target["name"]] == target["occurrence"]
            if due:
                self._fire(target)

    def _fire(self, target: dict[str, Any]) -> None:
        pid, parent = os.getpid(), os.getppid()
        try:
            with (self._folder / "fired" / target["name"]).open("x") as file:
                tried = int(os.environ.get("AIRFLOW_CTX_TRY_NUMBER") or 0)
                file.write(json.dumps({"pid": pid, "parent": parent, "try": tried}))
        except FileExistsError:
            return
        number = signal.SIGSTOP if target["how"] == STOP else signal.SIGKILL
        if target["how"] != KILL:
            os.kill(parent, number)
        os.kill(pid, number)


class ShootingRange:
    """The test's side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("fired", "recorded", *(f"targets/{where}" for where in (WORKER, TRIGGERER, ON_KILL))):
            (folder / name).mkdir(parents=True)

    def arm(self, name: str, *, where: str, who: str, shot: Shot, how: str) -> None:
        """Have ``who`` (:func:`worker_name`, or a run key) shot."""
        target = {"name": name, "point": shot.point, "side": shot.side, "occurrence": shot.occurrence, "how": how}
        temporary = self.folder / f"{name}.tmp"
        temporary.write_text(json.dumps(target))
        temporary.replace(self.folder / "targets" / where / f"{who}.json")

    def disarm(self, *, where: str, who: str) -> None:
        (self.folder / "targets" / where / f"{who}.json").unlink(missing_ok=True)

    def fired(self, name: str) -> dict[str, int] | None:
        """Return pid and parent of who was shot, and the try of the task if it was a worker; None before that."""
        try:
            text = (self.folder / "fired" / name).read_text()
        except FileNotFoundError:
            return None
        fired: dict[str, int] | None = json.loads(text) if text else None
        return fired

    def record(self) -> None:
        (self.folder / "recording").touch()

    def recorded(self) -> list[dict[str, Any]]:
        """Return what was passed since ``record``, each process's in order, and record no more."""
        (self.folder / "recording").unlink()
        files = sorted((self.folder / "recorded").iterdir(), key=lambda path: path.stat().st_ctime_ns)
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def worker_name(run_id: str, task_id: str) -> str:
    return f"{run_id}+{task_id}"


def _task() -> tuple[str, str]:
    return os.environ["AIRFLOW_CTX_DAG_RUN_ID"], os.environ["AIRFLOW_CTX_TASK_ID"]


def _where() -> str:
    if "AIRFLOW_CTX_TASK_ID" in os.environ:
        return WORKER
    return ON_KILL if "-kill" in threading.current_thread().name else TRIGGERER


def _run_of(frame: FrameType | None) -> str | None:
    """Return the key of the run that this thread works for: from the nearest frame that has something of it."""
    while frame is not None:
        for value in list(frame.f_locals.values()):
            key = _key_in(value)
            if key is not None:
                return str(key)
        frame = frame.f_back
    return None


def _key_in(value: object) -> str | None:
    if isinstance(value, RunDriver):
        value = value._journal
    if isinstance(value, GangSettings):
        value = value.scope
    if isinstance(value, WatchState):
        value = value.handle
    if isinstance(value, GangHandle):
        value = value.key
    if isinstance(value, AttemptKey):
        return value.run
    return value.run_key if isinstance(value, Journal | RunScope) else None
