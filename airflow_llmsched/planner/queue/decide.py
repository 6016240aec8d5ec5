"""One look at a queue: who starts and where, who is preempted, what is kept for whom, why the others wait. Pure.

Gangs are served in order (``order``). Whoever fits starts, unless that would delay a promised start. Of those that do
not, the first are promised the earliest moment at which they fit, or others are preempted for them. Everything that a
decision rests on is in the state, so that the same state gives the same decision in any process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.placement import NotPlaced, Placed, Placement, PlacementProblem
from airflow_llmsched.domain.queue import QueuedGang, QueueState, Reservation, SliceAsk, WaitingGang
from airflow_llmsched.domain.queue_decision import Move, Preempt, QueueDecision, Start, WaitReason, Waits
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import InternalError
from airflow_llmsched.planner.layout_table import FloatArray
from airflow_llmsched.planner.queue.consolidating import propose_moves
from airflow_llmsched.planner.queue.desk import Desk, runs_for_s
from airflow_llmsched.planner.queue.forecast import Forecast
from airflow_llmsched.planner.queue.order import groups, is_starving, lineup
from airflow_llmsched.planner.queue.preempting import preempt
from airflow_llmsched.planner.queue.reasons import detail
from airflow_llmsched.planner.queue.room import NOTHING, Share
from airflow_llmsched.planner.queue.timeline import Span
from airflow_llmsched.planner.queue.usage import asked_Q
from airflow_llmsched.ports import PlacementSolver

Place = Callable[[QueuedGang, TopologyTree], Placed | NotPlaced]
"""Places a gang in a tree that holds one domain, and of that only what the gang may have.

Accelerators of helpers may be left out of the answer: the gang then gets any beside it.
"""

_Held = dict[NodeId, tuple[int, ...]]

_QUOTA = frozenset({WaitReason.TEAM_QUOTA, WaitReason.COHORT_QUOTA})
_ROOM = frozenset({WaitReason.CAPACITY, WaitReason.FRAGMENTED, WaitReason.PROMISED})
_HOPELESS = frozenset({WaitReason.OVER_QUOTA, WaitReason.NEVER_FITS})

MAX_QUOTA_LOOKS = 8
"""Gangs that only their quota keeps, for each of which it is looked whether it may preempt. The others wait anyhow."""


def placing_by(solver: PlacementSolver, *, time_limit_s: float = 5.0, seed: int = 0) -> Place:
    """Return how the ranks of gangs are placed by a solver."""

    def place(gang: QueuedGang, tree: TopologyTree) -> Placed | NotPlaced:
        problem = PlacementProblem(
            layout=gang.layout,
            tree=tree,
            required_level=gang.required_level,
            preferred_level=gang.preferred_level,
            excluded=gang.excluded,
            wishes=gang.group_levels,
        )
        return solver.place(problem, time_limit_s=time_limit_s, seed=seed)

    return place


def decide(state: QueueState, place: Place) -> QueueDecision:
    """Decide about every waiting gang.

    Whoever is kept off busy links may break into a domain that somebody behind him needs whole. Nobody waits for a
    link: then it is decided as if all links were idle.

    Raises:
        ValueError: a gang requires a level that the tree does not have.
        InternalError: ``place`` gave a gang what it was not offered.
    """
    decision = _decide(state, place)
    if not decision.starts or not decision.waits or not any(node.busy_ratios for node in state.tree.nodes):
        return decision
    nodes = tuple(replace(node, busy_ratios=()) for node in state.tree.nodes)
    anyhow = _decide(replace(state, tree=replace(state.tree, nodes=nodes)), place)
    return anyhow if _is_worse(decision, than=anyhow) else decision


def _is_worse(decision: QueueDecision, *, than: QueueDecision) -> bool:
    """Whether somebody does not start, is promised a later start or has to leave who need not."""
    started = {each.gang for each in decision.starts}
    promised_s = {each.gang: each.start_s for each in decision.reservations}
    return (
        any(each.gang not in started for each in than.starts)
        or any(
            each.gang not in started and promised_s.get(each.gang, math.inf) > each.start_s
            for each in than.reservations
        )
        or len(decision.preemptions) > len(than.preemptions)
    )


def _decide(state: QueueState, place: Place) -> QueueDecision:
    desk = Desk.of(state)
    outcome = _Outcome()
    for group in groups(state):
        outcome.num_promised = 0
        for waiting in group.kept:
            desk.keep(waiting)
        for waiting in lineup(group, state.policy, desk.shares, desk.team_names):
            desk.timeline.retract(waiting.gang.key)
            if waiting.gang.slices is None:
                _serve(desk, waiting, place, outcome)
            else:
                _serve_slices(desk, waiting, waiting.gang.slices, outcome)
    forecast = Forecast.of(
        desk.timeline, desk.table, num_waiting=len(outcome.waits), unknown_run_s=state.policy.unknown_run_s
    )
    return QueueDecision(
        at_s=state.now_s,
        starts=tuple(outcome.starts),
        preemptions=tuple(outcome.preemptions),
        reservations=tuple(outcome.reservations),
        moves=tuple(outcome.moves),
        waits=tuple(_waits(desk, forecast, each) for each in outcome.waits),
    )


@dataclass(slots=True, kw_only=True)
class _Wait:
    """A gang that does not start. ``start_s`` is when it will, where that is known without the gangs behind it."""

    waiting: WaitingGang
    reason: WaitReason
    start_s: float | None = None
    is_promised: bool = False


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """Decisions in the order in which they were made. ``is_blocked``: somebody waits for room already."""

    starts: list[Start] = field(default_factory=list)
    preemptions: list[Preempt] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    waits: list[_Wait] = field(default_factory=list)
    num_promised: int = 0
    num_quota_looks: int = 0
    has_looked_for_moves: bool = False
    is_blocked: bool = False


def _serve(desk: Desk, waiting: WaitingGang, place: Place, outcome: _Outcome) -> None:
    never = desk.never(waiting.gang)
    if never is not None:
        outcome.waits.append(_Wait(waiting=waiting, reason=never))
        return
    reason = desk.obstacle(waiting)
    may_pass = desk.state.policy.may_backfill or not outcome.is_blocked
    if may_pass and (reason is None or reason in _ROOM):
        placement = _find_place(desk, waiting, place, is_room=reason is None)
        if placement is not None:
            outcome.starts.append(_start(desk, waiting, *placement, is_backfill=outcome.is_blocked))
            return
    if reason is None:
        reason = WaitReason.NO_PLACE if may_pass else WaitReason.IN_ORDER
    wait = _Wait(waiting=waiting, reason=reason)
    outcome.waits.append(wait)
    if reason not in (WaitReason.NO_PLACE, WaitReason.IN_ORDER):
        reservation = _make_room(desk, waiting, reason, outcome)
        if reservation is not None:
            wait.start_s, wait.is_promised = reservation.start_s, reservation.is_promised
        if waiting.gang.key in desk.leaving.values():
            wait.reason = WaitReason.YIELDING
    outcome.is_blocked |= wait.reason not in _QUOTA


def _make_room(desk: Desk, waiting: WaitingGang, reason: WaitReason, outcome: _Outcome) -> Reservation | None:
    """Preempt others for a gang, propose moves, and keep room for it at the earliest moment, where it may have that."""
    policy = desk.state.policy
    is_claim = was_claim = waiting.reserved is not None and waiting.reserved.is_claim
    is_starved = is_starving(waiting, policy, now_s=desk.state.now_s)
    # Room that is kept for a gang that only its quota hinders would lie idle.
    is_looked_for = reason in _QUOTA and waiting.reserved is None and not is_starved
    outcome.num_quota_looks += is_looked_for
    is_full = policy.num_reservations is not None and outcome.num_promised >= policy.num_reservations
    if (is_full and not is_claim) or (is_looked_for and outcome.num_quota_looks > MAX_QUOTA_LOOKS):
        return None
    span = _earliest(desk, waiting)
    preemptions = preempt(desk, waiting, start_s=math.inf if span is None else span.start_s)
    if preemptions:
        outcome.preemptions += preemptions
        span, is_claim = _earliest(desk, waiting), True
    elif is_looked_for:
        return None
    elif reason is WaitReason.FRAGMENTED and not outcome.has_looked_for_moves:
        outcome.has_looked_for_moves = True
        outcome.moves += propose_moves(desk, waiting, start_s=None if span is None else span.start_s)
    if span is None:
        return None
    desk.timeline.promise(span)
    desk.shares.take(span.team, span.asked_Q)
    outcome.num_promised += not was_claim
    outcome.reservations.append(desk.reservation(span, is_claim=is_claim))
    return outcome.reservations[-1]


def _earliest(desk: Desk, waiting: WaitingGang) -> Span | None:
    """Return the earliest room for a gang, no later than what is kept for it."""
    gang = waiting.gang

    kept = desk.kept_span(waiting)
    found = desk.timeline.earliest(lambda left: desk.fits(left, gang), runs_for_s=runs_for_s(waiting))
    if found is None or (kept is not None and kept.start_s <= found[0]):
        return kept
    start_s, left = found
    share = desk.room.choose(left.free_N, gang, first_N=desk.timeline.now.free_N)
    return desk.span(gang, share, asked_Q(gang), start_s=start_s, end_s=start_s + runs_for_s(waiting))


def _find_place(desk: Desk, waiting: WaitingGang, place: Place, *, is_room: bool) -> tuple[Placement, _Held] | None:
    """Ask for a place in the smallest domain that has room, then in larger ones. Return it with all that is held.

    Where there is no room as far as the queue can tell (``is_room``), a solver may still know a way for some gangs.
    """
    gang = waiting.gang
    unsure = None if is_room else desk.unsure_of(waiting)
    if not is_room and unsure is None:
        return None
    left_N = desk.timeline.window(desk.timeline.num_before(desk.until_s(waiting))).free_N
    for nodes in desk.room.domains(left_N, gang if is_room else desk.as_solvers_may(gang)):
        if unsure is not None and not unsure.may_have_others(left_N[nodes]):
            continue
        offered = {node: tuple(sorted(desk.free[node])[: int(left_N[node])]) for node in nodes.tolist()}
        result = place(gang, desk.room.tree_for(nodes, offered))
        if isinstance(result, Placed):
            held = _with_helpers(desk, gang, held_by_node(result.placement), offered)
            _check(desk, gang, held, offered)
            return result.placement, held
    return None


def _with_helpers(desk: Desk, gang: QueuedGang, held: _Held, offered: dict[int, tuple[int, ...]]) -> _Held:
    """Return what a gang holds with what its helpers need, where the placement is of its ranks alone."""
    lacking, found = gang.num_slots - sum(map(len, held.values())), dict(held)
    if not lacking or lacking != gang.num_helper_slots:
        return held
    by_name = {desk.room.nodes[node].id: slots for node, slots in offered.items()}
    for node in dict.fromkeys((*held, *by_name)):
        taken = [slot for slot in by_name.get(node, ()) if slot not in held.get(node, ())][:lacking]
        lacking -= len(taken)
        if taken:
            found[node] = (*found.get(node, ()), *taken)
    return found


def _check(desk: Desk, gang: QueuedGang, held: _Held, offered: dict[int, tuple[int, ...]]) -> None:
    is_offered = all(
        set(slots) <= set(offered.get(desk.room.position.get(node, -1), ())) for node, slots in held.items()
    )
    num_held = sum(len(set(slots)) for slots in held.values())
    if not is_offered or num_held != gang.num_slots:
        raise InternalError(f"gang {gang.key} needs {gang.num_slots} slots of those it was offered, and got {held}")


def held_by_node(placement: Placement) -> _Held:
    """Return the accelerators that a gang holds by node, in one pass: a gang may be on thousands of nodes."""
    held: dict[NodeId, list[int]] = {}
    for slot in placement.slots:
        held.setdefault(slot.node, []).append(slot.slot)
    for helper in placement.helpers:
        held.setdefault(helper.node, []).extend(helper.slots)
    return {node: tuple(slots) for node, slots in held.items() if slots}


def _start(desk: Desk, waiting: WaitingGang, placement: Placement, held: _Held, *, is_backfill: bool) -> Start:
    share = desk.room.share_of({node: len(slots) for node, slots in held.items()})
    _begin(desk, waiting, share, asked_Q(waiting.gang))
    for node, slots in held.items():
        desk.free[desk.room.position[node]] -= set(slots)
    ends_by_s = _ends_by_s(desk, waiting)
    return Start(gang=waiting.gang.key, held=held, placement=placement, ends_by_s=ends_by_s, is_backfill=is_backfill)


def _begin(desk: Desk, waiting: WaitingGang, share: Share, wanted_Q: FloatArray) -> None:
    until_s = desk.until_s(waiting)
    span = desk.span(waiting.gang, share, wanted_Q, start_s=desk.state.now_s, end_s=until_s)
    # One of which nobody knows when it ends keeps out of all promises, and is thought to end at some time all the same.
    is_known = math.isfinite(until_s)
    desk.timeline.start(span, ends_s=until_s if is_known else desk.state.now_s + desk.state.policy.unknown_run_s)
    desk.shares.take(span.team, wanted_Q)


def _ends_by_s(desk: Desk, waiting: WaitingGang) -> float | None:
    return None if waiting.runs_for_s is None else desk.until_s(waiting)


def _serve_slices(desk: Desk, waiting: WaitingGang, ask: SliceAsk, outcome: _Outcome) -> None:
    gang, board = waiting.gang, desk.board
    wait = _Wait(waiting=waiting, reason=WaitReason.NO_SLICE)
    found = board.fitting_now(ask, end_s=desk.until_s(waiting), excluded=gang.excluded)
    wanted_Q = asked_Q(gang, num_accelerators=board.smallest_part(ask, gang.excluded) if found is None else found[1])
    if not board.could_ever(ask, gang.excluded):
        wait.reason = WaitReason.NEVER_FITS
    elif desk.table.never_allows(team=desk.team[gang.team], asked_Q=wanted_Q):
        wait.reason = WaitReason.OVER_QUOTA
    elif (hindrance := desk.hindrance_now(waiting, wanted_Q)) is not None:
        wait.reason = hindrance
    elif found is not None:
        _begin(desk, waiting, NOTHING, wanted_Q)
        board.take(found[0], start_s=desk.state.now_s, end_s=desk.until_s(waiting))
        ends_by_s = _ends_by_s(desk, waiting)
        outcome.starts.append(Start(gang=gang.key, slices=found[0], part_ratio=found[1], ends_by_s=ends_by_s))
        return
    elif (soonest := board.soonest(ask, runs_for_s=runs_for_s(waiting), excluded=gang.excluded)) is not None:
        wait.start_s = soonest[0]
        board.take(soonest[1], start_s=soonest[0], end_s=soonest[0] + runs_for_s(waiting))
    outcome.waits.append(wait)


def _waits(desk: Desk, forecast: Forecast, wait: _Wait) -> Waits:
    gang, start_s = wait.waiting.gang, wait.start_s
    if start_s is None and wait.reason not in _HOPELESS:
        lasts_s = desk.state.policy.unknown_run_s if wait.waiting.runs_for_s is None else wait.waiting.runs_for_s
        start_s = forecast.start_s(team=desk.team[gang.team], num_slots=gang.num_slots, runs_for_s=lasts_s)
        if start_s is not None and start_s <= desk.state.now_s:
            # By counting it would start now. It does not, so that something has to change first.
            start_s = forecast.next_change_s
    return Waits(
        gang=gang.key,
        reason=wait.reason,
        detail=detail(desk, gang, wait.reason),
        start_s=start_s,
        is_promised=wait.is_promised,
    )
