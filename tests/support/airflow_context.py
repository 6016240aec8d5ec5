"""A task's context as far as our operators read it, without a running Airflow."""

from __future__ import annotations

import datetime
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

UTC = datetime.UTC


class OutletEvents(defaultdict[Any, SimpleNamespace]):
    """Collects what a task says of its outlets."""

    def __init__(self) -> None:
        super().__init__(lambda: SimpleNamespace(extra={}))


def context_of(
    task: Any,
    *,
    run_id: str = "manual__1",
    try_number: int = 1,
    max_tries: int | None = None,
    map_index: int = -1,
    ti_id: str = "00000000-0000-0000-0000-000000000001",
    run_after: datetime.datetime = datetime.datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    started: datetime.datetime | None = None,
) -> dict[str, Any]:
    """Return a context for ``task``. ``max_tries`` defaults to what Airflow sets before any clear."""
    retries = getattr(task, "retries", 0) or 0
    ti = SimpleNamespace(
        id=ti_id,
        dag_id=getattr(task, "dag_id", "dag"),
        task_id=task.task_id,
        run_id=run_id,
        map_index=map_index,
        try_number=try_number,
        max_tries=retries if max_tries is None else max_tries,
        start_date=started or datetime.datetime.now(UTC),
    )
    ti.pushed = {}
    ti.xcom_push = lambda *, key, value: ti.pushed.__setitem__(key, value)
    dag_run = SimpleNamespace(
        run_id=run_id, run_after=run_after, start_date=started or datetime.datetime.now(UTC), logical_date=None
    )
    dag = getattr(task, "dag", None) if getattr(task, "has_dag", lambda: False)() else None
    return {
        "ti": ti,
        "task_instance": ti,
        "task": task,
        "dag_run": dag_run,
        "dag": dag,
        "params": {},
        "outlet_events": OutletEvents(),
    }
