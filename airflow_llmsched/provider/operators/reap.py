"""Stops gangs that have outlived their runs: the net below leases and teardowns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_llmsched.provider.operators.base import failing_for_good

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReapOperator(BaseOperator):
    """Reap what lives on one engine although its run is over, or, by default, only say what would be reaped.

    A gang of this deployment is stopped if it has expired, and its agents are silent, and Airflow calls its DAG run
    finished or does not know it. Whoever could not be asked is taken to object. Schedule it in a DAG of its own
    (``dags/reap.py``), one task per engine.

    Args:
        engine: name of an engine adapter.
        engine_options: its JSON-safe options, as in the pipelines that use it.
        only_report: stop nothing. ``True`` by default; a template that renders to ``True`` or ``False`` will do.
        silence_s: seconds without any sign after which agents count as silent.
        unleased_s: seconds after its run's last record at which a gang without a lease expires.

    The task fails when something that was to be stopped does not end, or the engine could not be asked.
    """

    template_fields: Sequence[str] = ("engine", "engine_options", "only_report")
    ui_color = "#f3f3f3"

    def __init__(
        self,
        *,
        engine: str = "local",
        engine_options: Mapping[str, Any] | None = None,
        only_report: bool | str = True,
        silence_s: float = 600.0,
        unleased_s: float = 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.engine = engine
        self.engine_options = dict(engine_options or {})
        self.only_report = only_report
        self.silence_s = silence_s
        self.unleased_s = unleased_s

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was, or would be, stopped and why, and what was spared and why."""
        from airflow_llmsched.control.reaper import Reap, ReaperLimits
        from airflow_llmsched.errors import CouldNotLookError
        from airflow_llmsched.provider.reap_run import open_reaper

        only_report = is_true(self.only_report)
        limits = ReaperLimits(silence_s=self.silence_s, unleased_s=self.unleased_s)
        with failing_for_good():
            reaper = open_reaper(self.engine, self.engine_options, limits)
            findings = reaper.look()
            result: dict[str, Any] = {"only_report": only_report, "reap": {}, "spared": {}, "stopped": []}
            troubles = []
            for finding in findings:
                names = ", ".join(handle.key.name for handle in finding.handles)
                condemned = isinstance(finding.verdict, Reap)
                said = "would reap" if only_report else "reaping"
                self.log.info("%s %s: %s", said if condemned else "sparing", names, finding.verdict.reason)
                result["reap" if condemned else "spared"][finding.facts.run_key] = finding.verdict.reason
                if condemned and not only_report:
                    reaped = reaper.reap(finding)
                    result["stopped"] += reaped.stopped
                    troubles += [f"{reaped.run_key}: {reaped.trouble}"] if reaped.trouble else []
            if troubles:
                raise CouldNotLookError("; ".join(troubles))
        return result


def is_true(only_report: bool | str) -> bool:
    """Return whether to stop nothing: everything but a plain false is taken for yes."""
    return str(only_report).strip().lower() != "false"
