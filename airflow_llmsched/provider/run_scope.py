"""Which run a task belongs to, worked out from its Airflow context alone: never from XCom, which a clear deletes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_llmsched.control.deployment import deployment_id
from airflow_llmsched.domain.identity import RunKey, RunOrigin, derive_run_key
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.ports import ObjectStore
from airflow_llmsched.provider.config import state_root


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScope:
    """One run and where its files are. ``try_number`` is that of the task that works on it: clears raise it too."""

    state_root: str
    run_key: RunKey
    dag_id: str
    run_id: str
    task_group_id: str
    started_at_s: float
    deployment_id: str = ""
    try_number: int = 0

    @property
    def directory(self) -> Path:
        """Folder of this run's files below the state root."""
        return Path(self.state_root) / "runs" / self.run_key

    @property
    def evaluation_key(self) -> RunKey:
        """Run key of the evaluation gang, so that it and the training gang never answer for each other."""
        return derive_run_key(
            deployment_id=self.run_key, dag_id="", run_id="", run_after="", task_group_id="evaluation", map_index=-1
        )

    def preflight_key(self, number: int) -> RunKey:
        """Return the run key of the gang that checks nodes in round ``number``."""
        return derive_run_key(
            deployment_id=self.run_key, dag_id="", run_id="", run_after="", task_group_id="preflight", map_index=number
        )

    @property
    def checks_key(self) -> RunKey:
        """Return what the checks of all rounds claim as: one after the other, on the nodes that the run is to have."""
        return self.preflight_key(0)

    @property
    def origin(self) -> RunOrigin:
        """What every gang of this run says of itself."""
        return RunOrigin(deployment_id=self.deployment_id, run=self.run_key, dag_id=self.dag_id, run_id=self.run_id)

    def store(self) -> ObjectStore:
        """Open the deployment's object store."""
        return open_store(self.state_root)


def scope_of(context: Mapping[str, Any], *, run_scope: str | None = None) -> RunScope:
    """Derive the scope of the task in ``context``.

    Tasks of one task group (or, outside any, of one DAG run) share a run; ``run_scope`` names another grouping. Raises
    ``StoreError`` when the state root cannot be read or written.
    """
    ti, dag_run = context["ti"], context["dag_run"]
    group = context["task"].task_group
    group_id = run_scope if run_scope is not None else (group.group_id or "" if group is not None else "")
    root = state_root()
    started = dag_run.start_date or dag_run.run_after
    deployment = deployment_id(open_store(root))
    key = derive_run_key(
        deployment_id=deployment,
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        run_after=dag_run.run_after.isoformat(),
        task_group_id=group_id,
        map_index=-1 if ti.map_index is None else ti.map_index,
    )
    return RunScope(
        state_root=root,
        run_key=key,
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_group_id=group_id,
        started_at_s=started.timestamp(),
        deployment_id=deployment,
        try_number=int(ti.try_number or 0),
    )


def generation_of(context: Mapping[str, Any]) -> int:
    """Return a number that a clear raises and a retry leaves alone.

    Airflow sets ``max_tries`` to the configured retries at first, and to ``try_number + retries`` on a clear, so the
    difference is 0 and then the number of tries that had been used. Clearing a *running* task leaves ``max_tries``
    alone: its cancel record in the journal closes the generation instead.
    """
    return max(0, int(context["ti"].max_tries) - int(context["task"].retries or 0))
