"""Writes the run's report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llmsched.provider.links import RunReportLink
from airflow_llmsched.provider.operators.base import RunOperator, failing_for_good, now_s

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReportOperator(RunOperator):
    """Put journal, agents' records, evaluation and prices together as one HTML file and one JSON file.

    Works for a failed or half-known run too: the report then says what is missing.
    """

    operator_extra_links = (RunReportLink(),)
    ui_color = "#f7f7ee"

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the files' paths and the figures that fit on one line."""
        from airflow_llmsched.domain.ledger import Bucket, Span
        from airflow_llmsched.provider.report_run import write_report
        from airflow_llmsched.provider.run_spans import note_spans, queued

        started_s = now_s()
        scope = self.scope(context)
        with failing_for_good():
            note_spans(scope, queued(scope, until_s=started_s, label=self.task_id))
            # The ledger must end before it is written; what it takes to write it is the run's last stretch.
            note_spans(scope, Span(bucket=Bucket.PROVISION, start_s=started_s, end_s=now_s(), label=self.task_id))
            written = write_report(scope, end_s=now_s())
        self.log.info("report: %s", written["html"])
        return written
