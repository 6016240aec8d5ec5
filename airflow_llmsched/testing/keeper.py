"""Keeps a set of long-running processes together: all end when asked or when their owner dies.

Run as ``python -m airflow_llmsched.testing.keeper SPEC.json``. Each component leads a session of its own, and ends with
every process of that session: Airflow's task processes change their process group but not their session, while gangs,
which are meant to outlive Airflow, lead sessions of their own. The owner holds the other end of our standard input:
when it closes without the line ``detach`` before that, the owner is gone, and so are we, even after its SIGKILL. The
line ``restart NAME`` ends one component and starts it anew. Knows nothing of Airflow.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

GRACE_S = 14.0
"""From the first SIGTERM to SIGKILL of a component's session."""
_TICK_S = 0.2
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same number. ``started_at_s`` is Unix seconds."""

    pid: int
    started_at_s: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Read who ``pid`` is now. Raises ``psutil.NoSuchProcess``."""
        return cls(pid=pid, started_at_s=psutil.Process(pid).create_time())

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.started_at_s) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def members(sessions: Iterable[int]) -> list[int]:
    """Return the pids of live processes in any of ``sessions``."""
    wanted = set(sessions)
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getsid(process.pid) in wanted and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, PermissionError):
            continue
    return found


def marked(entry: str) -> list[int]:
    """Return the pids of live processes, other than our own, whose environment had ``NAME=value`` at their start."""
    name, _, value = entry.partition("=")
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(name) == value:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def pause(leaders: Sequence[int]) -> None:
    """Freeze every process of the sessions by SIGSTOP. Returns once all stand still, those forked meanwhile too."""
    while moving := [pid for pid in members(leaders) if _status(pid) not in (psutil.STATUS_STOPPED, None)]:
        _signal(moving, signal.SIGSTOP)
        time.sleep(_TICK_S / 20)


def resume(leaders: Sequence[int]) -> None:
    """Let every frozen process of the sessions go on."""
    _signal(members(leaders), signal.SIGCONT)


def kill_sessions(leaders: Sequence[int]) -> None:
    """Kill every process of the sessions by SIGKILL. Returns once none is left."""
    while left := members(leaders):
        _signal(left, signal.SIGKILL)
        time.sleep(_TICK_S / 20)


def end_sessions(leaders: Sequence[int], *, grace_s: float = GRACE_S) -> None:
    """End the sessions: their leaders by SIGTERM, then, after half of ``grace_s``, whoever is left as ``end_all`` does.

    Leaders first, because Airflow's components end their own children in an order that loses nothing. What is frozen
    goes on, for it would not hear of it.
    """
    _signal(leaders, signal.SIGTERM)
    resume(leaders)
    _wait_for_none(lambda: members(leaders), limit_s=grace_s / 2)
    end_all(lambda: members(leaders), grace_s=grace_s / 2)


def end_all(find: Callable[[], Sequence[int]], *, grace_s: float = GRACE_S) -> None:
    """End what ``find`` returns: SIGTERM, up to ``grace_s`` seconds, then SIGKILL until it returns none."""
    _signal(find(), signal.SIGTERM)
    _wait_for_none(find, limit_s=grace_s)
    while left := find():
        _signal(left, signal.SIGKILL)
        time.sleep(_TICK_S / 2)


class Keeper:
    """Starts the components of one spec and writes their state to its ``state_path``.

    Each component has an ``argv``, a ``log_path`` and an ``environment`` on top of the keeper's own.
    ``sweep`` is None or an environment entry: whatever carries it ends too, after the components, gangs included.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._state_path = Path(spec["state_path"])
        self._components: Mapping[str, Mapping[str, Any]] = spec["components"]
        self._info: Mapping[str, Any] = spec["info"]
        self._sweep: str | None = spec["sweep"]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ids: dict[str, ProcessId] = {}
        self._ended: dict[str, int] = {}
        self._asked_to_end = False

    def run(self) -> None:
        """Start all, then wait until asked to end or deserted; always ends every session it started."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            for name, component in self._components.items():
                self._start(name, component)
            self._write_state()
            self._wait()
        finally:
            end_sessions([process.pid for process in self._running.values()])
            if self._sweep is not None:
                sweep = self._sweep
                end_all(lambda: marked(sweep))
            self._state_path.unlink(missing_ok=True)

    def _start(self, name: str, component: Mapping[str, Any]) -> None:
        with Path(component["log_path"]).open("ab") as log:
            process = subprocess.Popen(
                component["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **component["environment"]},
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - the keeper has one thread
            )
        self._running[name] = process
        self._ids[name] = ProcessId.of(process.pid)

    def _wait(self) -> None:
        owned = True
        while not self._asked_to_end:
            readable = select.select([sys.stdin.fileno()] if owned else [], [], [], _TICK_S)[0]
            self._note_ends()
            if not readable:
                continue
            match os.read(sys.stdin.fileno(), 64).decode().split():
                case ["restart", name] if name in self._components:
                    self._restart(name)
                case ["detach"]:
                    owned = False
                case _:
                    return

    def _restart(self, name: str) -> None:
        end_sessions([self._running[name].pid], grace_s=2 * GRACE_S)
        self._running[name].wait()
        self._ended.pop(name, None)
        self._start(name, self._components[name])
        self._write_state()

    def _note_ends(self) -> None:
        """Look without reaping: an unreaped leader keeps its number, so its session cannot become someone else's."""
        for name, process in self._running.items():
            if name in self._ended:
                continue
            end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end is not None:
                self._ended[name] = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
                self._write_state()

    def _write_state(self) -> None:
        me = ProcessId.of(os.getpid())
        state = {
            "keeper": {"pid": me.pid, "started_at_s": me.started_at_s},
            "components": {
                name: {"pid": each.pid, "started_at_s": each.started_at_s, "exit_code": self._ended.get(name)}
                for name, each in self._ids.items()
            },
            "info": self._info,
        }
        temporary = self._state_path.with_suffix(".tmp")
        temporary.write_text(json.dumps(state))
        temporary.replace(self._state_path)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._asked_to_end = True


def _die_with_parent() -> None:
    """Between fork and exec: should the keeper itself be killed hard, its components get SIGTERM from the kernel."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_for_none(find: Callable[[], Sequence[int]], *, limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while find() and time.monotonic() < deadline_s:
        time.sleep(_TICK_S / 2)


def _status(pid: int) -> str | None:
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return None


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    Keeper(json.loads(Path(sys.argv[1]).read_text())).run()
