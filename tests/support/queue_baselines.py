"""What a queue without our rules would do: first come first served, and strict priority. For comparison only."""

from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.placement import Placed, PlacementProblem
from airflow_llmsched.domain.queue import QueueState, WaitingGang
from airflow_llmsched.domain.queue_decision import QueueDecision, Start
from airflow_llmsched.domain.topology import TopologyNode
from airflow_llmsched.planner.placement.bestfit import BestFitSolver


def first_come(state: QueueState) -> QueueDecision:
    """Start gangs in the order in which they came, until one does not fit: nobody passes it."""
    return _in_order(state, sorted(state.waiting, key=lambda each: (each.since_s, each.gang.key)))


def strict_priority(state: QueueState) -> QueueDecision:
    """Start gangs class by class, in the order in which they came, until one does not fit."""
    order = sorted(
        state.waiting, key=lambda each: (-state.priority(each.gang).priority, each.since_s, each.gang.key)
    )  # fmt: skip
    return _in_order(state, order)


def _in_order(state: QueueState, order: list[WaitingGang]) -> QueueDecision:
    taken = {node.id: set[int]() for node in state.tree.nodes}
    for running in state.running:
        for node, slots in running.held.items():
            taken[node] |= set(slots)
    starts: list[Start] = []
    for waiting in order:
        nodes = tuple(_without(node, taken[node.id]) for node in state.tree.nodes)
        problem = PlacementProblem(
            layout=waiting.gang.layout,
            tree=replace(state.tree, nodes=nodes),
            required_level=waiting.gang.required_level,
        )
        result = BestFitSolver().place(problem, time_limit_s=1.0, seed=0)
        if not isinstance(result, Placed):
            break
        held = {node: result.placement.held_on(node) for node in result.placement.nodes}
        for node, slots in held.items():
            taken[node] |= set(slots)
        starts.append(Start(gang=waiting.gang.key, held=held, placement=result.placement))
    return QueueDecision(at_s=state.now_s, starts=tuple(starts))


def _without(node: TopologyNode, taken: set[int]) -> TopologyNode:
    free = tuple(slot for slot in node.usable_slot_indexes if slot not in taken)
    return replace(node, free_slots=free, num_free_slots=len(free))
