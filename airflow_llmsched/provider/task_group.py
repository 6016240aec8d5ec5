"""A whole pretraining pipeline as one task group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import Asset, TaskGroup

from airflow_llmsched.domain.fleet import FLEET
from airflow_llmsched.provider.operators.capacity import ProvisionCapacityOperator
from airflow_llmsched.provider.operators.dataset import StageDatasetOperator
from airflow_llmsched.provider.operators.evaluation import EvaluateCheckpointOperator
from airflow_llmsched.provider.operators.gang import RunGangOperator
from airflow_llmsched.provider.operators.open_run import OpenRunOperator, refuse_dagrun_timeout
from airflow_llmsched.provider.operators.planning import PlanTrainingOperator
from airflow_llmsched.provider.operators.preflight import PreflightOperator
from airflow_llmsched.provider.operators.release import ReleaseOperator
from airflow_llmsched.provider.operators.report import ReportOperator


def pretraining_task_group(
    *,
    spec: str | Mapping[str, Any] = "{{ params.spec }}",
    group_id: str = "pretraining",
    allow_inline: bool = False,
    engine: str = "local",
    engine_options: Mapping[str, Any] | None = None,
    deferrable: bool = True,
    checkpoint_asset: Asset | None = None,
    objective: str | None = "{{ params.get('objective') }}",
    deadline: str | None = "{{ params.get('deadline') }}",
    max_usd: str | float | None = "{{ params.get('max_usd') }}",
    gang_arguments: Mapping[str, Any] | None = None,
    plan_arguments: Mapping[str, Any] | None = None,
    capacity_arguments: Mapping[str, Any] | None = None,
    rental_policy: Mapping[str, Any] | None = None,
    preflight_arguments: Mapping[str, Any] | None = None,
) -> TaskGroup:
    """Wire open, stage, plan, train, evaluate, release and report; with ``capacity_arguments``, rent before training.

    ``release`` and ``report`` run however the others end. The DAG run succeeds if and only if ``passed`` is reached and
    ``release`` succeeds. Tasks find each other by the run key, not through XCom.

    Args:
        spec: path of a workload spec below the DAG's folder, or a mapping; by default the form's (``params``) field.
        allow_inline: take a spec's text as well; see :class:`OpenRunOperator` for what that permits.
        group_id: name of the group, and of the run within the DAG run.
        engine: name of the engine adapter that runs the gangs.
        engine_options: JSON-safe options of the engine.
        deferrable: wait in the triggerer (default) or in the worker.
        checkpoint_asset: gets an event with step, loss and digest for the trained checkpoint.
        objective: as in :class:`OpenRunOperator`; by default the form's field, like the next two.
        deadline: as in :class:`OpenRunOperator`.
        max_usd: as in :class:`OpenRunOperator`.
        gang_arguments: further arguments of :class:`RunGangOperator` (pool, queue, poll_interval_s, ...).
        plan_arguments: further arguments of :class:`PlanTrainingOperator` (write_out, ...).
        capacity_arguments: arguments of :class:`ProvisionCapacityOperator` (clouds, shapes, ...); None rents nothing.
        preflight_arguments: arguments of :class:`PreflightOperator` (limit, nccl_tests, ...); None checks nothing.
        rental_policy: ``capacity`` of :class:`RunGangOperator` instead: chosen again and again while the run goes on.

    Raises:
        ValueError: the DAG sets ``dagrun_timeout``, which would skip the teardown; or it is to rent in both ways.
    """
    where: dict[str, Any] = {"engine": engine, "engine_options": dict(engine_options or {})}
    gang = _gang(gang_arguments, checkpoint_asset, policy=rental_policy, beside=capacity_arguments)
    form: dict[str, Any] = {"objective": objective, "deadline": deadline, "max_usd": max_usd, "spec": spec}
    form |= {"rents_capacity": bool(capacity_arguments or rental_policy), "chooses_cluster": engine == FLEET}
    with TaskGroup(group_id=group_id) as group:
        refuse_dagrun_timeout(group.dag)
        opened = OpenRunOperator(task_id="open_run", allow_inline=allow_inline, **form).as_setup()
        staged = StageDatasetOperator(task_id="stage_dataset")
        planned = PlanTrainingOperator(task_id="plan_training", **where, **(plan_arguments or {}))
        trained = RunGangOperator(task_id="run_gang", deferrable=deferrable, **where, **gang)
        evaluated = EvaluateCheckpointOperator(task_id="evaluate_checkpoint", deferrable=deferrable, **where)
        opened >> staged >> planned >> trained >> evaluated
        _checking(preflight_arguments, {"deferrable": deferrable, **where}, after=planned, before=trained)
        rented = _renting(capacity_arguments, deferrable=deferrable, after=staged, before=planned)
        _closing(evaluated, opened=opened, rented=rented, where=where)
    return group


def _gang(
    told: Mapping[str, Any] | None,
    asset: Asset | None,
    *,
    policy: Mapping[str, Any] | None,
    beside: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the gang's own arguments, a rental policy among them. Raises ``ValueError`` for two who rent."""
    if policy is not None and beside is not None:
        raise ValueError("capacity_arguments and rental_policy both rent: give one of them")
    capacity = {} if policy is None else {"capacity": policy}
    return {"outlets": [] if asset is None else [asset], **(told or {}), **capacity}


def _checking(arguments: Mapping[str, Any] | None, given: Mapping[str, Any], *, after: Any, before: Any) -> None:
    """Put the checks of the plan's nodes between planning and training, where they are asked for."""
    if arguments is not None:
        after >> PreflightOperator(task_id="preflight", **{**given, **arguments}) >> before


def _closing(last: Any, *, opened: Any, rented: list[Any], where: Mapping[str, Any]) -> None:
    """Give everything back and report after ``last``, however it ended; and say whether it ended well."""
    released = ReleaseOperator(task_id="release", **where)
    last >> released.as_teardown(setups=[opened, *rented], on_failure_fail_dagrun=True)
    released >> ReportOperator(task_id="report").as_teardown(setups=opened, on_failure_fail_dagrun=False)
    last >> EmptyOperator(task_id="passed")  # without this leaf a failed training is a green run: ADR 0004


def _renting(arguments: Mapping[str, Any] | None, *, deferrable: bool, after: Any, before: Any) -> list[Any]:
    """Return the setup that rents, right before what was rented is planned on; none where nothing is to be rented."""
    if arguments is None:
        return []
    rented = ProvisionCapacityOperator(task_id="provision", **{"deferrable": deferrable, **arguments}).as_setup()
    after >> rented >> before
    return [rented]
