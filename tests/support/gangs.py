"""Who of a run is alive: by what its processes carry in their environment, and by what its engine says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from airflow_llmsched.agent import wire
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.ports import Engine
from tests.support.sampling import SamplingThread


def processes_by_attempt(key: RunKey) -> dict[str, list[int]]:
    """Return the pids of the run's live processes by attempt name; those of its evaluation belong to another key."""
    found: dict[str, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            entries = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # gone, or not ours
        environment = dict(entry.decode(errors="replace").partition("=")[::2] for entry in entries)
        if environment.get(wire.RUN_KEY) == key:
            found.setdefault(environment[wire.ATTEMPT_NAME], []).append(int(folder.name))
    return {name: sorted(pids) for name, pids in sorted(found.items())}


def live_by_engine(engine: Engine, key: RunKey) -> set[str]:
    """Return the names of the run's gangs that the engine does not call ended."""
    handles = engine.find(key)
    statuses = engine.poll(handles) if handles else {}
    return {handle.key.name for handle in handles if not statuses[handle].phase.ended}


class Sampler(SamplingThread):
    """Looks at a run's gangs over and over, in a thread, while a ``with`` block runs."""

    def __init__(self, *looks: Callable[[], set[str]], interval_s: float = 0.1) -> None:
        super().__init__(interval_s=interval_s)
        self._looks = looks
        self.most_at_once: set[str] = set()
        self.seen: set[str] = set()

    def _look(self) -> None:
        for look in self._looks:
            self._note(look())

    def _note(self, names: set[str]) -> None:
        self.num_samples += 1
        self.seen |= names
        if len(names) > len(self.most_at_once):
            self.most_at_once = names
