"""Opens the claims to what a task or a command calls an engine, and whoever acts on them for one run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow_llmsched.control.arbiter import RunArbiter
from airflow_llmsched.control.arbiter_ground import Decider, Ground
from airflow_llmsched.control.arbiter_machines import join_ground, known_grounds, lacking, scope_of
from airflow_llmsched.control.arbiter_saved import SavedWork
from airflow_llmsched.control.arbiter_side import SideArbiter, SideClaim
from airflow_llmsched.control.arbiter_state import launch_number
from airflow_llmsched.control.arbiter_view import loads_beside
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.control.open_fleet import names_cluster
from airflow_llmsched.control.planning import Planner
from airflow_llmsched.domain.fleet import FLEET, Fleet
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.network_load import NetworkLoad
from airflow_llmsched.domain.queue_rules import QueueRules
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import DataError, SpecError, StoreError
from airflow_llmsched.planner.links import AsMeasured, as_claimed
from airflow_llmsched.ports import (
    Clock,
    Engine,
    EngineFeature,
    InventoryEngine,
    ObjectStore,
    PartialEngine,
    RunChannel,
    SeparateEngine,
)

log = logging.getLogger(__name__)


def open_ground(
    engine: Engine,
    name: str,
    fleet: Fleet | None,
    *,
    store: ObjectStore,
    clock: Clock,
    claims: bool = False,
    runs: Collection[RunKey] = (),
) -> Ground | None:
    """Return the claims to ``engine``, which a task calls ``name``; None where there is nothing to share out.

    That is where a scheduler of its own rules, and where all nodes are what the run has rented. A fleet and each of its
    clusters are one ground: their nodes have the same names. So are engines that have machines in common
    (``control.arbiter_machines``); others of one adapter are grounds by themselves. Whoever ``claims`` joins its
    machines to those of others first. Where that is not possible now, as its list of machines was changed, what one of
    ``runs`` claims stays where it is until it is given back. Raises ``SpecError`` for machines that cannot be shared
    out now, ``StoreError``, ``CouldNotLookError``.
    """
    if not claims:
        known = open_grounds(engine, name, fleet, store=store, clock=clock)
        return (_with_claims_of(runs, known) if len(known) > 1 else None) or next(iter(known), None)
    try:
        return _join(engine, name, fleet, store=store, clock=clock)
    except SpecError:
        before = _with_claims_of(runs, open_grounds(engine, name, fleet, store=store, clock=clock))
        if before is None or not isinstance(engine, InventoryEngine):
            raise
        lacks = lacking(before.name, engine.inventory, store=store, clock=clock)
        return Ground(store, before.name, clock=clock, scope=before.scope, lacks=lacks)


def open_grounds(
    engine: Engine, name: str, fleet: Fleet | None, *, store: ObjectStore, clock: Clock
) -> tuple[Ground, ...]:
    """Return all claims to machines of ``engine``, for whoever looks after them and claims nothing.

    Raises ``StoreError``.
    """
    place = _place_of(engine, name, fleet)
    if place is None:
        return ()
    inventory = engine.inventory if isinstance(engine, InventoryEngine) else {}
    grounds = known_grounds(inventory, place.ground, store=store, clock=clock)
    return tuple(Ground(store, each, clock=clock, scope=place.scope) for each in grounds)


def _join(engine: Engine, name: str, fleet: Fleet | None, *, store: ObjectStore, clock: Clock) -> Ground | None:
    place = _place_of(engine, name, fleet)
    if place is None:
        return None
    ground = place.ground
    if isinstance(engine, InventoryEngine) and engine.inventory:
        ground = join_ground(engine.inventory, ground, store=store, clock=clock)
    return Ground(store, ground, clock=clock, scope=place.scope)


def _with_claims_of(runs: Collection[RunKey], grounds: Iterable[Ground]) -> Ground | None:
    return next((each for each in grounds if each.state().claims.keys() & set(runs)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """What the ground of an engine's machines is called where these are nobody else's, and the engine's part of it."""

    ground: str
    scope: str


def _place_of(engine: Engine, name: str, fleet: Fleet | None) -> _Place | None:
    """Return where an engine's claims are, None for one that shares nothing out."""
    if engine.features & {EngineFeature.OWN_QUEUE, EngineFeature.NODES_ARE_RENTED}:
        return None
    if names_cluster(name, fleet):
        return _Place(ground=FLEET, scope=name)
    if not isinstance(engine, InventoryEngine) or not engine.inventory:
        return _Place(ground=name, scope="")
    scope = scope_of(engine.inventory, engine.parts if isinstance(engine, PartialEngine) else None)
    return _Place(ground=f"{name}-{engine.machines if isinstance(engine, SeparateEngine) else scope}", scope=scope)


def loads_of_others(
    engine: Engine,
    name: str,
    fleet: Fleet | None,
    workload: WorkloadSpec,
    *,
    store: ObjectStore,
    clock: Clock,
    run: RunKey | None = None,
) -> Mapping[str, NetworkLoad]:
    """Return what gangs of runs other than ``run`` put on the network of ``engine``, which a task calls ``name``.

    Nothing for a run that waits its turn, as others will run by then, and where the engine's own scheduler rules. What
    cannot be read is as good as nothing: the run can do without, and looks again as it is launched.
    """
    if workload.queue is not None or EngineFeature.OWN_QUEUE in engine.features:
        return {}
    try:
        ground = open_ground(engine, name, fleet, store=store, clock=clock)
        return {} if ground is None else loads_beside(ground.state(), run=run)
    except (StoreError, DataError) as error:
        log.warning("planned as if no other run used the network: %s", error)
        return {}


def open_arbiter(
    ground: Ground,
    *,
    context: RunContext,
    planner: Planner,
    fleet: Fleet | None,
    store: ObjectStore,
    open_channel: Callable[[str], RunChannel],
    clock: Clock,
    as_measured: Callable[[], AsMeasured] = lambda: as_claimed,
) -> RunArbiter:
    """Return whoever claims for the run of ``context``, by the rules of the deployment's fleet file.

    ``as_measured`` looks up what was measured of the links of the ground's cluster.
    """
    rules = rules_of(fleet)
    decider = _decider(ground, rules, store, open_channel, clock)
    return RunArbiter(
        ground, decider, context=context, planner=planner, clock=clock, rules=rules, as_measured=as_measured
    )


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
