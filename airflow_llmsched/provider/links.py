"""Buttons on a task's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.operatorlink import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


class RunReportLink(BaseOperatorLink):
    """The run's report page, served by our plugin. Empty until the task has opened its run."""

    name = "Pretraining report"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ARG002 - the base class's signature
        """Return the page's address relative to the web UI."""
        run_key = getattr(operator, "run_key", None)
        return f"/llmsched/runs/{run_key}/report" if run_key else ""
