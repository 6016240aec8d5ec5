"""Choosing the plan of a launch on what is free now. Pure: the tree and the planner are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from airflow_llmsched.control import commands as cmd
from airflow_llmsched.control import events as ev
from airflow_llmsched.control.context import RunContext
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.plan import Plan, PlanSearch
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec

Planner = Callable[[WorkloadSpec, TopologyTree, frozenset[NodeId]], PlanSearch]

MAX_CAPACITY_POLL_S = 300.0
MAX_REASONS = 3
"""Reasons for unusable nodes that a refusal tells: a large cluster has many."""


def choose_plan(
    command: cmd.ChoosePlan, context: RunContext, tree: TopologyTree, planner: Planner, *, now_s: float
) -> ev.PlanChosen | ev.PlanRefused:
    """Return the plan of the next launch, or why there is none and when to look again."""
    wanted = command.keep or (context.first_plan if command.first else None)
    note = ""
    if wanted is not None:
        missing = missing_of(wanted, tree, command.excluded)
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


def missing_of(plan: Plan, tree: TopologyTree, excluded: Collection[NodeId] = ()) -> str:
    """Return what of ``plan`` cannot be had on ``tree`` now, in words; empty when all of it can."""
    nodes = {node.id: node for node in tree.nodes}
    for node_id in plan.placement.nodes:
        node, needed = nodes.get(node_id), len(plan.placement.held_on(node_id))
        if node is None:
            return f"node {node_id} is gone"
        if node_id in excluded:
            return f"node {node_id} failed before"
        if node.unusable_reason:
            return f"node {node_id} cannot be used: {node.unusable_reason}"
        if node.usable_slots < needed:
            return f"node {node_id} has {node.usable_slots} of {needed} slots free"
        taken = set(plan.placement.held_on(node_id)) - set(node.usable_slot_indexes)
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
    reason += _unusable(tree)
    if not planner(context.workload, all_free(tree), frozenset()).plans:
        return ev.PlanRefused(at_s=now_s, reason=f"{reason}; waiting cannot help", retry_at_s=None)
    return refused_yet(reason, command, context, now_s=now_s)


def refused_yet(reason: str, command: cmd.ChoosePlan, context: RunContext, *, now_s: float) -> ev.PlanRefused:
    """Return that there is no plan now, and when to look again; None where it has been waited for long enough."""
    again_at_s = retry_at_s(
        waiting_since_s=command.waiting_since_s,
        now_s=now_s,
        wait_s=context.capacity_wait_s,
        poll_s=context.capacity_poll_s,
    )
    if again_at_s is None:
        reason = f"{reason}; waited {now_s - (command.waiting_since_s or now_s):.0f} s for capacity"
    return ev.PlanRefused(at_s=now_s, reason=reason, retry_at_s=again_at_s)


def _unusable(tree: TopologyTree) -> str:
    """Return the commonest reasons for which nodes cannot be used, with how many each keeps out; empty without any."""
    reasons = Counter(node.unusable_reason for node in tree.nodes if node.unusable_reason)
    told = "; ".join(f"{reason} ({count} nodes)" for reason, count in reasons.most_common(MAX_REASONS))
    return f". Not usable: {told}" if told else ""


def all_free(tree: TopologyTree) -> TopologyTree:
    """Return the tree as it would be with nothing running on it and nothing broken."""
    return replace(tree, nodes=tuple(replace(with_all_free(node), unusable_reason=None) for node in tree.nodes))


def with_all_free(node: TopologyNode) -> TopologyNode:
    """Return the node as if nobody held anything of it."""
    free = node.whole_slots if node.divisions else None
    divisions = tuple(replace(each, free=each.slices) for each in node.divisions)
    num_free = node.num_slots - len(divisions)
    return replace(node, num_free_slots=num_free, free_slots=free, divisions=divisions)
