"""A process of the crash harness: it makes one call, and at its shot it sends itself a signal.

Forked from a server that has imported everything, so that one costs milliseconds. What its call returns, what it passed
and what it printed it leaves in files.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.effect_points import Listener, Side, listen
from tests.support.crashing import Gun, Recorder, Shot
from tests.support.waiting import wait_until

LIMIT_S = 90.0
"""How long anything may take on a loaded machine."""

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.support.crash_house", "tests.support.crash_parts"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What a process is to do, and what befalls it: at its ``shot`` it sends itself the ``signal``.

    ``marks`` is a file that it makes just before.
    """

    call: Callable[..., object]
    arguments: tuple[Any, ...]
    files: str
    marks: str | None
    shot: Shot | None = None
    signal: int = signal.SIGKILL
    records: bool = False


class Actor:
    """A process that calls ``call(*arguments)``, which must be of a module; its files begin with ``files``.

    ``marks`` is a file that it makes just before it is shot.
    """

    def __init__(self, call: Callable[..., object], *arguments: object, files: Path, marks: Path | None = None) -> None:
        unique = f"{files}-{time.monotonic_ns()}"
        self._part = _Part(call=call, arguments=arguments, files=unique, marks=str(marks) if marks else None)
        self.process: Any = None

    def start(self, *, shot: Shot | None = None, number: int = signal.SIGKILL, records: bool = False) -> Actor:
        """Set out. At its ``shot`` it sends itself signal ``number``; ``records``: it notes what it passes."""
        part = replace(self._part, shot=shot, signal=int(number), records=records)
        self.process = _SERVER.Process(target=_play, args=(part,))
        self.process.start()
        return self

    def end(self) -> int:
        """Wait for the end and return the exit code, negative for a signal."""
        self.process.join(LIMIT_S)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"{self._part.files} did not end within {LIMIT_S} s\n{self.log()}")
        code: int = self.process.exitcode
        return code

    def wait_until_it_stands_still(self) -> None:
        """Wait until it has stopped itself. Raises ``AssertionError`` when it ended without."""
        wait_until(lambda: state_of(self.process.pid) in "TZ", LIMIT_S)
        assert state_of(self.process.pid) == "T", f"it was never there\n{self.log()}"

    def thaw(self) -> None:
        """Have it go on, and return once it has come to its next effect, or to its end."""
        os.kill(self.process.pid, signal.SIGCONT)
        wait_until(lambda: self._path("went_on").exists() or not self.process.is_alive(), LIMIT_S)

    def result(self) -> Any:
        """Wait for an orderly end and return what it came to, as plain values."""
        assert self.end() == 0, self.log()
        return json.loads(self._path("result").read_text())

    def passages(self) -> list[Shot]:
        """Return the first and the last passage of each point."""
        self.result()
        plain = json.loads(self._path("passages").read_text())
        return [Shot(point, Side(side), occurrence) for point, side, occurrence in plain]

    def log(self) -> str:
        """Return what it printed."""
        path = self._path("log")
        return path.read_text() if path.exists() else ""

    def _path(self, ending: str) -> Path:
        return Path(f"{self._part.files}.{ending}")


def state_of(pid: int) -> str:
    """Return the kernel's letter for a process; Z for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
    except OSError:
        return "Z"


def _play(part: _Part) -> None:
    """Be the process: all of it happens here, after the fork."""
    log = os.open(f"{part.files}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    recorder = Recorder()
    if part.shot is not None:
        listen(_shooting(part, Gun(part.shot, lambda: _shoot(part))))
    elif part.records:
        listen(recorder)
    try:
        result = part.call(*part.arguments)
    except BaseException:
        traceback.print_exc()
        raise
    listen(None)
    passages = [(each.point, each.side, each.occurrence) for each, _ in recorder.first_and_last()]
    Path(f"{part.files}.passages").write_text(json.dumps(passages))
    Path(f"{part.files}.result").write_text(json.dumps(codec.to_plain(result)))


def _shooting(part: _Part, gun: Gun) -> Listener:
    """Return a listener that shoots, and then, where the shot only stopped the process, notes that it went on."""

    def listener(point: str, side: Side) -> None:
        if gun.fired:
            Path(f"{part.files}.went_on").touch()
        gun(point, side)

    return listener


def _shoot(part: _Part) -> None:
    if part.marks is not None:
        Path(part.marks).touch()
    os.kill(os.getpid(), part.signal)
