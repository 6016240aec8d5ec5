"""The files that a run's tasks hand to each other, each try's apart: what a try writes too late replaces nothing.

Airflow may take a worker for dead and begin another try, or a user may clear the task, while the first only stands
still. When that one goes on, it writes what it was about to. So a file's name holds the number of its try, which every
retry and every clear raises, and whoever reads takes the highest.
"""

from __future__ import annotations

from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.errors import ObjectMissingError
from airflow_llmsched.ports import ObjectStore


def task_file_key(run_key: RunKey, name: str, *, try_number: int) -> str:
    """Return the key of the file ``name`` that this try of a task writes."""
    return f"runs/{run_key}/tries/{try_number:06d}/{name}"


def newest_task_file(store: ObjectStore, run_key: RunKey, name: str) -> bytes:
    """Return the file ``name`` as the newest try that wrote one left it.

    Raises:
        ObjectMissingError: no try has written one.
        StoreError: the store could not be read.
    """
    keys = [info.key for info in store.list(f"runs/{run_key}/tries/") if info.key.rpartition("/")[2] == name]
    if not keys:
        raise ObjectMissingError(f"no {name} of run {run_key} in {store.uri}")
    return store.get(max(keys))
