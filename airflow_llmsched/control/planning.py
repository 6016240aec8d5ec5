"""Choosing the plan of a launch on what is free now. Pure: the tree and the planner are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec

Planner = Callable[[WorkloadSpec, TopologyTree, frozenset[NodeId]], PlanSearch]

MAX_CAPACITY_POLL_S = 300.0


def choose_plan(
    command: cmd.ChoosePlan, context: RunContext, tree: TopologyTree, planner: Planner, *, now_s: float
) -> ev.PlanChosen | ev.PlanRefused:
    """Return the plan of the next launch, or why there is none and when to look again."""
    wanted = command.keep or (context.first_plan if command.first else None)
    note = ""
    if wanted is not None:
        missing = _missing(wanted, tree, command.excluded)
        if not missing:
            return ev.PlanChosen(at_s=now_s, plan=wanted)
        note = f"planned anew: {missing}"
    search = planner(context.workload, tree, frozenset(command.excluded))
    if not search.plans and command.excluded:
        search = planner(context.workload, tree, frozenset())
        note = f"{note}; " * bool(note) + f"no plan without {', '.join(command.excluded)}, which failed before"
    if search.plans:
        return ev.PlanChosen(at_s=now_s, plan=search.plans[0], note=note)
    return _refusal(command, context, tree, planner, search=search, now_s=now_s)


def retry_at_s(*, waiting_since_s: float | None, now_s: float, wait_s: float, poll_s: float) -> float | None:
    """Return when to look for capacity again, ever less often, or None when ``wait_s`` have been waited.

    The first looks are ``poll_s`` apart.
    """
    since_s = now_s if waiting_since_s is None else waiting_since_s
    give_up_at_s = since_s + wait_s
    if now_s >= give_up_at_s:
        return None
    pause_s = min(MAX_CAPACITY_POLL_S, max(poll_s, 0.5 * (now_s - since_s)))
    return min(now_s + pause_s, give_up_at_s)


def _missing(plan: Plan, tree: TopologyTree, excluded: tuple[NodeId, ...]) -> str:
    nodes = {node.id: node for node in tree.nodes}
    for node_id in plan.placement.nodes:
        node, needed = nodes.get(node_id), len(plan.placement.on(node_id))
        if node is None:
            return f"node {node_id} is gone"
        if node_id in excluded:
            return f"node {node_id} failed before"
        if node.unusable_reason:
            return f"node {node_id} cannot be used: {node.unusable_reason}"
        if node.usable_slots < needed:
            return f"node {node_id} has {node.usable_slots} of {needed} slots free"
        taken = {slot.slot for slot in plan.placement.on(node_id)} - set(node.usable_slot_indexes)
        if node.free_slots is not None and taken:
            return f"slots {sorted(taken)} of node {node_id} are taken"
    return ""


def _refusal(
    command: cmd.ChoosePlan,
    context: RunContext,
    tree: TopologyTree,
    planner: Planner,
    *,
    search: PlanSearch,
    now_s: float,
) -> ev.PlanRefused:
    counted = ", ".join(f"{reason}: {count}" for reason, count in sorted(search.rejections.items()))
    reason = f"no legal plan fits {tree.num_usable_slots} free slots ({counted or 'no candidates'})"
    reason += f". {search.relaxation}" * bool(search.relaxation)
    if not planner(context.workload, _all_free(tree), frozenset()).plans:
        return ev.PlanRefused(at_s=now_s, reason=f"{reason}; waiting cannot help", retry_at_s=None)
    again_at_s = retry_at_s(
        waiting_since_s=command.waiting_since_s,
        now_s=now_s,
        wait_s=context.capacity_wait_s,
        poll_s=context.capacity_poll_s,
    )
    if again_at_s is None:
        reason = f"{reason}; waited {now_s - (command.waiting_since_s or now_s):.0f} s for capacity"
    return ev.PlanRefused(at_s=now_s, reason=reason, retry_at_s=again_at_s)


def _all_free(tree: TopologyTree) -> TopologyTree:
    nodes = tuple(
        replace(node, num_free_slots=node.num_slots, unusable_reason=None, free_slots=None) for node in tree.nodes
    )
    return replace(tree, nodes=nodes)
