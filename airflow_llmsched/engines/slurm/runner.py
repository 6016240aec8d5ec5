"""Runs commands where the cluster's commands are: what is asked of it, and the form for this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_llmsched.errors import CouldNotLookError

_KEPT = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "SLURM_CONF")
)
"""All that Slurm's commands, and the jobs that inherit it from them, are given of this process's environment.

A worker's environment holds Airflow's secrets, which a job's script on shared disk must not have; and settings such as
``SBATCH_PARTITION`` or ``SQUEUE_FORMAT`` would change what we ask for.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that ran to its end."""

    exit_code: int
    stdout: str
    stderr: str


class Runner(Protocol):
    """Runs one command, somewhere."""

    def run(self, argv: Sequence[str], *, stdin: str = "", limit_s: float) -> Completed:
        """Return how it ended. Raises ``CouldNotLookError`` when that is unknown, or it did not start."""


class LocalRunner:
    """A ``Runner`` on this machine. ``environment`` adds to what commands are given."""

    def __init__(self, *, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(environment or {})

    def run(self, argv: Sequence[str], *, stdin: str = "", limit_s: float) -> Completed:
        """Return how it ended. A command that does not end in time is ended."""
        kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")}
        try:
            done = subprocess.run(
                argv,
                input=stdin.encode(),
                capture_output=True,
                timeout=limit_s,
                env={**kept, **self._environment},
                cwd="/",
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CouldNotLookError(f"{argv[0]} did not answer within {limit_s:g} s; look again") from error
        except OSError as error:
            raise CouldNotLookError(f"{argv[0]} did not run: {error.strerror}; is Slurm's client installed?") from error
        return Completed(
            exit_code=done.returncode,
            stdout=done.stdout.decode(errors="replace"),
            stderr=done.stderr.decode(errors="replace"),
        )
