"""Puts a run driver together from the run's files, in a worker or a triggerer alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.allowances import Allowances
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.control.journal import Journal
from airflow_llmsched.control.rented_capacity import RentedCapacity
from airflow_llmsched.control.renting import Renter
from airflow_llmsched.control.runs import RunDriver
from airflow_llmsched.domain.dataset import DatasetManifest
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import DataError
from airflow_llmsched.ports import CheckpointFormat
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.channels import channel_dir, flush_interval_s, open_channel
from airflow_llmsched.provider.config import handoff_limit_s
from airflow_llmsched.provider.engine import open_engine
from airflow_llmsched.provider.hooks.placement import PlacementHook
from airflow_llmsched.provider.rental_policy import PolicySettings, open_capacity
from airflow_llmsched.provider.rentals import open_renter
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


def checkpoint_root(scope: RunScope, spec: WorkloadSpec) -> str:
    """Return where this run saves: below the spec's root, a folder for each run; by default in the run's own folder."""
    if spec.checkpoint.root:
        return f"{spec.checkpoint.root.rstrip('/')}/{scope.run_key}"
    return str(scope.directory / "checkpoints")


def checkpoint_format(spec: WorkloadSpec) -> CheckpointFormat:
    """Return the adapter for the spec's checkpoint format."""
    adapter: CheckpointFormat = load(AdapterGroup.CHECKPOINT_FORMATS, spec.checkpoint.format)()
    return adapter


def open_driver(settings: GangSettings) -> RunDriver:
    """Return the driver of the run. Raises ``DataError`` when the run was never opened or its data never staged."""
    scope = settings.scope
    spec = run_files.read_spec(scope)
    hook = PlacementHook(engine=settings.engine, engine_options=settings.engine_options)
    renter = open_renter(scope)
    allowances = Allowances(scope.store(), scope.run_key)
    return RunDriver(
        context=_context(settings, spec),
        journal=Journal(scope.store(), scope.run_key),
        engine=open_engine(settings.engine, settings.engine_options),
        planner=hook.plan_on,
        checkpoints=checkpoint_format(spec),
        open_channel=open_channel,
        clock=SystemClock(),
        rented=renter.spend,
        leases=renter.active,
        capacity=_capacity(settings, spec, renter, allowed_usd=allowances.newest_usd()),
        allowance=allowances.newest_usd,
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
        command=trainer_command(spec),
        environment=trainer_environment(spec, manifest=f"{manifest.root}/manifest.json"),
        first_plan=_first_plan(scope),
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


def _capacity(
    settings: GangSettings, spec: WorkloadSpec, renter: Renter, *, allowed_usd: float | None
) -> RentedCapacity | None:
    if settings.policy is None:
        return None
    max_usd = spec.budget.max_usd if allowed_usd is None else allowed_usd
    return open_capacity(
        settings.policy, renter, deadline_s=settings.deadline_s, max_usd=max_usd, num_steps=spec.num_steps
    )


def _first_plan(scope: RunScope) -> Any:
    try:
        plans = run_files.read_plan(scope).plans
    except DataError:
        return None  # planning ahead is optional: the driver plans for itself
    return plans[0] if plans else None
