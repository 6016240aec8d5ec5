"""From a plan to the gang that an engine is asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_llmsched.agent import wire
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.control.places import CheckpointPlace
from airflow_llmsched.domain.checkpoint import CheckpointRef, SavedBy
from airflow_llmsched.domain.gang import Closeness, GangRole, GangSpec
from airflow_llmsched.domain.identity import AttemptKey, NodeId
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.roles import helpers_of
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.export.cells import cells_of, is_uneven
from airflow_llmsched.planner.export.planned import planned_run

RESUME_VARIABLE = wire.RESUME_FROM
"""Path of the checkpoint of this run to resume from; unset means step 0."""

INIT_VARIABLE = wire.INIT_FROM
"""Path of the checkpoint of another run whose weights to start with, at step 0; never set with the one above."""

CHECKPOINT_ROOT_VARIABLE = wire.CHECKPOINT_ROOT
"""Folder to save below."""


def channel_root_of(context: RunContext, key: AttemptKey) -> str:
    """Return where the attempt's agents report: ``<channel dir>/channel/<attempt name>``."""
    return f"{(context.channel_dir or context.run_dir).rstrip('/')}/channel/{key.name}"


def save_root_of(place: CheckpointPlace, key: AttemptKey, *, own_folder: bool) -> str:
    """Return where the attempt saves, as its nodes see it: ``<root>/g0001-a0002``, or the root that attempts share."""
    if not own_folder:
        return place.node_root
    return f"{place.node_root.rstrip('/')}/{SavedBy.of_key(key).folder}"


def build_gang(
    context: RunContext,
    *,
    key: AttemptKey,
    plan: Plan,
    place: CheckpointPlace,
    channel_root: str,
    checkpoint: CheckpointRef | None,
    own_folder: bool,
    channel_links: str | None = None,
    excluded: Iterable[NodeId] = (),
) -> GangSpec:
    """Return the gang for ``plan``, resuming from ``checkpoint`` (None: step 0, with the weights the spec names).

    It saves in ``place``. ``excluded`` nodes failed before; those that the plan needs all the same are its own.
    """
    launcher = context.workload.launcher
    save_root = save_root_of(place, key, own_folder=own_folder)
    # what the plan counts on comes first: whoever sets such a variable knows better
    told = {**plan.environment, **context.environment, **launcher.environment}
    environment = {**told, CHECKPOINT_ROOT_VARIABLE: save_root}
    for name in (RESUME_VARIABLE, INIT_VARIABLE):
        environment.pop(name, None)  # what to start from is decided per launch, never inherited
    init_from = context.workload.checkpoint.init_from
    if checkpoint is not None:
        environment[RESUME_VARIABLE] = place.as_nodes_see(checkpoint.path)
    elif init_from is not None:
        environment[INIT_VARIABLE] = init_from
    return GangSpec(
        key=key,
        placement=plan.placement,
        layout=plan.layout,
        command=context.command,
        channel_root=channel_root,
        launcher=launcher.kind,
        environment=environment,
        start_limit_s=launcher.start_limit_s,
        grace_s=launcher.grace_s,
        flush_interval_s=context.flush_interval_s,
        lease_s=context.lease_s,
        origin=context.origin,
        channel_links=channel_links,
        roles=tuple(GangRole(kind=role.kind, command=role.command) for role in helpers_of(context.workload.roles)),
        accelerator_vendor=plan.accelerator_vendor,
        close=closeness_of(context.workload, plan),
        excluded=tuple(sorted({*excluded, *context.unfit}.difference(plan.placement.nodes))),
    )


def closeness_of(workload: WorkloadSpec, plan: Plan) -> tuple[Closeness, ...]:
    """Return what keeps a plan's groups as close as planned on whatever nodes; nothing for a gang of unequal nodes."""
    run = planned_run(workload, plan)
    if is_uneven(run):
        return ()
    cells = cells_of(run, renumbers=False)  # engines number nodes as their schedulers do
    whole = [Closeness(level=cells.whole, num_nodes=cells.num_pods)] if cells.whole is not None else []
    return (*whole, *(Closeness(level=each.level, num_nodes=each.num_pods) for each in cells.inner))
