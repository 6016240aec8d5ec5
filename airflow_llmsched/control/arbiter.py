"""Says for one run what it may plan on, where its cluster has no scheduler of its own: what it holds, or nothing yet.

A run without a ``queue`` block plans on what is left over now, in whatever size fits. One with it asks for the size
that suits it, and waits its turn. Either holds what it plans on before anybody learns of the plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.arbiter_ground import Decider, Ground
from airflow_llmsched.control.arbiter_state import Claim, GroundState, generation_of
from airflow_llmsched.control.arbiter_turn import START_S, ends_by_s, turn_of, unknown_words
from airflow_llmsched.control.arbiter_view import (
    as_if_alone,
    asked_gang,
    beside,
    left_over,
    loads_beside,
    only,
    slots_of,
)
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.control.fit_nodes import without
from airflow_llmsched.control.journal import JournalRaceError
from airflow_llmsched.control.planning import Planner, choose_plan, missing_of, refused_yet
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.network_load import NetworkLoad
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.queue_rules import QueueRules
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import InternalError
from airflow_llmsched.planner.contention.beside import note_of, plan_beside
from airflow_llmsched.planner.links import AsMeasured, as_claimed
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.ports import Clock

log = logging.getLogger(__name__)

Answer = ev.PlanChosen | ev.PlanRefused | ev.Queued


class Arbitration(Protocol):
    """What a run driver asks of whoever shares a cluster's nodes among runs."""

    ground: str

    def choose(self, command: cmd.ChoosePlan, tree: TopologyTree, *, is_own: bool = False) -> Answer:
        """Return the plan of the next launch, its slots held; or why there is none, and when to look again.

        ``tree`` is the engine's, or what the run has rented of it (``is_own``): there it waits for nobody's turn.
        """

    def order(self, key: AttemptKey) -> ev.YieldOrdered | None:
        """Return the order that the run's gang ``key`` is to leave, where there is one."""

    def free(self, *, num_records: int, tree: Callable[[], TopologyTree]) -> None:
        """Give back what the run holds, with nothing of it alive. ``tree`` is asked for only if anybody waits."""


class RunArbiter:
    """Acts for the run of ``context``. Its methods raise ``TransientError``: then try again."""

    def __init__(
        self,
        ground: Ground,
        decider: Decider,
        *,
        context: RunContext,
        planner: Planner,
        clock: Clock,
        rules: QueueRules,
        as_measured: Callable[[], AsMeasured] = lambda: as_claimed,
    ) -> None:
        """``as_measured`` looks up what was measured of the cluster's links; it is asked only where a plan is made."""
        self._as_measured = as_measured
        self.ground = ground.name
        self._ground = ground
        self._decider = decider
        self._context = context
        self._planner = planner
        self._clock = clock
        self._rules = rules

    @property
    def _run(self) -> RunKey:
        return self._context.run_key

    def choose(self, command: cmd.ChoosePlan, tree: TopologyTree, *, is_own: bool = False) -> Answer:
        """Return the plan of the next launch on ``tree``: the engine's, whole, or what the run has rented of it."""
        answer = self._choose(command, tree, is_own=is_own)
        if isinstance(answer, ev.PlanChosen) and answer.note:
            log.info("run %s: %s", self._run, answer.note)
        return answer

    def _choose(self, command: cmd.ChoosePlan, tree: TopologyTree, *, is_own: bool) -> Answer:
        unknown = unknown_words(self._context.workload.queue, self._rules)
        if unknown:
            return ev.PlanRefused(at_s=self._clock.now_s(), reason=unknown, retry_at_s=None)
        tree = without(tree, self._ground.lacks)
        mine = self._take_over(command)
        if mine is not None and not mine.waits and mine.yields_to is None:
            chosen = self._on_what_is_held(mine, command, tree)
            if chosen is not None:
                return chosen
        waits_in_line = mine is not None and (mine.waits or mine.yields_to is not None)
        if is_own or (self._context.workload.queue is None and not waits_in_line):
            return self._take(command, tree, is_own=is_own)
        return self._queue(mine, command, tree)

    def order(self, key: AttemptKey) -> ev.YieldOrdered | None:
        """Return the order that the run's gang ``key`` is to leave, where there is one."""
        mine = self._ground.state().claims.get(self._run)
        if mine is None or mine.yields_to is None:
            return None
        return ev.YieldOrdered(at_s=self._clock.now_s(), key=key, to=mine.yields_to, by_s=mine.yields_by_s)

    def free(self, *, num_records: int, tree: Callable[[], TopologyTree]) -> None:
        """Give back for good what the run holds, and have it decided who gets it."""
        self._ground.free(self._run, num_records=num_records)
        try:
            if self._ground.state().waiting:
                self._decider.decide(without(tree(), self._ground.lacks))
        except Exception as error:  # noqa: BLE001  (others' claims must not keep this run from its end)
            log.warning("run %s has ended; who gets what it held is for those who wait: %s", self._run, error)

    def _take_over(self, command: cmd.ChoosePlan) -> Claim | None:
        """Return what the run claims. That is what its nodes were checked on, where it claims nothing by itself yet."""
        state, checks = self._ground.state(), self._context.checked_as
        mine, held = state.claims.get(self._run), None if checks is None else state.claims.get(checks)
        is_ours = held is not None and generation_of(held.num_records) == self._context.generation
        if mine is not None or checks is None or held is None or not is_ours or not command.first:
            return mine
        if held.waits or held.yields_to is not None:  # others are to have it: the run asks anew
            self._ground.free(checks, num_records=held.num_records, for_good=False)
            return None

        def make(found: GroundState) -> Claim | None:
            if found.claims.get(checks) != held or self._run in found.claims:
                return None
            gang = replace(held.gang, key=self._run)
            mine = replace(held, gang=gang, num_records=command.num_records, beside=None, num_yields=0)
            return replace(mine, given_at_s=None)

        return self._ground.take_over(make, instead_of=checks).claims.get(self._run)

    def _on_what_is_held(self, mine: Claim, command: cmd.ChoosePlan, tree: TopologyTree) -> ev.PlanChosen | None:
        state, as_measured = self._ground.state(), self._as_measured()
        own = only(self._fit(beside(tree, state, run=self._run, as_measured=as_measured)), mine.held)
        chosen = choose_plan(command, self._context, own, self._planner, now_s=self._clock.now_s())
        if not isinstance(chosen, ev.PlanChosen):
            return None
        answer, load = self._beside(chosen, tree, state, as_measured)
        until_s = ends_by_s(self._runs_for_s(answer.plan, command), now_s=self._clock.now_s())
        held = slots_of(answer.plan.placement)

        def make(state: GroundState) -> Claim | None:
            found = state.claims.get(self._run)
            if found is None or found.yields_to is not None or found.held not in (mine.held, held):
                raise JournalRaceError(f"run {self._run}: what it holds has changed while it planned: look again")
            taken = replace(found, num_records=command.num_records, held=held, ends_by_s=until_s)
            return replace(taken, given_at_s=None, seen_at_s=self._clock.now_s(), load=load)

        self._ground.claim_by(make)
        return answer

    def _take(self, command: cmd.ChoosePlan, tree: TopologyTree, *, is_own: bool) -> Answer:
        """Plan on what nobody else holds or is promised, and hold it in the same step."""
        answers: list[ev.PlanChosen | ev.PlanRefused] = []
        if not is_own:
            self._decider.decide(tree)
        as_measured = self._as_measured()

        def make(state: GroundState) -> Claim | None:
            now_s = self._clock.now_s()
            whole = beside(tree, state, run=self._run, as_measured=as_measured)
            left = left_over(self._fit(whole), state, run=self._run)
            found = choose_plan(command, self._context, left, self._planner, now_s=now_s)
            if isinstance(found, ev.PlanRefused):
                answers.append(found)
                return None
            answer, load = self._beside(found, tree, state, as_measured)
            answers.append(answer)
            claim = self._claim(answer.plan, command, tree, since_s=now_s)
            return replace(
                claim,
                held=slots_of(answer.plan.placement),
                started_s=now_s,
                is_own=is_own,
                ends_by_s=ends_by_s(claim.runs_for_s, now_s=now_s),
                load=load,
            )

        self._ground.claim_by(make)
        if isinstance(answers[-1], ev.PlanRefused):
            self._drop(command)
        return answers[-1]

    def _queue(self, mine: Claim | None, command: cmd.ChoosePlan, tree: TopologyTree) -> Answer:
        """Ask for the size that suits the run, have it decided, and plan on what that gave."""
        plan = self._wanted(command, tree)
        if isinstance(plan, ev.PlanRefused):
            self._drop(command)
            return plan
        since_s = mine.since_s if mine is not None and mine.waits else self._clock.now_s()
        claim = self._claim(plan, command, tree, since_s=since_s)

        def make(state: GroundState) -> Claim | None:
            found = state.claims.get(self._run)
            if found is None or not found.waits:
                was_started = mine is not None and mine.waits and found is not None
                return None if was_started else claim  # its turn has come since it looked
            return replace(claim, reserved=found.reserved, wait=found.wait)

        self._ground.claim_by(make)
        state = self._decider.decide(tree)
        now = state.claims.get(self._run)
        if now is not None and not now.waits:
            return self._on_what_is_held(now, command, tree) or self._leaves(now, command)
        return self._waits(now or claim, command, state)

    def _leaves(self, mine: Claim, command: cmd.ChoosePlan) -> ev.PlanRefused:
        """Leave to others what the run got and cannot use; it asks again later, and not for ever.

        The queue knows less of what a plan needs than the planner, and would give it the same at once.
        """
        self._drop(command)
        reason = f"the queue's turn gave it {mine.num_held} slots on {', '.join(sorted(mine.held))}: no plan fits there"
        return refused_yet(reason, command, self._context, now_s=self._clock.now_s())

    def _wanted(self, command: cmd.ChoosePlan, tree: TopologyTree) -> Plan | ev.PlanRefused:
        """Return the plan that the run would have if nobody else ran: as before, while its nodes are there."""
        alone = as_if_alone(self._fit(tree))
        before = command.keep or (self._context.first_plan if command.first else None)
        if before is not None and not missing_of(before, alone, command.excluded):
            return before
        search = self._planner(self._context.workload, alone, frozenset(command.excluded))
        if not search.plans and command.excluded:
            search = self._planner(self._context.workload, alone, frozenset())
        if search.plans:
            return search.plans[0]
        answer = choose_plan(
            replace(command, keep=None, first=False), self._context, alone, self._planner, now_s=self._clock.now_s()
        )
        if isinstance(answer, ev.PlanChosen):
            raise InternalError(f"run {self._run}: a plan was refused and chosen on the same nodes")
        return answer

    def _beside(
        self, chosen: ev.PlanChosen, tree: TopologyTree, state: GroundState, as_measured: AsMeasured
    ) -> tuple[ev.PlanChosen, NetworkLoad | None]:
        """Return a plan whose note says what it and others' gangs do to each other, and what it puts on the network.

        None of the latter where the planner does not know the machines, or how long a step takes.
        """
        shapes, plan = node_shapes(), chosen.plan
        if plan.node_shape not in shapes:
            return chosen, None
        others = loads_beside(state, run=self._run)
        found = plan_beside(self._context.workload, plan, tree, shapes=shapes, loads=others, as_measured=as_measured)
        note = "; ".join(filter(None, (chosen.note, *note_of(found.told))))
        return replace(chosen, note=note), found.load

    def _fit(self, tree: TopologyTree) -> TopologyTree:
        return without(tree, self._context.unfit)

    def _drop(self, command: cmd.ChoosePlan) -> None:
        """Give up the place in the queue, or what is held, for now."""
        self._ground.free(self._run, num_records=command.num_records, for_good=False)

    def _claim(self, plan: Plan, command: cmd.ChoosePlan, tree: TopologyTree, *, since_s: float) -> Claim:
        context = self._context
        # Where there is no plan without nodes that failed before, it asks for them as well.
        excluded = () if set(plan.placement.nodes) & set(command.excluded) else command.excluded
        return Claim(
            gang=asked_gang(self._run, plan, context.workload, tree, excluded=(*excluded, *context.unfit)),
            num_records=command.num_records,
            since_s=since_s,
            dag_id=context.dag_id,
            run_id=context.run_id,
            runs_for_s=self._runs_for_s(plan, command),
            saves_every_s=self._saves_every_s(plan, command),
            yield_s=context.workload.launcher.grace_s + START_S,
            scope=self._ground.scope,
            seen_at_s=self._clock.now_s(),
        )

    def _runs_for_s(self, plan: Plan, command: cmd.ChoosePlan) -> float | None:
        if self._context.num_steps is None:
            return None
        step = 0 if command.newest is None else command.newest.step
        left = max(0, self._context.num_steps - step)
        return START_S + left * plan.prediction.step_s * command.pace_ratio

    def _saves_every_s(self, plan: Plan, command: cmd.ChoosePlan) -> float | None:
        checkpoint = self._context.workload.checkpoint
        if checkpoint.interval_s is not None or checkpoint.interval_steps is None:
            return checkpoint.interval_s
        return checkpoint.interval_steps * plan.prediction.step_s * command.pace_ratio

    def _waits(self, claim: Claim, command: cmd.ChoosePlan, state: GroundState) -> ev.Queued | ev.PlanRefused:
        now_s = self._clock.now_s()
        turn = turn_of(claim, state.lease, self._context.workload.queue, now_s=now_s)
        if turn.again_at_s is None:
            self._drop(command)
            return ev.PlanRefused(at_s=now_s, reason=turn.reason, retry_at_s=None)
        return ev.Queued(
            at_s=now_s,
            reason=turn.reason,
            again_at_s=turn.again_at_s,
            start_s=turn.start_s,
            is_promised=turn.is_promised,
            since_s=claim.since_s,
        )
