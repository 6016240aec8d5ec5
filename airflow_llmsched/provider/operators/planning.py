"""Plans layout and placement before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llmsched.provider.links import RunReportLink
from airflow_llmsched.provider.operators.base import EngineOperator, failing_for_good, now_s

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanTrainingOperator(EngineOperator):
    """Choose how to split the model and where to put it, on what the run has rented, else on what the engine has free.

    The whole search goes to the run's folder; XCom gets its URI, digest and a summary, never the placement.

    Arguments as in ``EngineOperator``.
    """

    operator_extra_links = (RunReportLink(),)
    ui_color = "#f5f0fb"

    def execute(self, context: Context) -> dict[str, Any]:
        """Return where the plan is, its digest and what it says in one line. Fails when nothing legal fits."""
        from airflow_llmsched.domain.ledger import Bucket
        from airflow_llmsched.errors import RelaxError
        from airflow_llmsched.planner.explain import explain
        from airflow_llmsched.provider import run_files
        from airflow_llmsched.provider.hooks.placement import PlacementHook
        from airflow_llmsched.provider.rented_tree import tree_of
        from airflow_llmsched.provider.run_spans import measured

        started_s = now_s()
        scope = self.scope(context)
        spec = self.workload(scope)
        hook = PlacementHook(engine=self.engine, engine_options=self.engine_options)
        with failing_for_good(), measured(scope, Bucket.PROVISION, label=self.task_id, task_started_s=started_s):
            search = hook.plan_on(spec, tree_of(scope, hook), frozenset())
            words = explain(search)
            self.log.info("%s", words)
            if not search.plans:
                raise RelaxError(words)
            stored = run_files.write(scope, run_files.PLAN_FILE, search)
        best = search.plans[0]
        return {
            **stored,
            "summary": best.summary(),
            "world_size": best.layout.world_size,
            "num_alternatives": len(search.plans) - 1,
        }
