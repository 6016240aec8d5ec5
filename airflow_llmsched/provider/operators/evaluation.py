"""Evaluates a checkpoint on held-out data and gates on the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.provider.operators.base import now_s
from airflow_llmsched.provider.operators.gang_base import GangOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmsched.control.context import Outcome, Succeeded
    from airflow_llmsched.control.single import SingleRun
    from airflow_llmsched.provider.gang_run import GangSettings
    from airflow_llmsched.provider.run_scope import RunScope


class EvaluationGateError(AirflowFailException):
    """The checkpoint was evaluated and is not good enough."""


class EvaluateCheckpointOperator(GangOperator):
    """Run the spec's evaluation as a gang of one rank.

    Fails when the loss is above ``evaluation.max_loss`` or not finite. It waits for a free slot like training, up to
    ``capacity_wait_s``.

    Args:
        checkpoint: path of another checkpoint than the one the run's training ended with.

    Others as in ``GangOperator``.
    """

    template_fields: Sequence[str] = (*GangOperator.template_fields, "checkpoint")
    ui_color = "#e9f7f6"
    purpose = "evaluate"

    def __init__(self, *, checkpoint: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checkpoint = checkpoint

    def execute(self, context: Context) -> dict[str, Any]:
        """Evaluate, unless the spec brings a trainer of its own and asks for no evaluation."""
        spec = self.workload(self.scope(context))
        if spec.evaluation is None and spec.launcher.command:
            self.log.info("the spec asks for no evaluation: nothing is evaluated and nothing gated")
            return {}
        return super().execute(context)

    def start(self, settings: GangSettings) -> Outcome:
        """Launch the evaluation, or find it."""
        return self._evaluation(settings).start()

    def take(self, settings: GangSettings, event: Any, *, yielded_at_s: float) -> Outcome:
        """Act on a watcher's event."""
        return self._evaluation(settings).handle(event)

    def cancel(self, settings: GangSettings, reason: str) -> tuple[str, ...]:
        """Stop the evaluation, but not that of a newer generation."""
        from airflow_llmsched.provider.evaluation_run import stop_evaluation

        self.log.info("stopping the evaluation: %s", reason)
        return stop_evaluation(settings, through_generation=settings.generation)

    def limits_s(self, scope: RunScope) -> list[float]:
        """Return the spec's limit for an evaluation, counted from its launch."""
        from airflow_llmsched.domain.workload import EvaluationSpec

        return [now_s() + (self.workload(scope).evaluation or EvaluationSpec()).limit_s]

    def account(self, settings: GangSettings) -> None:
        """Record the evaluation's time, from the journal's last mark: the end of this task's wait to be started."""
        from airflow_llmsched.domain.ledger import Bucket, Span
        from airflow_llmsched.provider.run_spans import last_mark_s, note_spans

        start_s = last_mark_s(settings.scope)
        note_spans(settings.scope, Span(bucket=Bucket.EVALUATE, start_s=start_s, end_s=now_s(), label=self.task_id))

    def result(self, context: Context, settings: GangSettings, outcome: Succeeded) -> dict[str, Any]:
        """Return the loss and whether it passed. Raises ``EvaluationGateError`` when it did not."""
        from airflow_llmsched.codec import to_plain
        from airflow_llmsched.provider import run_files
        from airflow_llmsched.provider.evaluation_run import read_evaluation, why_not_passed

        evaluated = read_evaluation(
            settings, checkpoint=self._path(settings), attempt=outcome.num_attempts, now_s=now_s()
        )
        run_files.write(settings.scope, run_files.EVALUATION_FILE, evaluated)
        if not evaluated.passed:
            raise EvaluationGateError(why_not_passed(evaluated))
        result: dict[str, Any] = to_plain(evaluated)
        return result

    def _evaluation(self, settings: GangSettings) -> SingleRun:
        from airflow_llmsched.provider.evaluation_run import open_evaluation

        return open_evaluation(settings, checkpoint=self._path(settings))

    def _path(self, settings: GangSettings) -> str:
        from airflow_llmsched.provider.evaluation_run import trained_checkpoint

        return self.checkpoint or trained_checkpoint(settings.scope)
