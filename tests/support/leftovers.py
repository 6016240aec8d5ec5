"""What a gang that ended by itself has left running, measured against what its supervisors promise."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from airflow_llmsched.agent import proc
from tests.support.waiting import wait_until

_SUPERVISOR = b"airflow_llmsched.agent.supervisor"
_LEAVES_WITHIN_S = 10.0


def left_of(processes: Collection[proc.Process]) -> list[proc.Process]:
    """Return which of an ended gang's ``processes`` should not be there.

    A supervisor ends all that it started and then records the end, so only itself may still be there: for as long as it
    takes to leave, which a busy machine draws out. One that stays is returned as well.
    """
    leaving = [each for each in processes if _is_leaving(each)]
    with suppress(AssertionError):
        wait_until(lambda: not any(map(proc.alive, leaving)), _LEAVES_WITHIN_S)
    return [each for each in processes if each not in leaving or proc.alive(each)]


def _is_leaving(process: proc.Process) -> bool:
    """Whether a process is a supervisor, or so far on its way out that it has no arguments any more."""
    try:
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return True
    return not arguments or _SUPERVISOR in arguments.split(b"\0")
