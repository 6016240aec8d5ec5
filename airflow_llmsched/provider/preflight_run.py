"""Checks of a plan's nodes, round after round until all of them are fit: a gang each, then the plan is made anew.

What was found is in the run's folder after each round, so that a worker that dies goes on where it was.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.clock import SystemClock
from airflow_llmsched.control.arbiter_state import ROUNDS_PER_GENERATION, launch_number
from airflow_llmsched.control.arbiter_view import asked_gang
from airflow_llmsched.control.context import Failed, Outcome, Succeeded, Watch
from airflow_llmsched.control.fit_nodes import without
from airflow_llmsched.control.intents import LaunchIntents, preflight_intents
from airflow_llmsched.control.places import CheckpointPlaces
from airflow_llmsched.control.planning import all_free, missing_of
from airflow_llmsched.control.single import SingleRun, give_back, stop_all
from airflow_llmsched.domain.gang import GangHandle, GangSpec
from airflow_llmsched.domain.health import FailureClass, Fault
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.launcher import Launcher
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.preflight import Check, NodeChecks, PreflightRecord, PreflightRound
from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import CapacityError, CouldNotLookError, DataError, RelaxError, TransientError
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.policies.preflight import judge
from airflow_llmsched.provider import run_files
from airflow_llmsched.provider.channels import channel_dir, flush_interval_s
from airflow_llmsched.provider.gang_run import GangSettings, preflight_record
from airflow_llmsched.provider.hooks.placement import PlacementHook
from airflow_llmsched.provider.places import checkpoint_root, cluster_places
from airflow_llmsched.provider.rented_tree import rented_tree
from airflow_llmsched.provider.run_engine import open_run_engine
from airflow_llmsched.provider.run_scope import RunScope
from airflow_llmsched.provider.side_claims import open_claims
from airflow_llmsched.provider.side_gangs import open_side_gang
from airflow_llmsched.topology.link_records import LinkRecord, record_of
from airflow_llmsched.trainers.preflight.words import MARK, OPTIONS_VARIABLE, Options

log = logging.getLogger(__name__)

STOP_GRACE_S = 5.0

_CHECK = ("-m", "airflow_llmsched.trainers.preflight.check")
_RDMA = ("infiniband", "roce", "efa")
"""How the names of networks begin whose cards the kernel lists as RDMA devices."""

_MAX_LINES = 200
"""Lines of a rank that are read: libraries may have written some beside those of its checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightSettings:
    """How thorough to be. ``min_share``: a node that measures less of its peers' median is unfit (None: none is)."""

    limit_s: float = 900.0
    max_rounds: int = 3
    min_share: float | None = 0.5
    folders: tuple[str, ...] = ()
    nccl_tests: str = ""


class PreflightRun:
    """The rounds of one generation."""

    def __init__(self, settings: GangSettings, preflight: PreflightSettings) -> None:
        self._settings = settings
        self._preflight = preflight
        self._scope = settings.scope
        self._spec: WorkloadSpec = run_files.read_spec(settings.scope)
        self._hook = PlacementHook(engine=settings.engine, engine_options=settings.engine_options)
        self._engine = self._hook.get_conn()
        self._claims = open_claims(
            settings,
            key=settings.scope.checks_key,
            engine=self._engine,
            spec=self._spec,
            runs_for_s=self._runs_for_s(),
            number_of=partial(_number_of, settings.scope),
        )

    def start(self) -> Outcome:
        """Begin, or go on where another worker was."""
        record = self.record()
        if record.passed:
            return _passed(record)
        return self._settled(self._go_on(self._round(record).start()))

    def handle(self, event: Any) -> Outcome:
        """Act on what a watcher handed over."""
        return self._settled(self._go_on(self._round(self.record()).handle(event)))

    def record(self) -> PreflightRecord:
        """Return what was found so far."""
        return preflight_record(self._scope, generation=self._settings.generation)

    def _settled(self, outcome: Outcome) -> Outcome:
        """Keep what was checked for the run, whose launch takes it over; give it back if there will be none."""
        if isinstance(outcome, Failed) and self._claims is not None:
            generation = self._settings.generation
            give_back(self._engine, _intents(self._settings), self._claims, through_generation=generation)
        return outcome

    def _go_on(self, outcome: Outcome) -> Outcome:
        while not isinstance(outcome, Watch):
            found = self._found(outcome)
            if found is None:
                return outcome
            self._keep_links(found)
            record = self.record()
            record = self._keep(replace(record, rounds=(*record.rounds, found)))
            if record.passed:
                return _passed(record)
            if len(record.rounds) >= self._preflight.max_rounds:
                return Failed(reason=f"after {len(record.rounds)} rounds some nodes are still unfit: {_words(found)}")
            outcome = self._round(record).start()
        return outcome

    def _found(self, outcome: Succeeded | Failed) -> PreflightRound | None:
        """Return what a round found out; None when it found nothing out about any node."""
        plan = self.record().plan
        if isinstance(outcome, Succeeded) and plan is not None:
            # Rates of plain processors say more about who else runs on them than about the machine.
            min_share = self._preflight.min_share if self._options(plan).vendor else None
            handle = self._newest()
            nodes = self._nodes_of(handle, plan)
            return judge(self._reported(handle, plan, nodes), asked=list(nodes.values()), min_share=min_share)
        fault = outcome.fault if isinstance(outcome, Failed) else None
        if fault is None or fault.node is None or not _is_nodes(fault):
            return None
        return PreflightRound(nodes=(), unfit={fault.node: fault.summary})

    def _nodes_of(self, handle: GangHandle, plan: Plan) -> dict[NodeId, NodeId]:
        """Return by each of the plan's nodes where its ranks were: where the platform chooses nodes, on another one.

        Raises ``CouldNotLookError``.
        """
        planned = _ranks_of(plan).nodes
        status = self._engine.poll([handle]).get(handle)
        if status is None:
            raise CouldNotLookError(f"engine {self._engine.name} does not say where the checks {handle.key.name} ran")
        found = tuple(each.node for each in status.nodes)
        is_elsewhere = len(found) == len(planned) and set(found) != set(planned)
        return dict(zip(planned, found if is_elsewhere else planned, strict=True))

    def _reported(self, handle: GangHandle, plan: Plan, nodes: Mapping[NodeId, NodeId]) -> list[NodeChecks]:
        """Read what the first rank of each node wrote; a node without a word is left out."""
        slots = plan.placement.slots
        first_ranks = {slot.node: slot.rank for slot in reversed(slots)}
        tails = self._engine.log_tails(handle, ranks=list(first_ranks.values()), num_lines=_MAX_LINES)
        told = {node: _read(tails[rank]) for node, rank in first_ranks.items()}
        return [NodeChecks(node=there, checks=told[node]) for node, there in nodes.items() if told[node]]

    def _newest(self) -> GangHandle:
        key = self._scope.preflight_key(len(self.record().rounds))
        handles = [each for each in self._engine.find(key) if each.key.generation == self._settings.generation]
        if not handles:
            raise CouldNotLookError(f"engine {self._engine.name} no longer knows the checks {key}, which it had run")
        return handles[-1]

    def _keep(self, record: PreflightRecord) -> PreflightRecord:
        run_files.write(self._scope, run_files.PREFLIGHT_FILE, record)
        return record

    def _keep_links(self, found: PreflightRound) -> None:
        """Keep what a round measured of links for whoever plans here next. Without it the run goes on all the same."""
        if found.unfit:
            return  # what was measured may be of the node that is to blame
        try:
            others = {} if self._claims is None else self._claims.others()
            told = record_of(found, self._engine.topology(), at_s=SystemClock().now_s(), others=others)
            if isinstance(told, LinkRecord):
                self._hook.measured_links().keep(told)
            else:
                log.info("plans go on without what these checks measured of links: %s", told)
        except TransientError as error:
            log.warning("what the checks measured of links is not kept: %s", error)

    def _round(self, record: PreflightRecord) -> SingleRun:
        return open_side_gang(
            self._settings,
            self._spec,
            key=self._scope.preflight_key(len(record.rounds)),
            engine=self._engine,
            intents=_intents(self._settings),
            make_gang=self._gang,
            limit_s=self._preflight.limit_s,
            max_attempts=1,  # what a node does to its ranks once is reason enough to use another
            holding=self._claims,
            keeps_claim=True,
        )

    def _gang(self, key: AttemptKey) -> GangSpec:
        plan, launcher = self._plan(key), self._spec.launcher
        unfit = set(self.record().unfit).difference(plan.placement.nodes)
        return GangSpec(
            key=key,
            placement=_ranks_of(plan),
            layout=ParallelLayout(dp=plan.placement.world_size),
            command=(sys.executable, *_CHECK),
            channel_root=f"{channel_dir(self._scope)}/channel/{key.name}",
            launcher=Launcher.PLAIN,
            environment={
                **launcher.environment,
                OPTIONS_VARIABLE: self._options(plan).to_json(),
                "TORCH_NCCL_BLOCKING_WAIT": "1",  # else a broken link ends the process instead of the wait
            },
            start_limit_s=launcher.start_limit_s,
            grace_s=launcher.grace_s,
            flush_interval_s=flush_interval_s(self._settings.poll_interval_s),
            lease_s=self._settings.lease_s,
            origin=self._scope.origin,
            accelerator_vendor=plan.accelerator_vendor,
            excluded=tuple(sorted(unfit)),
        )

    def _plan(self, key: AttemptKey) -> Plan:
        """Return the plan to check; a new one where nodes of the last are unfit or cannot be had. Kept for training.

        Raises ``CapacityError`` when there is none now, ``RelaxError`` when there can be none.
        """
        own, record = rented_tree(self._scope, self._hook), self.record()
        fitting = _Plans(self._plan_on, key=self._scope.checks_key, spec=self._spec, unfit=record.unfit)
        if self._claims is None:
            fitting.place(own or self._engine.topology())
        else:
            self._claims.hold(fitting, key=key, own=own)
        plan = fitting.plan
        if plan != record.plan:
            self._keep(replace(record, plan=plan))
        return plan

    def _plan_on(self, tree: TopologyTree) -> Plan:
        record = self.record()
        tree = without(tree, record.unfit)
        plan = record.plan or run_files.read_plan(self._scope).plans[0]
        return self._plan_anew(tree, record) if missing_of(plan, tree) else plan

    def _runs_for_s(self) -> float | None:
        """Return for how long the nodes are wanted: for the checks, and for the run that follows them."""
        if self._spec.num_steps is None:
            return None
        try:
            plans = run_files.read_plan(self._scope).plans
        except DataError:
            return None  # whoever launches the checks says what is missing
        return self._preflight.limit_s + (self._spec.num_steps * plans[0].prediction.step_s if plans else 0.0)

    def _plan_anew(self, tree: TopologyTree, record: PreflightRecord) -> Plan:
        planner = self._hook.planner_for(self._spec, run_files.planned_tools(self._scope))
        search = planner(self._spec, tree, frozenset())
        if search.plans:
            return search.plans[0]
        if planner(self._spec, all_free(tree), frozenset()).plans:
            raise CapacityError(f"no plan fits what is free now. {search.relaxation or ''}".rstrip())
        why = "; ".join(f"{node}: {reason}" for node, reason in sorted(record.unfit.items()))
        raise RelaxError(f"no plan without the nodes that are unfit ({why}). {search.relaxation or ''}".rstrip())

    def _options(self, plan: Plan) -> Options:
        shape = node_shapes().get(plan.node_shape)
        by_cluster = cluster_places(self._scope.run_key, engine=self._settings.engine)
        root = CheckpointPlaces(checkpoint_root(self._scope, self._spec), by_cluster).of(plan).node_root
        folders = (*([root] if root.startswith("/") else []), *self._preflight.folders)
        return Options(
            vendor=shape.accelerator.vendor if shape else "",
            num_nics=shape.num_nics if shape and shape.inter_node.name.startswith(_RDMA) else 0,
            folders=tuple(dict.fromkeys(folders)),
            nccl_tests=self._preflight.nccl_tests,
        )


class _Plans:
    """Where a plan fits; ``plan`` is the last one that did."""

    plan: Plan

    def __init__(
        self, plan_on: Callable[[TopologyTree], Plan], *, key: RunKey, spec: WorkloadSpec, unfit: Mapping[NodeId, str]
    ) -> None:
        self._plan_on = plan_on
        self._key = key
        self._spec = spec
        self._unfit = unfit

    def place(self, tree: TopologyTree) -> Placement:
        """Return the place of a plan on what is free. Raises ``CapacityError``, ``RelaxError``."""
        self.plan = self._plan_on(tree)
        return self.plan.placement

    def asks(self, tree: TopologyTree) -> QueuedGang:
        """Return what the run is to ask for, which the checks are made for. Raises as :meth:`place`."""
        return asked_gang(self._key, self._plan_on(tree), self._spec, tree, excluded=self._unfit)


def _number_of(scope: RunScope, key: AttemptKey) -> int:
    """Return the number of a launch of checks: rounds follow one another, each with a key of its own."""
    rounds = (number for number in range(ROUNDS_PER_GENERATION) if scope.preflight_key(number) == key.run)
    return launch_number(key, number_of_round=next(rounds))


def _ranks_of(plan: Plan) -> Placement:
    """Return where the plan's ranks are: helpers' own accelerators, and nodes of helpers alone, are not checked."""
    return replace(plan.placement, helpers=())


def stop_preflight(settings: GangSettings, *, through_generation: int | None = None) -> tuple[str, ...]:
    """Stop the run's live gangs of checks, or those up to a generation, and give back what they held. Idempotent.

    Returns their names. Raises ``CouldNotLookError``, ``StoreError``.
    """
    scope, intents = settings.scope, _intents(settings)
    engine = open_run_engine(settings.engine, settings.engine_options)
    runs = dict.fromkeys(noted.run for noted in intents.noted())
    stopped = tuple(
        name
        for run in runs
        for name in stop_all(engine, run, intents, grace_s=STOP_GRACE_S, through_generation=through_generation)
    )
    claims = open_claims(settings, key=scope.checks_key, engine=engine, number_of=partial(_number_of, scope))
    if claims is not None:
        give_back(engine, intents, claims, through_generation=through_generation)
    return stopped


def _intents(settings: GangSettings) -> LaunchIntents:
    return preflight_intents(settings.scope.store(), settings.scope.run_key)


def _read(text: str) -> tuple[Check, ...]:
    """Read the lines that report checks; what is none of them, or torn, is somebody else's."""
    found = []
    for each in text.splitlines():
        _, mark, told = each.partition(MARK)  # a library may have left its own line unfinished before
        if mark:
            try:
                found.append(codec.from_plain(Check, codec.parse_json(told)))
            except (ValueError, ValidationError):
                continue
    return tuple(found)


def _is_nodes(fault: Fault) -> bool:
    """Whether a node is to blame: not for checks that cannot be run anywhere, but for a process that it killed."""
    is_killed = fault.exit_code is not None and fault.exit_code < 0
    return fault.failure_class is FailureClass.INFRASTRUCTURE or (
        fault.failure_class is FailureClass.CODE and is_killed
    )


def _words(found: PreflightRound) -> str:
    return "; ".join(f"{node}: {reason}" for node, reason in sorted(found.unfit.items()))


def _passed(record: PreflightRecord) -> Succeeded:
    return Succeeded(checkpoint=None, last_step=None, num_attempts=len(record.rounds))


def results(record: PreflightRecord) -> dict[str, Any]:
    """Return what XCom gets: how many rounds it took, and which nodes are out."""
    checked = record.rounds[-1].nodes if record.rounds else ()
    unfit = {str(node): reason for node, reason in sorted(record.unfit.items())}
    return {"rounds": len(record.rounds), "num_nodes": len(checked), "unfit": unfit}
