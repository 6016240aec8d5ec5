"""Which running gangs could move, so that one that waits for whole domains would fit. Proposals only. Pure.

A gang moves when it has just saved, so that it loses no work but its restart. A proposal is made where the waiting
gang's earlier start is worth more accelerator time than all restarts cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_llmsched.domain.queue import RunningGang, WaitingGang
from airflow_llmsched.domain.queue_decision import Move
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.queue.desk import Desk
from airflow_llmsched.planner.queue.room import Share
from airflow_llmsched.planner.queue.victims import Candidate, cheapest_cover


def propose_moves(desk: Desk, waiting: WaitingGang, *, start_s: float | None) -> list[Move]:
    """Return moves after all of which a gang fits that could start at ``start_s`` otherwise (None: nobody knows)."""
    movable = [each for each in desk.running.values() if _is_movable(desk, each)]
    candidates = [_candidate(desk, each) for each in movable]
    if not desk.state.policy.may_consolidate or not candidates:
        return []
    seen = desk.timeline.num_before(desk.until_s(waiting))

    def allows(movers: Sequence[Candidate], nodes: IntArray) -> bool:
        return _new_places(desk, movers, nodes) is not None

    free_N = desk.timeline.window(seen).free_N
    cover = cheapest_cover(desk.room, free_N, waiting.gang, candidates, allows, is_monotone=False)
    if cover is None:
        return []
    at_s = max(_next_save_s(desk, each) for each in cover.victims)
    otherwise_s = desk.state.now_s + desk.state.policy.unknown_run_s if start_s is None else start_s
    gain_accelerator_s = waiting.gang.num_slots * (otherwise_s - at_s)
    places = _new_places(desk, cover.victims, cover.nodes)
    if places is None or gain_accelerator_s <= cover.cost_accelerator_s:
        return []
    return [
        Move(
            gang=each.key,
            beneficiary=waiting.gang.key,
            at_s=_next_save_s(desk, each),
            num_slots=desk.room.by_node(places[each.key]),
            cost_accelerator_s=cover.cost_accelerator_s,
            gain_accelerator_s=gain_accelerator_s,
        )
        for each in sorted(cover.victims, key=lambda each: each.key)
    ]


def _is_movable(desk: Desk, running: RunningGang) -> bool:
    if running.next_save_s is None or running.slices is not None or running.gang.key in desk.leaving:
        return False
    return set(running.gang.levels) <= set(desk.room.levels)  # nobody knows where else one would fit that has others


def _candidate(desk: Desk, running: RunningGang) -> Candidate:
    span = desk.timeline.running[running.gang.key]
    return Candidate(
        key=running.gang.key,
        team=span.team,
        share=span.share,
        asked_Q=span.asked_Q,
        cost_accelerator_s=running.num_held * running.restart_s,
    )


def _next_save_s(desk: Desk, mover: Candidate) -> float:
    saves_s = desk.running[mover.key].next_save_s
    return desk.state.now_s if saves_s is None else max(saves_s, desk.state.now_s)


def _new_places(desk: Desk, movers: Sequence[Candidate], nodes: IntArray) -> dict[str, Share] | None:
    """Return where movers would go outside of ``nodes``, the largest first; None if one of them finds no room.

    Only what no promise needs is given to them, and nothing that one of them leaves: they need not move at once.
    """
    free_N = desk.timeline.window(len(desk.timeline.instants)).free_N.copy()
    free_N[nodes] = 0
    if int(free_N.sum()) < sum(int(each.share[1].sum()) for each in movers):
        return None
    places: dict[str, Share] = {}
    for mover in sorted(movers, key=lambda each: (-int(each.share[1].sum()), each.key)):
        gang = desk.running[mover.key].gang
        if not desk.room.fits(free_N, gang):
            return None
        places[mover.key] = desk.room.choose(free_N, gang)
        free_N[places[mover.key][0]] -= places[mover.key][1]
    return places
