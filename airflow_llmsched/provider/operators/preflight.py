"""Checks the very nodes of a plan before the gang starts on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_llmsched.provider.operators.base import now_s
from airflow_llmsched.provider.operators.gang_base import GangOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmsched.control.context import Outcome, Succeeded
    from airflow_llmsched.provider.gang_run import GangSettings
    from airflow_llmsched.provider.preflight_run import PreflightRun
    from airflow_llmsched.provider.run_scope import RunScope


class PreflightOperator(GangOperator):
    """Run a gang of checks on the nodes of the run's plan; leave out what is unfit, and plan and check anew.

    Accelerators and the links between them, network cards, storage, arithmetic, the links between nodes by pairs, and a
    collective over all ranks. A node that fails is used neither by this run's training nor by its restarts; the plan is
    made anew without it, and the new nodes are checked together. It belongs between ``PlanTrainingOperator`` and
    ``RunGangOperator``; its ranks need PyTorch.

    Args:
        limit: how long one round may take.
        max_rounds: rounds after which the task fails if some nodes are still unfit.
        min_share: a node with accelerators that measures less than this share of the median of all nodes, in any rate,
            is unfit; None compares nothing.
        folders: folders, besides that of the checkpoints, that every node must be able to write and read.
        nccl_tests: path of nccl-tests' ``all_reduce_perf`` on the nodes; empty: it is not run.

    Others as in ``GangOperator``.
    """

    template_fields: Sequence[str] = (*GangOperator.template_fields, "folders", "nccl_tests")
    ui_color = "#eaf4e4"
    purpose = "preflight"

    def __init__(
        self,
        *,
        limit: str = "15min",
        max_rounds: int = 3,
        min_share: float | None = 0.5,
        folders: Sequence[str] = (),
        nccl_tests: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.limit = limit
        self.max_rounds = max_rounds
        self.min_share = min_share
        self.folders = list(folders)
        self.nccl_tests = nccl_tests

    def start(self, settings: GangSettings) -> Outcome:
        """Launch the checks, or find them."""
        return self._run(settings).start()

    def take(self, settings: GangSettings, event: Any, *, yielded_at_s: float) -> Outcome:
        """Act on a watcher's event."""
        return self._run(settings).handle(event)

    def cancel(self, settings: GangSettings, reason: str) -> tuple[str, ...]:
        """Stop the checks, but not those of a newer generation."""
        from airflow_llmsched.provider.preflight_run import stop_preflight

        self.log.info("stopping the checks: %s", reason)
        return stop_preflight(settings, through_generation=settings.generation)

    def limits_s(self, scope: RunScope) -> list[float]:
        """Return the spec's deadline, counted from the run's start."""
        deadline_s = self.workload(scope).budget.deadline_s
        return [] if deadline_s is None else [scope.started_at_s + deadline_s]

    def account(self, settings: GangSettings) -> None:
        """Record the time of the checks, from the journal's last mark: the end of this task's wait to be started."""
        from airflow_llmsched.domain.ledger import Bucket, Span
        from airflow_llmsched.provider.run_spans import last_mark_s, note_spans

        start_s = last_mark_s(settings.scope)
        note_spans(settings.scope, Span(bucket=Bucket.PROVISION, start_s=start_s, end_s=now_s(), label=self.task_id))

    def result(self, context: Context, settings: GangSettings, outcome: Succeeded) -> dict[str, Any]:
        """Return how many rounds it took, and which nodes are out and why."""
        from airflow_llmsched.provider.preflight_run import results

        told = results(self._run(settings).record())
        for node, reason in told["unfit"].items():
            self.log.warning("node %s is not used: %s", node, reason)
        return {"run_key": settings.scope.run_key, **told}

    def _run(self, settings: GangSettings) -> PreflightRun:
        from airflow_llmsched.errors import SpecError
        from airflow_llmsched.provider.capacity_arguments import duration_s
        from airflow_llmsched.provider.preflight_run import PreflightRun, PreflightSettings

        if self.max_rounds < 1:
            raise SpecError(path="max_rounds", value=self.max_rounds, hint="must be 1 or more")
        if self.min_share is not None and not 0 < self.min_share < 1:
            raise SpecError(path="min_share", value=self.min_share, hint="must lie between 0 and 1, or be None")
        return PreflightRun(
            settings,
            PreflightSettings(
                limit_s=duration_s(self.limit, path="limit"),
                max_rounds=self.max_rounds,
                min_share=self.min_share,
                folders=tuple(self.folders),
                nccl_tests=self.nccl_tests,
            ),
        )
