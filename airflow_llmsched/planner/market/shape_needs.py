"""What a run takes on each node shape, planned anew for it: how many nodes, for how long; or why it cannot run. Pure.

Nothing is known of where rented nodes will stand: all are taken to be in one domain of every level, as leases are
asked for. Of one shape several node counts compete: the fewest that hold the model, and then ever more, because a
deadline or what is left of a pool may want others than the cheapest. The time is that of all steps as predicted; the
nodes' start-up and interruptions are for whoever ranks offers to add.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airflow_llmsched.domain.capacity import ShapeNeed
from airflow_llmsched.domain.hardware import NodeShape
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.flat_tree import flat_tree
from airflow_llmsched.planner.layout_rules import LayoutRule
from airflow_llmsched.planner.perf.calibration import Calibration
from airflow_llmsched.planner.ranks import rank_counts, reserved_slots
from airflow_llmsched.planner.search import NOT_DIVISIBLE, NOT_TRIED, search
from airflow_llmsched.ports import PlacementSolver

MAX_NODES = 512
"""Nodes of one shape at most, where neither the batch nor the spec says less."""

MAX_COUNTS = 5
"""Node counts of one shape that are planned for and compete."""


def plan_shape(
    workload: WorkloadSpec,
    shape: NodeShape,
    *,
    solver: PlacementSolver,
    num_nodes: int | None = None,
    calibration: Calibration | None = None,
) -> tuple[ShapeNeed, ...] | str:
    """Return what the run takes on nodes of ``shape``, fewest first; or, in words, why it cannot run on any.

    ``num_nodes`` pins the count, ``calibration`` is what one's own machines reach. The workload
    must have a model: nothing else says how it scales.
    """
    counts = _node_counts(workload, shape) if num_nodes is None else [num_nodes]
    if not counts:
        return "on which no number of ranks divides batch and model within the spec's bounds"
    plans: dict[int, Plan] = {}
    refused: dict[int, PlanSearch] = {}

    def plan_on(count: int) -> bool:
        found = _planned(workload, shape, count, solver, calibration)
        plan = min(found.plans, key=lambda each: each.prediction.run_s, default=None)
        if plan is None:
            refused[count] = found
        else:
            plans[count] = plan  # the fastest: whole nodes are paid for, so that it is the cheapest, too
        return plan is not None

    for count in _spread(counts):
        if plan_on(count) and len(plans) == MAX_COUNTS:
            break
    if not plans:
        return _why_not(refused)
    _find_fewer(
        counts, below=min(plans), above=max((each for each in refused if each < min(plans)), default=0), plan_on=plan_on
    )
    return _worth_having(plans)


def _spread(counts: Sequence[int]) -> list[int]:
    """Return the first count, others that about double, and the last."""
    chosen = [counts[0]]
    for count in counts[1:-1]:
        if count >= 2 * chosen[-1]:
            chosen.append(count)
    return list(dict.fromkeys((*chosen, counts[-1])))


def _find_fewer(counts: Sequence[int], *, below: int, above: int, plan_on: Callable[[int], bool]) -> None:
    """Seek the fewest nodes that will do, by halving what lies between a count that does not and one that does."""
    between = [count for count in counts if above < count < below]
    while between:
        middle = len(between) // 2
        between = between[:middle] if plan_on(between[middle]) else between[middle + 1 :]


def _worth_having(plans: Mapping[int, Plan]) -> tuple[ShapeNeed, ...]:
    """Return counts of which each is faster than all that are smaller, without more than are of use."""
    needs: list[ShapeNeed] = []
    for count, plan in sorted(plans.items()):
        work_s = plan.prediction.run_s
        if not needs or work_s < needs[-1].work_s:
            needs.append(ShapeNeed(num_nodes=count, work_s=work_s))
    return tuple(needs[:MAX_COUNTS])


def _node_counts(workload: WorkloadSpec, shape: NodeShape) -> list[int]:
    """Return, ascending, the node counts that some number of ranks fills up to its last node."""
    slots, reserved = shape.num_accelerators, reserved_slots(workload)
    ranks = rank_counts(workload, max_ranks=max(0, MAX_NODES * slots - reserved))
    return sorted({math.ceil((count + reserved) / slots) for count in ranks})


def _planned(
    workload: WorkloadSpec,
    shape: NodeShape,
    num_nodes: int,
    solver: PlacementSolver,
    calibration: Calibration | None,
) -> PlanSearch:
    """Plan on so many nodes, and on no fewer."""
    tree = flat_tree(workload, num_nodes=num_nodes, num_slots=shape.num_accelerators, shape=shape)
    least = (num_nodes - 1) * shape.num_accelerators + 1 - reserved_slots(workload)
    capacity = replace(workload.capacity, min_ranks=max(workload.capacity.min_ranks, least))
    asked, shapes = replace(workload, capacity=capacity), {shape.name: shape}
    return search(asked, tree, shapes, solver=solver, seed=workload.seed, calibration=calibration)


def _why_not(refused: Mapping[int, PlanSearch]) -> str:
    """Return what stands in the way on most nodes: of what is legal, or of everything if nothing is."""
    most = max(refused)
    reasons = {reason: count for reason, count in refused[most].rejections.items() if reason not in _NEVER_TRIED}
    reason = max(reasons, key=lambda each: (each not in _RULES, reasons[each], each), default=NOT_DIVISIBLE)
    return f"on which the run cannot be planned, not on {most} nodes either: {reason}"


_NEVER_TRIED = (NOT_DIVISIBLE, NOT_TRIED)
_RULES = frozenset(rule.value for rule in LayoutRule)
