"""Places the gang of a chosen plan once more, by its own layout. Pure.

A search places each number of ranks once for all layouts that bind as many ranks to one another. A solver that goes by
the score of a placement can do better for one layout: it knows which groups exchange how much.
"""

from __future__ import annotations

import math
from dataclasses import replace

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.domain.placement import NodeCosts, NotPlaced, Placement, PlacementProblem
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.workload import ObjectiveWeights
from airflow_llmsched.planner.evaluate import evaluate
from airflow_llmsched.planner.launch_settings import launch_settings
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.node_costs import beside_others, crossed_busy_ratios
from airflow_llmsched.planner.perf.placed_machine import PlacedMachine
from airflow_llmsched.planner.placement.score import Scorer
from airflow_llmsched.planner.places import Ask, num_held, usd_per_hour, with_helpers
from airflow_llmsched.planner.spans import group_spans

LEAST_GAIN_RATIO = 1e-6
"""Of a score: what rounding may make of two placements that are alike."""


def placed_again(ask: Ask, plan: Plan) -> Plan:
    """Return ``plan`` on the place that the ask's solver finds for its layout, if that scores better and is no slower.

    What running gangs add over busy links counts as part of a step. It may be slower where the objective weighs cost,
    fairness or reliability: the score says how much that is worth. ``ask`` is what the plan was found for.
    """
    if _group_size(plan.layout) != plan.layout.tp:
        return plan  # a solver keeps tensor-parallel groups together, and here wider ones must be
    problem = _problem(ask, plan.layout)
    result = ask.solver.place(problem, time_limit_s=ask.time_limit_s, seed=ask.seed)
    if isinstance(result, NotPlaced) or result.placement.slots == plan.placement.slots:
        return plan
    placement = with_helpers(ask, result.placement, plan.layout)
    if placement is None:
        return plan
    scorer = Scorer(problem)
    before, after = scorer.score(plan.placement), scorer.score(placement)
    if not _keeps_required(scorer, placement) or after.total_s >= before.total_s * (1 - LEAST_GAIN_RATIO):
        return plan
    found = _moved(ask, plan, placement, num_domains=result.num_domains)
    beside_s = found.prediction.step_s + after.contention_s
    is_slower = beside_s > (plan.prediction.step_s + before.contention_s) * (1 + LEAST_GAIN_RATIO)
    return plan if is_slower and not _weighs_more_than_time(ask.workload.objective) else found


def _weighs_more_than_time(weights: ObjectiveWeights) -> bool:
    return weights.cost + weights.fairness + weights.reliability > 0


def _group_size(layout: ParallelLayout) -> int:
    return math.lcm(layout.tp, layout.expert_tp or layout.tp)


def _problem(ask: Ask, layout: ParallelLayout) -> PlacementProblem:
    price = NodeCosts(usd_per_hour=ask.shape.usd_per_hour)
    busy = crossed_busy_ratios(ask.tree, layout, excluded=ask.excluded)
    free = {node.id for node in ask.tree.nodes if node.terms.usd_per_hour == 0}
    told = {
        node: costs if node in free else replace(costs, usd_per_hour=costs.usd_per_hour or price.usd_per_hour)
        for node, costs in ask.node_costs.items()
    }
    costs = {node.id: told.get(node.id, price) for node in ask.tree.nodes}
    return PlacementProblem(
        layout=layout,
        tree=ask.tree,
        required_level=ask.gang_level(required=True),
        preferred_level=ask.gang_level(required=False),
        excluded=ask.excluded,
        wishes=(*ask.group_wishes(required=True), *ask.group_wishes(required=False)),
        workload=ask.workload,
        shape=ask.shape,
        weights=ask.workload.objective,
        node_costs=beside_others(costs, busy),
    )


def _keeps_required(scorer: Scorer, placement: Placement) -> bool:
    return scorer.keeps_required(scorer.depths(*scorer.positions(placement)))


def _moved(ask: Ask, plan: Plan, placement: Placement, *, num_domains: int) -> Plan:
    on_place = PlacedMachine.on(placement, tree=ask.tree, shape=ask.shape)
    machine = replace(on_place, calibration=ask.calibration)
    evaluation = evaluate(ask.workload, LayoutTable.of([plan.layout]), machine)
    return replace(
        plan,
        placement=placement,
        prediction=evaluation.prediction(0, usd_per_hour=usd_per_hour(ask, num_held(placement))),
        num_domains=num_domains,
        spans=group_spans(plan.layout, machine),
        launch_settings=launch_settings(plan.layout, machine),
    )
