"""Opens a run: the trivial setup whose success makes the teardown run, whatever fails in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.provider.links import RunReportLink
from airflow_llmsched.provider.operators.base import RunOperator, failing_for_good, now_s
from airflow_llmsched.provider.params import AS_IN_SPEC, OBJECTIVES

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmsched.domain.workload import WorkloadSpec


def refuse_dagrun_timeout(dag: Any) -> None:
    """Raise ``ValueError`` for a DAG whose ``dagrun_timeout`` would skip the teardown and leave a gang running."""
    if dag is not None and getattr(dag, "dagrun_timeout", None) is not None:
        raise ValueError(
            f"DAG {dag.dag_id!r} sets dagrun_timeout: when it strikes, Airflow skips every unfinished task, the "
            "teardown too, and the gang would run on. Remove it and set budget.deadline in the spec (or the form's "
            "Deadline): the run is then stopped with a checkpoint and everything is released"
        )


class OpenRunOperator(RunOperator):
    """Check the spec, store it in the run's folder, and name the run. Changes nothing outside the state root.

    Args:
        spec: path of a YAML file (relative to ``spec_folder``), the YAML itself, or a mapping.
        spec_folder: relative paths start here and may not leave it; by default the folder of the DAG file.
        objective, deadline, max_usd: settings of the DAG-run form that replace the spec's own; None or empty leaves it.
    """

    template_fields: Sequence[str] = ("spec", "objective", "deadline", "max_usd")
    operator_extra_links = (RunReportLink(),)
    ui_color = "#e8f1fb"

    def __init__(
        self,
        *,
        spec: str | Mapping[str, Any],
        spec_folder: str | None = None,
        objective: str | None = None,
        deadline: str | None = None,
        max_usd: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.spec = spec
        self.spec_folder = spec_folder
        self.objective = objective
        self.deadline = deadline
        self.max_usd = max_usd

    def execute(self, context: Context) -> dict[str, Any]:
        """Return run key, state root and the digest of the stored spec."""
        from airflow_llmsched.domain.ledger import Bucket
        from airflow_llmsched.provider import run_files
        from airflow_llmsched.provider.run_spans import measured

        try:
            refuse_dagrun_timeout(context["dag"])
        except ValueError as error:
            raise AirflowFailException(str(error)) from error
        started_s = now_s()
        scope = self.scope(context)
        with failing_for_good(), measured(scope, Bucket.PROVISION, label=self.task_id, task_started_s=started_s):
            spec = self._load()
            stored = run_files.write(scope, run_files.SPEC_FILE, spec)
        self.log.info("run %s of %r opened under %s", scope.run_key, spec.name, scope.state_root)
        return {
            "run_key": scope.run_key,
            "state_root": scope.state_root,
            "name": spec.name,
            "spec_uri": stored["uri"],
            "spec_digest": stored["digest"],
        }

    def _load(self) -> WorkloadSpec:
        from airflow_llmsched.specs import loader

        if isinstance(self.spec, Mapping):
            spec = loader.from_mapping(self.spec, file="<DAG>")
        elif "\n" in self.spec:
            spec = loader.loads(self.spec, file="<form>")
        else:
            spec = loader.load(self._path())
        return with_form_settings(spec, objective=self.objective, deadline=self.deadline, max_usd=self.max_usd)

    def _path(self) -> Path:
        from airflow_llmsched.errors import SpecError

        folder = Path(self.spec_folder or Path(self.dag.fileloc).parent).resolve()
        path = (folder / str(self.spec)).resolve()
        if not path.is_relative_to(folder):
            raise SpecError(path="spec", value=str(self.spec), hint=f"must be a file below {folder}")
        return path


def with_form_settings(
    spec: WorkloadSpec, *, objective: str | None, deadline: str | None, max_usd: float | str | None
) -> WorkloadSpec:
    """Return ``spec`` with what the form sets. Rendered templates give ``"None"`` for an empty field.

    Raises ``SpecError`` naming the form's field.
    """
    from airflow_llmsched.domain.workload import ObjectiveWeights
    from airflow_llmsched.errors import SpecError
    from airflow_llmsched.specs.quantities import parse_duration_s

    budget = spec.budget
    if _given(objective) and objective != AS_IN_SPEC:
        if objective not in OBJECTIVES:
            raise SpecError(path="form.objective", value=objective, hint=f"must be one of {', '.join(OBJECTIVES)}")
        spec = replace(spec, objective=ObjectiveWeights(**{"throughput": 0.0, str(objective): 1.0}))
    if _given(deadline):
        try:
            budget = replace(budget, deadline_s=parse_duration_s(str(deadline).strip()))
        except ValueError as error:
            raise SpecError(path="form.deadline", value=deadline, hint=str(error)) from error
    if _given(max_usd):
        budget = replace(budget, max_usd=float(str(max_usd)))
    return replace(spec, budget=budget)


def _given(value: object) -> bool:
    return value is not None and str(value).strip() not in ("", "None")
