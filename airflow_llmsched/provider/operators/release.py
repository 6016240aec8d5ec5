"""Gives everything back: the teardown of ``OpenRunOperator``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llmsched.provider.operators.base import EngineOperator, failing_for_good, now_s

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReleaseOperator(EngineOperator):
    """Stop whatever lives under the run's key, give back what it rented, and fail if either cannot be seen.

    Reads the run's journal and book of rentals, and the engine's and clouds' own lists, never XCom, so that it works
    however far the run had come. An engine that cannot be asked keeps no rented machine from being given back, nor one
    cloud another's. Use it as ``.as_teardown(setups=open_run, on_failure_fail_dagrun=True)``: a run whose machines may
    still be on is not a success.

    Arguments as in ``EngineOperator``; ``retries`` is 3 unless given.
    """

    ui_color = "#f3f3f3"

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("retries", 3)  # what is left running costs more than a teardown that tries again
        super().__init__(**kwargs)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the names of what had still been alive."""
        from airflow_llmsched.domain.ledger import Bucket
        from airflow_llmsched.provider.gang_release import release_run
        from airflow_llmsched.provider.run_spans import measured

        started_s = now_s()
        scope = self.scope(context)
        with failing_for_good(), measured(scope, Bucket.PROVISION, label=self.task_id, task_started_s=started_s):
            stopped = release_run(scope, engine=self.engine, engine_options=self.options_in(scope), since_s=started_s)
        if stopped:
            self.log.warning("stopped what was still alive: %s", ", ".join(stopped))
        return {"run_key": scope.run_key, "stopped": list(stopped)}
