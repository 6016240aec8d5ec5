"""Opens a run: the trivial setup whose success makes the teardown run, whatever fails in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.provider.links import RunReportLink
from airflow_llmsched.provider.operators.base import RunOperator, failing_for_good, now_s
from airflow_llmsched.provider.params import AS_IN_SPEC

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
        spec: path of a YAML file below ``spec_folder``, a mapping, or the YAML itself where ``allow_inline``.
        spec_folder: relative paths start here and may not leave it; by default the folder of the DAG file.
        allow_inline: take the YAML itself. A spec says which command runs, so that whoever may trigger the DAG then
            chooses the command: leave it off unless they may.
        objective: name of the objective to favour instead of the spec's; None or empty leaves it, like the next two.
        deadline: replaces ``budget.deadline``, e.g. ``36h``.
        max_usd: replaces ``budget.max_usd``.
        rents_capacity: a ``ProvisionCapacityOperator`` of this run heeds the spec's ``capacity`` filters. Without one
            nobody would, and a spec that has some is refused.
        chooses_cluster: the run's engine is ``fleet``, which heeds the spec's ``capacity.regions`` and
            ``capacity.jurisdictions``.
    """

    template_fields: Sequence[str] = ("spec", "objective", "deadline", "max_usd")
    operator_extra_links = (RunReportLink(),)
    ui_color = "#e8f1fb"

    def __init__(
        self,
        *,
        spec: str | Mapping[str, Any],
        spec_folder: str | None = None,
        allow_inline: bool = False,
        objective: str | None = None,
        deadline: str | None = None,
        max_usd: float | str | None = None,
        rents_capacity: bool = False,
        chooses_cluster: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.spec = spec
        self.spec_folder = spec_folder
        self.allow_inline = allow_inline
        self.objective = objective
        self.deadline = deadline
        self.max_usd = max_usd
        self.rents_capacity = rents_capacity
        self.chooses_cluster = chooses_cluster

    def execute(self, context: Context) -> dict[str, Any]:
        """Return run key, state root and the digest of the stored spec."""
        from airflow_llmsched.domain.ledger import Bucket
        from airflow_llmsched.provider import run_files
        from airflow_llmsched.provider.masking import mask_settings, refuse_secret_arguments
        from airflow_llmsched.provider.run_spans import measured
        from airflow_llmsched.specs.support import require_supported

        try:
            refuse_dagrun_timeout(context["dag"])
        except ValueError as error:
            raise AirflowFailException(str(error)) from error
        started_s = now_s()
        scope = self.scope(context)
        with failing_for_good(), measured(scope, Bucket.PROVISION, label=self.task_id, task_started_s=started_s):
            spec = self._load()
            require_supported(spec, rents_capacity=self.rents_capacity, chooses_cluster=self.chooses_cluster)
            refuse_secret_arguments(spec)
            mask_settings(spec)
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

        folder = Path(self.spec_folder or Path(self.dag.fileloc).parent).resolve()
        overrides = form_overrides(objective=self.objective, deadline=self.deadline, max_usd=self.max_usd)
        if isinstance(self.spec, Mapping):
            spec = loader.from_mapping(self.spec, file="<DAG>", base=folder, form=False, overrides=overrides)
        elif "\n" in self.spec:
            spec = loader.loads(self._inline(self.spec), file="<form>", base=folder, form=True, overrides=overrides)
        else:
            spec = loader.load(_below(folder, self.spec), overrides=overrides)
        return spec

    def _inline(self, text: str) -> str:
        from airflow_llmsched.errors import SpecError

        if not self.allow_inline:
            hint = "must name a YAML file below the DAG's folder; the DAG's author may permit text by allow_inline=True"
            raise SpecError(path="spec", value=text, hint=hint)
        return text


def form_overrides(*, objective: str | None, deadline: str | None, max_usd: float | str | None) -> dict[str, str]:
    """Return what the form sets, by path in the spec. Rendered templates give ``"None"`` for an empty field."""
    overrides = {}
    if _given(objective) and objective != AS_IN_SPEC:
        overrides["objective"] = str(objective)
    if _given(deadline):
        overrides["budget.deadline"] = str(deadline).strip()
    if _given(max_usd):
        overrides["budget.max_usd"] = f"{max_usd} USD"
    return overrides


def _given(value: object) -> bool:
    return value is not None and str(value).strip() not in ("", "None")


def _below(folder: Path, name: str) -> Path:
    from airflow_llmsched.errors import SpecError

    path = (folder / name.replace("\0", "\N{REPLACEMENT CHARACTER}")).resolve()  # no path may hold a NUL
    if not path.is_relative_to(folder):
        raise SpecError(path="spec", value=name, hint=f"must be a file below {folder}")
    return path
