"""Who of all runs is alive, sampled from ``/proc`` over and over: what anyone believes of them does not matter."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from airflow_llmsched.agent import wire
from tests.support.sampling import SamplingThread

_TRAINER = "plain_trainer.py"


class ProcessSampler(SamplingThread):
    """Samples in a thread while a ``with`` block runs. Every process of a gang carries its key and attempt's name."""

    def __init__(self, *, interval_s: float = 0.2) -> None:
        super().__init__(interval_s=interval_s)
        self._sampled = threading.Condition()
        self._now: dict[str, set[str]] = {}
        self._crowds: dict[str, set[str]] = {}
        self._ranks: dict[str, dict[str, set[int]]] = {}

    def alive(self, key: str) -> set[str]:
        """Return the names of the run's attempts that had processes in the last sample."""
        return self._now.get(key, set())

    def most_at_once(self, key: str) -> int:
        """Return how many attempts of the run were alive in one sample, at most."""
        return len(self.crowd(key))

    def crowd(self, key: str) -> set[str]:
        """Return the names of the attempts in the sample that had the most."""
        return self._crowds.get(key, set())

    def ranks(self, key: str) -> dict[str, set[int]]:
        """Return the pids of all ranks that were ever seen, by attempt."""
        return self._ranks.get(key, {})

    def wait_for_a_sample(self) -> None:
        """Return once a sample was begun and taken since the call."""
        with self._sampled:
            wanted = self.num_samples + 2
            self._sampled.wait_for(lambda: self.num_samples >= wanted or self._error is not None, timeout=60)

    def _look(self) -> None:
        now: dict[str, set[str]] = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                environment = (folder / "environ").read_bytes()
                if wire.RUN_KEY.encode() not in environment or int(folder.name) == os.getpid():
                    continue
                arguments = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # gone, or not ours
            entries = dict(entry.decode(errors="replace").partition("=")[::2] for entry in environment.split(b"\0"))
            key, name = entries.get(wire.RUN_KEY), entries.get(wire.ATTEMPT_NAME)
            if key is None or name is None:
                continue
            now.setdefault(key, set()).add(name)
            if len(arguments) > 1 and arguments[1].decode(errors="replace").endswith(_TRAINER):
                self._ranks.setdefault(key, {}).setdefault(name, set()).add(int(folder.name))
        for key, names in now.items():
            if len(names) > len(self._crowds.get(key, ())):
                self._crowds[key] = names
        self._now = now
        with self._sampled:
            self.num_samples += 1
            self._sampled.notify_all()
