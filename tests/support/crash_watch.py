"""What lives of a run, as /proc shows it: nothing that our own code says is asked."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_SAMPLE_S = 0.1
_SUPERVISOR = "airflow_llmsched.agent.supervisor"


@dataclass(frozen=True, slots=True)
class Seen:
    """A live process of a run. ``runs_rank``: it is a rank's program, not a supervisor or a wrapper around one."""

    pid: int
    attempt: str
    runs_rank: bool
    is_supervisor: bool


def processes(run_key: str, *, program: str) -> list[Seen]:
    """Return every live process that carries the mark of one of the run's gangs; a rank runs ``program``."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  (every 0.1 s)
    return [seen for pid in pids if (seen := _look(pid, run_key, program)) is not None]


def _look(pid: int, run_key: str, program: str) -> Seen | None:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        name = next((each.partition(b"=")[2] for each in environ if each.startswith(b"LLMSCHED_ATTEMPT_NAME=")), b"")
        if not name.startswith(f"{run_key}-".encode()):
            return None
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
    except OSError:
        return None  # gone, or another user's
    if state in "ZX":
        return None
    return Seen(
        pid=pid,
        attempt=name.decode(),
        runs_rank=program in command and "-m" not in command,
        is_supervisor=_SUPERVISOR in command,
    )


@dataclass
class Observer:
    """Looks again and again while a combination runs. ``max_gangs``: the most that had live ranks at one look."""

    run_key: str
    program: str
    max_gangs: int = 0
    num_looks: int = 0
    _done: threading.Event = field(default_factory=threading.Event)

    def look(self) -> int:
        """Return how many gangs have live ranks now."""
        gangs = {each.attempt for each in processes(self.run_key, program=self.program) if each.runs_rank}
        self.max_gangs = max(self.max_gangs, len(gangs))
        self.num_looks += 1
        return len(gangs)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look all the while that the block takes."""

        def watch() -> None:
            while not self._done.wait(_SAMPLE_S):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()
