"""What claims to a cluster mean for a plan, and for the queue. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from airflow_llmsched.control.arbiter_state import Claim, GroundState, PastHold, Slots, held_by, sees
from airflow_llmsched.control.planning import with_all_free
from airflow_llmsched.domain.fleet import FLEET, cluster_of
from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.network_load import NetworkLoad
from airflow_llmsched.domain.placement import Placement
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.domain.queue import (
    Limits,
    QueuedGang,
    QueueState,
    RunningGang,
    SlicedSlot,
    SliceHold,
    SliceKind,
    TeamUsage,
    WaitingGang,
)
from airflow_llmsched.domain.queue_rules import DEFAULT_PRIORITY, QueueRules, QueueWish
from airflow_llmsched.domain.slots import taken_of
from airflow_llmsched.domain.topology import Division, TopologyNode, TopologyTree
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.planner.contention.busy import with_busy_links
from airflow_llmsched.planner.links import AsMeasured, as_claimed
from airflow_llmsched.planner.perf.hardware import node_shapes
from airflow_llmsched.planner.placement.feasible import NODE_LEVEL
from airflow_llmsched.planner.placement.wishes import stride_and_size
from airflow_llmsched.planner.queue.usage import accrued, decayed, that_goes_with

SavedAt = Callable[[RunKey], float | None]
"""Returns by when (Unix seconds) what a run has done was last saved durably; None: not known."""

RESTART_S = 120.0
"""What a gang that was stopped is taken to need until it is where it had been."""


def only(tree: TopologyTree, held: Slots) -> TopologyTree:
    """Return the tree with nothing free but what of ``held`` is."""
    return replace(tree, nodes=tuple(_keeping(node, held[node.id]) for node in tree.nodes if node.id in held))


def left_over(tree: TopologyTree, state: GroundState, *, run: RunKey) -> TopologyTree:
    """Return the tree with what other runs hold, or are promised, not free. What is promised is the last that is."""
    others = [claim for key, claim in state.claims.items() if key != run]
    held = held_by(others)
    promised: Counter[NodeId] = Counter()
    for claim in others:
        if claim.reserved is not None:
            promised.update(claim.reserved.num_slots)
    return _less_of(tree, held, promised)


def loads_beside(state: GroundState, *, run: RunKey | None = None) -> dict[str, NetworkLoad]:
    """Return what gangs of other runs put on the network, by what a reader knows them by; as far as it is known."""
    return {
        f"run {key} ({claim.dag_id})" if claim.dag_id else f"run {key}": claim.load
        for key, claim in state.claims.items()
        if key != run and claim.load is not None and not claim.waits
    }


def beside(
    tree: TopologyTree, state: GroundState, *, run: RunKey | None = None, as_measured: AsMeasured = as_claimed
) -> TopologyTree:
    """Return a cluster's tree, of which nothing is left out, with how busy gangs of other runs keep its links."""
    return with_busy_links(tree, loads_beside(state, run=run), node_shapes(), as_measured=as_measured)


def as_if_alone(tree: TopologyTree) -> TopologyTree:
    """Return the tree with all free that works: what a run asks for does not hang on who runs now."""
    nodes = tuple(node if node.unusable_reason else with_all_free(node) for node in tree.nodes)
    return replace(tree, nodes=nodes)


def asked_gang(
    run: RunKey, plan: Plan, workload: WorkloadSpec, tree: TopologyTree, *, excluded: Iterable[NodeId]
) -> QueuedGang:
    """Return what a run asks of the queue: as many accelerators as ``plan`` has, on nodes of its shape, and their part.

    Accelerators of helpers are asked for like those of ranks, but beside them where levels are required of groups.
    """
    num_slots = sum(len(plan.placement.held_on(node)) for node in plan.placement.nodes)
    kept = _kept_groups(plan.layout, workload, tree)
    group = plan.layout.tp if num_slots % plan.layout.tp == 0 else 1
    layout = _degrees(plan.layout) if kept else ParallelLayout(dp=num_slots // group, tp=group)
    levels = {wish.required: wish.level for wish in workload.placement if wish.group is RankGroup.GANG}
    others = {node.id for node in tree.nodes if node.shape != plan.node_shape}
    wish = workload.queue or QueueWish()
    beside = that_goes_with(node_shapes().get(plan.node_shape), num_slots)
    return QueuedGang(
        key=run,
        team=wish.team,
        priority_class=wish.priority,
        layout=layout,
        required_level=levels.get(True),
        preferred_level=levels.get(False),
        group_levels=kept,
        excluded=frozenset(excluded) | others,
        num_helper_slots=num_slots - layout.world_size,
        host_bytes=beside.host_bytes,
        network_bytes_per_s=beside.network_bytes_per_s,
    )


def _degrees(layout: ParallelLayout) -> ParallelLayout:
    """Return a layout with nothing but what says which ranks form groups."""
    return ParallelLayout(
        dp=layout.dp, tp=layout.tp, pp=layout.pp, cp=layout.cp, ep=layout.ep, expert_tp=layout.expert_tp
    )


def _kept_groups(layout: ParallelLayout, workload: WorkloadSpec, tree: TopologyTree) -> tuple[PlacementWish, ...]:
    """Return the levels required of groups that have more than one rank, but for those that tensor groups keep anyhow.

    Most specs name none but these, and the queue is quicker about gangs without any.
    """
    levels = (*tree.levels, NODE_LEVEL)
    around = levels[: levels.index(tree.scale_up_level or NODE_LEVEL) + 1]
    return tuple(
        wish
        for wish in workload.placement
        if wish.required
        and wish.group is not RankGroup.GANG
        and stride_and_size(layout, wish.group)[1] > 1
        and not (wish.group is RankGroup.TP and wish.level in around)
    )


def slots_of(placement: Placement) -> Slots:
    """Return the accelerators that a gang holds."""
    return {node: placement.held_on(node) for node in placement.nodes}


def queue_state(
    state: GroundState,
    tree: TopologyTree,
    rules: QueueRules,
    *,
    now_s: float,
    scope: str = "",
    saved_at: SavedAt = lambda _run: None,
) -> QueueState:
    """Return the queue as it stands, for gangs that these rules and this tree know the words of.

    ``scope`` is what of the cluster the tree has. Runs whose engine has something else are decided about by their own:
    what they are promised is kept, and what they hold is theirs until they make room. What a run has rented is no part
    of the queue.
    """
    levels = {NODE_LEVEL, *tree.levels}
    classes = {each.name for each in rules.classes}
    claims = [_known(claim, classes) for claim in state.claims.values()]
    seen = [each for each in claims if sees(scope, each)]
    waiting = [_within(each, tree, scope) for each in seen if each.waits and levels.issuperset(each.gang.levels)]
    others = [each for each in claims if each.is_own or not sees(scope, each)]
    on_slices = [each for each in claims if each.gang.slices is not None]
    whole = held_by(each for each in claims if each.gang.slices is None)
    return QueueState(
        now_s=now_s,
        tree=_without_own(beside(tree, state), others, on_slices),
        classes=rules.classes,
        waiting=tuple(_waiting(each) for each in waiting),
        running=tuple(
            _running(each, tree, saved_at, now_s=now_s) for each in claims if not each.waits and not each.is_own
        ),
        sliced=tuple(
            SlicedSlot(node=node.id, slot=each.slot, kind=SliceKind(each.kind), num_slices=len(each.slices))
            for node in tree.nodes
            if not node.unusable_reason
            for each in node.divisions
            if each.slot not in whole.get(node.id, ())  # by a gang that began before it was divided
        ),
        quotas=rules.quotas,
        usage=used(state, rules, now_s=now_s),
        totals=_totals(tree),
        policy=rules.policy,
        failures_per_hour={
            node.id: node.terms.failures_per_hour for node in tree.nodes if node.terms.failures_per_hour > 0
        },
    )


def _totals(tree: TopologyTree) -> Limits:
    """Return what a cluster's nodes have in all beside accelerators, as far as that is known of every kind of node."""
    shapes, num_slots = node_shapes(), Counter[str]()
    for node in tree.nodes:
        num_slots[node.shape] += node.num_slots
    have = [that_goes_with(shapes.get(shape), number) for shape, number in num_slots.items()]
    return Limits(
        host_bytes=_sum_if_all_told(each.host_bytes for each in have),
        network_bytes_per_s=_sum_if_all_told(each.network_bytes_per_s for each in have),
    )


def _sum_if_all_told(amounts: Iterable[float]) -> float | None:
    told = list(amounts)
    return math.fsum(told) if told and all(told) else None


def used(state: GroundState, rules: QueueRules, *, now_s: float) -> tuple[TeamUsage, ...]:
    """Return what teams have used until now: beside what was counted by the last decision, what was held since then.

    What a run has rented is its own, and counts for nobody.
    """
    half_life_s = rules.policy.half_life_s
    counted = {each.team: decayed(each, at_s=now_s, half_life_s=half_life_s) for each in state.usage}
    for hold in (*state.past, *_still_held(state, now_s=now_s)):
        nothing = TeamUsage(team=hold.team, accelerator_s=0.0, at_s=min(hold.from_s, hold.until_s))
        own = accrued(nothing, hold.amounts, until_s=hold.until_s, half_life_s=half_life_s)
        own = decayed(own, at_s=now_s, half_life_s=half_life_s)
        before = counted.get(hold.team, replace(nothing, at_s=now_s))
        counted[hold.team] = replace(
            before,
            accelerator_s=before.accelerator_s + own.accelerator_s,
            host_byte_s=before.host_byte_s + own.host_byte_s,
            network_bytes=before.network_bytes + own.network_bytes,
        )
    return tuple(counted[team] for team in sorted(counted))


def _still_held(state: GroundState, *, now_s: float) -> Iterator[PastHold]:
    for run, claim in state.claims.items():
        if not claim.is_own:
            from_s = state.not_counted_from_s(claim) or now_s
            yield PastHold(run=run, team=claim.gang.team, amounts=claim.amounts, from_s=from_s, until_s=now_s)


def _within(claim: Claim, tree: TopologyTree, scope: str) -> Claim:
    """Return a claim that goes nowhere but where its run's engine has nodes: a fleet has more than one cluster."""
    if scope != FLEET or claim.scope in ("", FLEET):
        return claim
    others = {node.id for node in tree.nodes if cluster_of(node.id) != claim.scope}
    return replace(claim, gang=replace(claim.gang, excluded=claim.gang.excluded | others))


def _without_own(tree: TopologyTree, others: Iterable[Claim], on_slices: Iterable[Claim]) -> TopologyTree:
    """Return the tree without what is rented, and without what is promised to those that others decide about.

    An accelerator that somebody has slices of is nobody's, though this tree may not have it divided.
    """
    held = held_by([*(claim for claim in others if claim.is_own), *on_slices])
    promised: Counter[NodeId] = Counter()
    for claim in others:
        if claim.reserved is not None:
            promised.update(claim.reserved.num_slots)
    return _less_of(tree, held, promised)


def _known(claim: Claim, classes: set[str]) -> Claim:
    """Return a claim whose class is none of the rules' (any more) as one of those that name none."""
    if claim.gang.priority_class in classes:
        return claim
    return replace(claim, gang=replace(claim.gang, priority_class=DEFAULT_PRIORITY))


def _waiting(claim: Claim) -> WaitingGang:
    return WaitingGang(gang=claim.gang, since_s=claim.since_s, runs_for_s=claim.runs_for_s, reserved=claim.reserved)


def _running(claim: Claim, tree: TopologyTree, saved_at: SavedAt, *, now_s: float) -> RunningGang:
    found_s = saved_at(claim.gang.key)
    saved_s = claim.started_s if found_s is None else found_s
    slices = None if claim.gang.slices is None else _slices_held(claim, tree)
    return RunningGang(
        gang=claim.gang_as_held,
        held=claim.held if claim.gang.slices is None else {},
        slices=slices,
        started_s=claim.started_s,
        saved_s=saved_s,
        next_save_s=next_save_s(claim.saves_every_s, since_s=saved_s, now_s=now_s),
        ends_by_s=claim.ends_by_s,
        restart_s=RESTART_S,
        yield_s=claim.yield_s,
        yields_to=claim.yields_to,
        yields_by_s=claim.yields_by_s,
    )


def next_save_s(every_s: float | None, *, since_s: float, now_s: float) -> float | None:
    """Return when a gang that saves so often is expected to have saved next, None: nobody knows.

    Where it is not known when it last saved, counted from when it began (``since_s``): boundaries are then as far apart
    as they should be, and somewhat off.
    """
    if every_s is None or every_s <= 0:
        return None
    num_before = max(0, math.ceil((now_s - since_s) / every_s))
    return since_s + max(1, num_before) * every_s


def _slices_held(claim: Claim, tree: TopologyTree) -> SliceHold | None:
    """Return the slices that a claim holds as the queue counts them; None where the tree has them no more."""
    for node in tree.nodes:
        held = set(claim.held.get(node.id, ()))
        for each in node.divisions:
            if held & set(each.slices):
                return SliceHold(node=node.id, slot=each.slot, num_slices=len(held))
    return None


def part_of(held: Slots, tree: TopologyTree) -> float:
    """Return what part of an accelerator the slices are that are among these slots."""
    return sum(
        len(set(held.get(node.id, ())) & set(each.slices)) / len(each.slices)
        for node in tree.nodes
        for each in node.divisions
    )


def slots_of_slices(hold: SliceHold, tree: TopologyTree, state: GroundState) -> Slots:
    """Return which slots a gang that starts on slices holds: the first ones of that accelerator that nobody does."""
    taken = state.held.get(hold.node, frozenset())
    division = next(
        each for node in tree.nodes if node.id == hold.node for each in node.divisions if each.slot == hold.slot
    )
    return {hold.node: tuple(slot for slot in division.slices if slot not in taken)[: hold.num_slices]}


def _keeping(node: TopologyNode, slots: Iterable[int]) -> TopologyNode:
    kept = tuple(sorted(set(node.usable_slot_indexes) & set(slots)))
    divisions = _divisions(node, lambda slot: slot in slots)
    return (
        node if node.unusable_reason else replace(node, num_free_slots=len(kept), free_slots=kept, divisions=divisions)
    )


def _divisions(node: TopologyNode, keeps: Callable[[int], bool]) -> tuple[Division, ...]:
    """Return a node's divisions with only those slices free that ``keeps`` says."""
    return tuple(replace(each, free=tuple(slot for slot in each.free if keeps(slot))) for each in node.divisions)


def _less_of(tree: TopologyTree, held: Mapping[NodeId, frozenset[int]], promised: Counter[NodeId]) -> TopologyTree:
    if not held and not promised:
        return tree
    nobody: frozenset[int] = frozenset()
    nodes = tuple(_less(node, held.get(node.id, nobody), promised[node.id]) for node in tree.nodes)
    return replace(tree, nodes=nodes)


def _less(node: TopologyNode, held: frozenset[int], num_promised: int) -> TopologyNode:
    if node.unusable_reason or not (held or num_promised):
        return node
    taken = taken_of(node.usable_slot_indexes, held)
    free = [slot for slot in node.usable_slot_indexes if slot not in taken]
    kept = tuple(free[: max(0, len(free) - num_promised)])
    divisions = _divisions(node, lambda slot: not taken_of([slot], held))
    return replace(node, num_free_slots=len(kept), free_slots=kept, divisions=divisions)
