"""Opens the claims to what a task or a command calls an engine, and whoever acts on them for one run."""

from __future__ import annotations

from collections.abc import Callable

from airflow_llmsched.control.arbiter import RunArbiter
from airflow_llmsched.control.arbiter_ground import Decider, Ground
from airflow_llmsched.control.arbiter_machines import join_ground, known_ground, scope_of
from airflow_llmsched.control.arbiter_saved import SavedWork
from airflow_llmsched.control.arbiter_side import SideArbiter, SideClaim
from airflow_llmsched.control.arbiter_state import launch_number
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.control.open_fleet import names_cluster
from airflow_llmsched.control.planning import Planner
from airflow_llmsched.domain.fleet import FLEET, Fleet
from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.domain.queue_rules import QueueRules
from airflow_llmsched.ports import (
    Clock,
    Engine,
    EngineFeature,
    InventoryEngine,
    ObjectStore,
    RunChannel,
    SeparateEngine,
)


def open_ground(
    engine: Engine, name: str, fleet: Fleet | None, *, store: ObjectStore, clock: Clock, claims: bool = False
) -> Ground | None:
    """Return the claims to ``engine``, which a task calls ``name``; None where there is nothing to share out.

    That is where a scheduler of its own rules, and where all nodes are what the run has rented. A fleet and each of its
    clusters are one ground: their nodes have the same names. So are engines that have machines in common
    (``control.arbiter_machines``); others of one adapter are grounds by themselves. Whoever ``claims`` joins its
    machines to those of others first. Raises ``SpecError`` for machines that cannot be shared out now, ``StoreError``,
    ``CouldNotLookError``.
    """
    if engine.features & {EngineFeature.OWN_QUEUE, EngineFeature.NODES_ARE_RENTED}:
        return None
    ground, scope = (FLEET, name) if names_cluster(name, fleet) else (name, "")
    if isinstance(engine, InventoryEngine) and engine.inventory:
        if ground != FLEET:
            scope = scope_of(engine.inventory)
            ground = f"{name}-{engine.machines if isinstance(engine, SeparateEngine) else scope}"
        find = join_ground if claims else known_ground
        ground = find(engine.inventory, ground, store=store, clock=clock)
    return Ground(store, ground, clock=clock, scope=scope)


def open_arbiter(
    ground: Ground,
    *,
    context: RunContext,
    planner: Planner,
    fleet: Fleet | None,
    store: ObjectStore,
    open_channel: Callable[[str], RunChannel],
    clock: Clock,
) -> RunArbiter:
    """Return whoever claims for the run of ``context``, by the rules of the deployment's fleet file."""
    rules = rules_of(fleet)
    decider = _decider(ground, rules, store, open_channel, clock)
    return RunArbiter(ground, decider, context=context, planner=planner, clock=clock, rules=rules)


def open_side_arbiter(
    ground: Ground,
    *,
    claim: SideClaim,
    engine: Engine,
    fleet: Fleet | None,
    store: ObjectStore,
    open_channel: Callable[[str], RunChannel],
    clock: Clock,
    number_of: Callable[[AttemptKey], int] = launch_number,
) -> SideArbiter:
    """Return whoever claims for a gang beside a run's training, by the rules of the deployment's fleet file."""
    rules = rules_of(fleet)
    return SideArbiter(
        ground,
        _decider(ground, rules, store, open_channel, clock),
        claim=claim,
        topology=engine.topology,
        clock=clock,
        rules=rules,
        number_of=number_of,
    )


def rules_of(fleet: Fleet | None) -> QueueRules:
    """Return how a deployment shares its nodes: as its fleet file says, if it has one."""
    return QueueRules() if fleet is None else fleet.queue


def _decider(
    ground: Ground, rules: QueueRules, store: ObjectStore, open_channel: Callable[[str], RunChannel], clock: Clock
) -> Decider:
    saved = SavedWork(store=store, open_channel=open_channel)
    return Decider(ground, rules=rules, clock=clock, saved_at=saved.at_s)
