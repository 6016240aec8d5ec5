"""Plans layout and placement before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_llmsched.provider.links import RunReportLink
from airflow_llmsched.provider.operators.base import EngineOperator, failing_for_good, now_s

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmsched.domain.plan import Plan
    from airflow_llmsched.domain.topology import TopologyTree
    from airflow_llmsched.domain.workload import WorkloadSpec
    from airflow_llmsched.provider.run_scope import RunScope


class PlanTrainingOperator(EngineOperator):
    """Choose how to split the model and where to put it, on what the run has rented, else on what the engine has free.

    A run that will wait its turn (``queue`` in the spec) is planned on all that works, whoever is there now. Any other
    keeps off links that gangs of other runs keep busy, where it has a choice, and its notes say who slows whom.
    The whole search goes to the run's folder; XCom gets its URI, digest and a summary, never the placement.

    Args:
        write_out: names of tools (``planner.export.tools.TOOLS``) whose settings of the chosen plan are written beside
            it, such as ``megatron-lm``; XCom gets their URIs and digests. Only what all of them can express is planned,
            also where the run has to plan anew later; settings are those of this plan.

    Others as in ``EngineOperator``.
    """

    operator_extra_links = (RunReportLink(),)
    ui_color = "#f5f0fb"

    def __init__(self, *, write_out: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.write_out = tuple(write_out)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return where the plan is, its digest and what it says in one line.

        Fails when nothing legal fits, or when a tool of ``write_out`` cannot express the workload.
        """
        from dataclasses import replace

        from airflow_llmsched.domain.ledger import Bucket
        from airflow_llmsched.errors import RelaxError
        from airflow_llmsched.planner.contention.beside import with_note
        from airflow_llmsched.planner.contention.busy import with_busy_links
        from airflow_llmsched.planner.explain import explain_plan
        from airflow_llmsched.planner.export.filter import expressible_by
        from airflow_llmsched.planner.perf.hardware import node_shapes
        from airflow_llmsched.provider import run_files
        from airflow_llmsched.provider.hooks.placement import PlacementHook
        from airflow_llmsched.provider.rented_tree import tree_of
        from airflow_llmsched.provider.run_spans import measured
        from airflow_llmsched.provider.unclaimed import loads_now, waiting_might_help, when_its_turn_comes

        started_s = now_s()
        scope = self.scope(context)
        spec = self.workload(scope)
        hook = PlacementHook(engine=self.engine, engine_options=self.options_in(scope))
        with failing_for_good(), measured(scope, Bucket.PROVISION, label=self.task_id, task_started_s=started_s):
            expresses = expressible_by(self.write_out, spec) if self.write_out else None
            engine = hook.get_conn()
            tree = when_its_turn_comes(tree_of(scope, hook), spec, engine=engine)
            loads = loads_now(scope, spec, engine=engine, name=self.engine)
            shapes, as_measured = node_shapes(), hook.as_measured()
            beside = with_busy_links(tree, loads, shapes, as_measured=as_measured)
            search = hook.plan_on(spec, beside, frozenset(), expresses=expresses)
            search = with_note(search, spec, tree, shapes=shapes, loads=loads, as_measured=as_measured)
            words = explain_plan(
                spec,
                search,
                tree,
                shapes,
                expresses=expresses,
                calibration=hook.calibration(),
                as_measured=as_measured,
            )
            self.log.info("%s", words)
            if not search.plans:
                waits = "\n\nOthers hold nodes: with a queue block in its spec the run would wait its turn."
                raise RelaxError(words + waits * waiting_might_help(tree, spec, engine=engine))
            best = search.plans[0]
            settings = self._write_out(scope, spec, best, tree)
            stored = run_files.write(scope, run_files.PLAN_FILE, replace(search, tools=self.write_out))
        return {
            **stored,
            "summary": best.summary(),
            "world_size": best.layout.world_size,
            "num_alternatives": len(search.plans) - 1,
            **({"settings": settings} if settings else {}),
        }

    def _write_out(
        self, scope: RunScope, spec: WorkloadSpec, plan: Plan, tree: TopologyTree
    ) -> Mapping[str, Mapping[str, str]]:
        from airflow_llmsched.planner.export.planned import planned_run
        from airflow_llmsched.planner.export.tools import write_out
        from airflow_llmsched.provider import run_files

        stored = {}
        for tool in self.write_out:
            settings = write_out(tool, planned_run(spec, plan, tree=tree))
            for note in settings.notes:
                self.log.info("%s: %s", settings.file_name, note)
            stored[tool] = run_files.write_data(scope, settings.file_name, settings.text.encode())
        return stored
