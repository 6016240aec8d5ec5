"""How often watching failed in a row, in the run's folder: Airflow drops a task's own count when a trigger raises."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmsched.errors import DataError
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.run_scope import RunScope


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenWatches:
    """Failed watches in a row of the try ``owner``, a task instance's id."""

    owner: str
    count: int


def count_broken(scope: RunScope, purpose: str, *, owner: str) -> int:
    """Count one more and return how many failed in a row. Another owner, a new try, starts at one."""
    before = _read(scope, purpose)
    count = before.count + 1 if before is not None and before.owner == owner else 1
    run_files.write(scope, _name(purpose), BrokenWatches(owner=owner, count=count))
    return count


def forget_broken(scope: RunScope, purpose: str) -> None:
    """Start at none again: a watch ended well."""
    run_files.delete(scope, _name(purpose))


def _read(scope: RunScope, purpose: str) -> BrokenWatches | None:
    try:
        return run_files.read(scope, _name(purpose), BrokenWatches, made_by="a broken watch")
    except DataError:
        return None


def _name(purpose: str) -> str:
    return f"broken-watches-{purpose}.json"
