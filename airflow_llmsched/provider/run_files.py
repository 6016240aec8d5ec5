"""The files of one run that tasks hand to each other. XCom carries only where they are, their digest and a summary.

Each try of a task writes its own (``control.task_files``): one that stood still replaces no newer one when it goes on.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.control import closing
from airflow_llmsched.control.task_files import newest_task_file, task_file_key
from airflow_llmsched.domain.plan import PlanSearch
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import DataError, ObjectMissingError
from airflow_llmsched.provider.run_scope import RunScope

T = TypeVar("T")

_WRITE = EffectPoint("run_files.write")
_DELETE = EffectPoint("run_files.delete")

SPEC_FILE = closing.SPEC_FILE
PLAN_FILE = "plan.json"
PREFLIGHT_FILE = "preflight.json"
EVALUATION_FILE = "evaluation.json"
DATASET_FILE = "dataset.json"


def write(scope: RunScope, name: str, value: Any) -> dict[str, str]:
    """Store ``value`` in the run's folder, as this try's. Returns its URI and sha256, small enough for XCom."""
    return write_data(scope, name, codec.to_json(value))


def write_data(scope: RunScope, name: str, data: bytes) -> dict[str, str]:
    """Store ``data`` as :func:`write` does."""
    key = _key(scope, name)
    store = scope.store()
    with _WRITE:
        store.put(key, data)
    return {"uri": f"{store.uri}/{key}", "digest": hashlib.sha256(data).hexdigest()}


@_DELETE
def delete(scope: RunScope, name: str) -> None:
    """Remove this try's file of the run; silent when it is absent."""
    scope.store().delete(_key(scope, name))


def read(scope: RunScope, name: str, type_: type[T], *, made_by: str) -> T:
    """Load what the newest try stored. Raises ``DataError`` naming the task to run when it is absent or damaged."""
    try:
        return codec.from_json(type_, newest_task_file(scope.store(), scope.run_key, name))
    except ObjectMissingError as error:
        raise DataError(
            f"{name} of run {scope.run_key} is absent: run {made_by} first, in the same task group"
        ) from error
    except ValidationError as error:
        raise DataError(f"{name} of run {scope.run_key} is damaged: clear {made_by} to write it again") from error


def exists(scope: RunScope, name: str) -> bool:
    """Return whether any try has stored the file. Raises ``StoreError``."""
    try:
        newest_task_file(scope.store(), scope.run_key, name)
    except ObjectMissingError:
        return False
    return True


def read_spec(scope: RunScope) -> WorkloadSpec:
    """Load the run's workload spec."""
    return read(scope, SPEC_FILE, WorkloadSpec, made_by="OpenRunOperator")


def read_plan(scope: RunScope) -> PlanSearch:
    """Load the run's plan."""
    return read(scope, PLAN_FILE, PlanSearch, made_by="PlanTrainingOperator")


def planned_tools(scope: RunScope) -> tuple[str, ...]:
    """Return the tools that the run was planned for; none where nobody planned ahead. Raises as :func:`read`."""
    return read_plan(scope).tools if exists(scope, PLAN_FILE) else ()


def dataset_directory(scope: RunScope, spec: WorkloadSpec) -> Path:
    """Where this spec's data is staged: shared by all runs of the deployment that ask for the same data."""
    wanted = codec.to_json(spec.data)
    return Path(scope.state_root) / "datasets" / hashlib.sha256(wanted).hexdigest()[:16]


def _key(scope: RunScope, name: str) -> str:
    return task_file_key(scope.run_key, name, try_number=scope.try_number)
