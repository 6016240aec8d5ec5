"""Puts a run driver together from the run's files, in a worker or a triggerer alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.allowances import Allowances
from airflow_llmsched.control.arbiter import RunArbiter
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.open_arbiter import open_arbiter, open_ground
from airflow_llmsched.control.places import CheckpointPlace
from airflow_llmsched.control.planning import Planner
from airflow_llmsched.control.rented_capacity import RentedCapacity
from airflow_llmsched.control.renting import Renter
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.domain.dataset import DatasetManifest
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.preflight import PreflightRecord
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import DataError
from airflow_llmsched.ports import CheckpointFormat, Engine
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.channels import channel_dir, flush_interval_s, open_channel
from airflow_llmsched.provider.config import handoff_limit_s
from airflow_llmsched.provider.engine import deployment_fleet
from airflow_llmsched.provider.hooks.placement import PlacementHook
from airflow_llmsched.provider.places import checkpoint_root, cluster_places, region_places
from airflow_llmsched.provider.rental_policy import PolicySettings, open_capacity
from airflow_llmsched.provider.rentals import open_renter
from airflow_llmsched.provider.run_engine import open_run_engine
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.provider.trainer_settings import trainer_command, trainer_environment
from airflow_llmsched.registry import AdapterGroup, load


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSettings:
    """How one task runs its gang; JSON-safe through ``codec``, so that a trigger can carry it.

    ``deadline_s`` is absolute (Unix seconds) and lies below every limit of Airflow's own. ``owner`` is the task
    instance's id: only the try that started last may cancel. ``owner_since_s`` is when that try started. The gang is
    reviewed every ``review_every_s`` (None: never); ``policy`` chooses its capacity (None: nobody does).
    """

    scope: RunScope
    engine: str
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    generation: int = 0
    owner: str = ""
    owner_since_s: float | None = None
    deadline_s: float | None = None
    poll_interval_s: float = 5.0
    lease_s: float | None = 120.0
    capacity_wait_s: float = 3600.0
    max_look_errors: int = 5
    review_every_s: float | None = None
    policy: PolicySettings | None = None


def checkpoint_format(spec: WorkloadSpec) -> CheckpointFormat:
    """Return the adapter for the spec's checkpoint format."""
    adapter: CheckpointFormat = load(AdapterGroup.CHECKPOINT_FORMATS, spec.checkpoint.format)()
    return adapter


def unfit_nodes(scope: RunScope, *, generation: int) -> dict[NodeId, str]:
    """Return the nodes that checks before this generation's training spoke against, and why."""
    record = preflight_record(scope, generation=generation)
    return record.unfit


def preflight_record(scope: RunScope, *, generation: int) -> PreflightRecord:
    """Return what was found out about nodes in this generation so far; a clear checks them anew."""
    if run_files.exists(scope, run_files.PREFLIGHT_FILE):
        made_by = "PreflightOperator"
        record = run_files.read(scope, run_files.PREFLIGHT_FILE, PreflightRecord, made_by=made_by)
        if record.generation == generation:
            return record
    return PreflightRecord(generation=generation)


def open_driver(settings: GangSettings) -> RunDriver:
    """Return the driver of the run. Raises ``DataError`` when the run was never opened or its data never staged."""
    scope = settings.scope
    spec = run_files.read_spec(scope)
    hook = PlacementHook(engine=settings.engine, engine_options=settings.engine_options)
    planner = hook.planner_for(spec, run_files.planned_tools(scope))
    renter = open_renter(scope)
    allowances = Allowances(scope.store(), scope.run_key)
    context = _context(settings, spec)
    engine = open_run_engine(settings.engine, settings.engine_options)
    return RunDriver(
        context=context,
        journal=Journal(scope.store(), scope.run_key),
        engine=engine,
        planner=planner,
        checkpoints=checkpoint_format(spec),
        open_channel=open_channel,
        clock=SystemClock(),
        rented=renter.spend,
        leases=renter.active,
        terms_of=renter.terms_of,
        capacity=_capacity(settings, spec, renter, allowed_usd=allowances.newest_usd()),
        allowance=allowances.newest_usd,
        arbiter=_arbiter(settings, engine, context, planner=planner, hook=hook),
    )


def _arbiter(
    settings: GangSettings, engine: Engine, context: RunContext, *, planner: Planner, hook: PlacementHook
) -> RunArbiter | None:
    """Return whoever shares the engine's nodes among runs; None where the engine does, or has none but rented ones."""
    fleet, store, clock = deployment_fleet(), settings.scope.store(), SystemClock()
    runs = [context.run_key, settings.scope.checks_key]
    ground = open_ground(engine, settings.engine, fleet, store=store, clock=clock, claims=True, runs=runs)
    if ground is None:
        return None
    return open_arbiter(
        ground,
        context=context,
        planner=planner,
        fleet=fleet,
        store=store,
        open_channel=open_channel,
        clock=clock,
        as_measured=hook.as_measured,
    )


def _context(settings: GangSettings, spec: WorkloadSpec) -> RunContext:
    scope = settings.scope
    manifest = run_files.read(scope, run_files.DATASET_FILE, DatasetManifest, made_by="StageDatasetOperator")
    return RunContext(
        run_key=scope.run_key,
        generation=settings.generation,
        workload=spec,
        run_dir=str(scope.directory),
        checkpoint_root=checkpoint_root(scope, spec),
        places=cluster_places(scope.run_key, engine=settings.engine) | _region_places(settings),
        command=trainer_command(spec),
        environment=trainer_environment(spec, manifest=f"{manifest.root}/manifest.json"),
        unfit=unfit_nodes(scope, generation=settings.generation),
        checked_as=scope.checks_key,
        first_plan=_first_plan(scope, settings.generation),
        num_steps=spec.num_steps,
        deadline_s=settings.deadline_s,
        owner=settings.owner,
        owner_since_s=settings.owner_since_s,
        origin=scope.origin,
        dag_id=scope.dag_id,
        run_id=scope.run_id,
        poll_interval_s=settings.poll_interval_s,
        flush_interval_s=flush_interval_s(settings.poll_interval_s),
        lease_s=settings.lease_s,
        handoff_limit_s=handoff_limit_s(),
        max_look_errors=settings.max_look_errors,
        capacity_wait_s=settings.capacity_wait_s,
        review_every_s=settings.review_every_s,
        channel_dir=channel_dir(scope),
    )


def _region_places(settings: GangSettings) -> dict[str, CheckpointPlace]:
    return {} if settings.policy is None else region_places(settings.scope.run_key, settings.policy.storages)


def _capacity(
    settings: GangSettings, spec: WorkloadSpec, renter: Renter, *, allowed_usd: float | None
) -> RentedCapacity | None:
    if settings.policy is None:
        return None
    max_usd = spec.budget.max_usd if allowed_usd is None else allowed_usd
    return open_capacity(
        settings.policy, renter, deadline_s=settings.deadline_s, max_usd=max_usd, num_steps=spec.num_steps
    )


def _first_plan(scope: RunScope, generation: int) -> Any:
    checked = preflight_record(scope, generation=generation)
    if checked.passed:
        return checked.plan
    try:
        plans = run_files.read_plan(scope).plans
    except DataError:
        return None  # planning ahead is optional: the driver plans for itself
    return plans[0] if plans else None
