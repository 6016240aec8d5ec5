"""What else could be decided, and what each decision gives up for the rest: a front over five objectives. Pure.

A candidate is a policy and the decision that follows from it: the state's own, and each order with and without
preemption and without the frailest nodes. In a small queue that is every order in which gangs of one class could go, in
a larger one those that have names. Whatever is chosen can be written down as a policy, and decided again from that.

Axes: C = candidate, K = objective.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, islice, permutations, product

import numpy as np

from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.queue import QueueOrder, QueuePolicy, QueueState
from airflow_llmsched.domain.queue_decision import QueueDecision
from airflow_llmsched.domain.queue_rules import QueueWeights
from airflow_llmsched.planner.pareto import pareto_front, weighted_score
from airflow_llmsched.planner.queue.decide import Place, decide
from airflow_llmsched.planner.queue.desk import Desk
from airflow_llmsched.planner.queue.usage import asked_Q

MAX_ORDERS = 120
"""Orders of a queue that are all looked at; a queue that has more is looked at by the orders that have names."""

MAX_SERVED = 20_000
"""Gangs that all candidates together look at: some seconds. A large queue is decided by fewer policies."""

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCosts:
    """What a decision costs by each objective: all are better when smaller.

    Attributes:
        idle_ratio: accelerators that nobody holds once all have started (throughput).
        lost_hours: hours of the whole fleet that preemption throws away, restarts included (cost).
        wait_hours: mean over waiting gangs until they are expected to start; an hour's worth of the policy's
            ``unknown_run_s`` where nobody knows (latency).
        spread_ratio: between the largest and the smallest weighted dominant share of teams that have gangs (fairness).
        failures_per_hour: expected of gangs by a node of theirs, over those that run on and those that start, each
            counted by its part of the fleet (reliability).
    """

    idle_ratio: float
    lost_hours: float
    wait_hours: float
    spread_ratio: float
    failures_per_hour: float

    @property
    def row(self) -> tuple[float, ...]:
        """All of them, in order."""
        return tuple(getattr(self, each.name) for each in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A decision, the policy that it follows from, and what it costs."""

    policy: QueuePolicy
    decision: QueueDecision
    costs: QueueCosts


def choices(state: QueueState, place: Place) -> list[Choice]:
    """Return candidates that decide differently, the state's own policy first. Raises what :func:`decide` raises."""
    found: dict[object, Choice] = {}
    most = max(2, MAX_SERVED // max(1, len(state.waiting) + len(state.running)))
    for policy in islice(dict.fromkeys(chain([state.policy], _policies(state))), most):
        decision = decide(replace(state, policy=policy), place)
        found.setdefault(_outcome(decision), Choice(policy=policy, decision=decision, costs=costs_of(state, decision)))
    return list(found.values())


def front(found: Sequence[Choice]) -> list[Choice]:
    """Return the choices that no other beats or equals in every objective; of equal ones the first."""
    costs_CK = np.array([each.costs.row for each in found])
    positions = pareto_front(costs_CK, tie_breaks=[np.arange(len(found))])
    return [found[number] for number in sorted(positions.tolist())]


def choose(state: QueueState, place: Place, *, weights: QueueWeights) -> Choice:
    """Return the choice of the front that these weights like best; ties go to the state's own policy.

    Each cost counts as a multiple of the best one (``planner.pareto.weighted_score``). Where nothing counts, the
    state's own policy decides. Raises what :func:`decide` raises.
    """
    counted = [weights.throughput, weights.cost, weights.latency, weights.fairness, weights.reliability]
    if not any(counted):
        decision = decide(state, place)
        return Choice(policy=state.policy, decision=decision, costs=costs_of(state, decision))
    found = front(choices(state, place))
    costs_CK = np.array([each.costs.row for each in found])
    score_C = weighted_score([(weight, costs_CK[:, number]) for number, weight in enumerate(counted)])
    return found[int(np.argmin(np.round(score_C, 9)))]


def costs_of(state: QueueState, decision: QueueDecision) -> QueueCosts:
    """Return what a decision about this state costs by each objective."""
    desk = Desk.of(state)
    fleet = max(1.0, float(desk.capacity_Q[0]))
    gangs = {each.gang.key: each.gang for each in state.waiting}
    shares = desk.shares
    for start in decision.starts:
        part = _part_of_a_slot(state, start.slices.node, start.slices.slot) if start.slices else 0.0
        num_slices = start.slices.num_slices if start.slices else 0
        num_held = sum(map(len, start.held.values())) + num_slices * part
        shares.take(desk.team[gangs[start.gang].team], asked_Q(gangs[start.gang], num_accelerators=num_held))
    teams = {each.gang.team for each in state.waiting} | {each.gang.team for each in state.running}
    levels = [shares.of(desk.team[team]) for team in sorted(teams)]
    unknown_s = state.policy.unknown_run_s
    waits_s = [
        *(0.0 for _ in decision.starts),
        *(unknown_s if each.start_s is None else each.start_s - state.now_s for each in decision.waits),
    ]
    return QueueCosts(
        idle_ratio=max(0.0, 1.0 - float(shares.held_TQ[:, 0].sum()) / fleet),
        lost_hours=sum(each.cost_accelerator_s for each in decision.preemptions) / fleet / HOUR_S,
        wait_hours=math.fsum(waits_s) / max(1, len(waits_s)) / HOUR_S,
        spread_ratio=max(levels, default=0.0) - min(levels, default=0.0),
        failures_per_hour=_failures_per_hour(state, decision, fleet),
    )


def _failures_per_hour(state: QueueState, decision: QueueDecision, fleet: float) -> float:
    told = {each.gang for each in decision.preemptions}
    held = [each.held for each in state.running if each.gang.key not in told]
    held += [each.held for each in decision.starts]
    often = state.failures_per_hour
    return math.fsum(
        sum(often.get(node, 0.0) for node in slots) * sum(map(len, slots.values())) / fleet for slots in held
    )


def _part_of_a_slot(state: QueueState, node: NodeId, slot: int) -> float:
    return next(1.0 / each.num_slices for each in state.sliced if (each.node, each.slot) == (node, slot))


def _policies(state: QueueState) -> Iterator[QueuePolicy]:
    often = sorted({0.0, *state.failures_per_hour.values()})
    limits = [state.policy.max_failures_per_hour, *often[:-1][-2:]]
    preempts = [True, False] if state.policy.may_preempt and state.running else [state.policy.may_preempt]
    named = [replace(state.policy, order=order) for order in QueueOrder]
    for policy in [replace(state.policy, first=first) for first in _orders(state)] or named:
        for may_preempt, limit in product(preempts, dict.fromkeys(limits)):
            yield replace(policy, may_preempt=may_preempt, max_failures_per_hour=limit)


def _orders(state: QueueState) -> list[tuple[RunKey, ...]]:
    """Return every order in which gangs could go, class by class; none where there are too many."""
    by_class: dict[str, list[RunKey]] = {}
    for each in sorted(state.waiting, key=lambda waiting: waiting.gang.key):
        by_class.setdefault(each.gang.priority_class, []).append(each.gang.key)
    if math.prod(math.factorial(len(keys)) for keys in by_class.values()) > MAX_ORDERS:
        return []
    return [tuple(chain(*each)) for each in product(*(permutations(keys) for keys in by_class.values()))]


def _outcome(decision: QueueDecision) -> object:
    """Return what a decision comes to, whatever the order in which it was made."""
    return (
        frozenset((each.gang, tuple(sorted(each.held.items())), each.slices) for each in decision.starts),
        frozenset((each.gang, each.beneficiary) for each in decision.preemptions),
        frozenset((each.gang, each.start_s) for each in decision.waits),
    )
