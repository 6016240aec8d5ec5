"""Whom a gang may preempt, and whether that helps it. Pure.

A gang is preempted as a whole, for one of a strictly higher class: so nobody can be preempted by whom he preempted.
The one exception is what a team has borrowed, where the lender's rule says so (``Reclaim.ANY``): the lender stays
within its quota and is itself no borrower then, so that the borrower cannot take it back either. What has not run for
as long as its class protects it stays, and so does what is leaving or has just been started.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.queue import QueuedGang, RunningGang, WaitingGang
from airflow_llmsched.domain.queue_decision import Preempt
from airflow_llmsched.planner.layout_table import IntArray
from airflow_llmsched.planner.queue.desk import Desk, runs_for_s
from airflow_llmsched.planner.queue.usage import asked_Q
from airflow_llmsched.planner.queue.victims import Candidate, cheapest_cover


def preempt(desk: Desk, waiting: WaitingGang, *, start_s: float) -> list[Preempt]:
    """Return who is to leave for a gang that could start at ``start_s`` otherwise.

    Nobody, where that would not be sooner, or where others are leaving for it already and may still be in time. Whoever
    is to leave is counted as gone by the time that he leaves.
    """
    gang, now_s = waiting.gang, desk.state.now_s
    is_entitled = desk.state.policy.may_preempt and desk.classes[gang.priority_class].may_preempt
    if not is_entitled or any(to == gang.key and not _is_overdue(desk, key) for key, to in desk.leaving.items()):
        return []
    candidates = _candidates(desk, gang)
    leave_s = now_s + max((desk.running[each.key].yield_s for each in candidates), default=0.0)
    # Whoever will have ended by then need not be told.
    candidates = [each for each in candidates if desk.timeline.running[each.key].end_s > leave_s]
    if not candidates or leave_s >= start_s:
        return []
    held = [desk.timeline.running[each.key] for each in candidates]
    left = desk.timeline.within(leave_s, leave_s + runs_for_s(waiting), held=held)
    is_within_quota = desk.hinders(left, gang, asked_Q(gang)) is None

    def allows(victims: Sequence[Candidate], nodes: IntArray) -> bool:  # noqa: ARG001 - where they are does not matter
        if is_within_quota:
            return True
        freed_TQ = np.zeros_like(left.usages[0])
        for each in victims:
            freed_TQ[each.team] += each.asked_Q
        usages = tuple(usage_TQ - freed_TQ for usage_TQ in left.usages)
        return desk.hinders(replace(left, usages=usages), gang, asked_Q(gang)) is None

    cover = cheapest_cover(desk.room, left.free_N, gang, candidates, allows, is_monotone=True)
    if cover is None:
        return []
    for each in cover.victims:
        desk.timeline.leave(each.key, at_s=now_s + desk.running[each.key].yield_s)
        desk.leaving[each.key] = gang.key
    return [
        Preempt(
            gang=each.key,
            beneficiary=gang.key,
            leaves_by_s=now_s + desk.running[each.key].yield_s,
            cost_accelerator_s=each.cost_accelerator_s,
            domain=desk.room.path(cover.nodes, cover.depth),
            is_reclaim=each.is_reclaim,
        )
        for each in sorted(cover.victims, key=lambda each: each.key)
    ]


def lost_work_accelerator_s(running: RunningGang, *, now_s: float) -> float:
    """Return what stopping a gang costs: its work since its last durable checkpoint, and its restart."""
    return running.num_held * (max(0.0, now_s - running.saved_s) + running.restart_s)


def _candidates(desk: Desk, gang: QueuedGang) -> list[Candidate]:
    team, classes = desk.team[gang.team], desk.classes
    found = [each for each in _exposed(desk) if each.gang.key not in desk.leaving]
    is_own = desk.table.is_within(desk.timeline.now.usage_TQ, team=team, asked_Q=asked_Q(gang))
    borrowed = _borrowed(desk, [each for each in found if each.gang.team != gang.team])
    lower = {name for name, each in classes.items() if each.priority < classes[gang.priority_class].priority}
    reclaims, reclaims_any = bool(desk.table.reclaims_T[team]), is_own and bool(desk.table.reclaims_any_T[team])
    cohort = set(
        np.array(desk.team_names)[(desk.table.cohort_T == desk.table.cohort_T[team]) & (desk.table.cohort_T >= 0)]
    )
    chosen: list[Candidate] = []
    for each in found:
        is_borrowed = each.gang.key in borrowed
        # Who borrows himself preempts nobody who is within his quota: else a quota would not be worth much.
        is_open = each.gang.team == gang.team or (reclaims and (is_own or is_borrowed))
        if each.gang.priority_class in lower and is_open:
            chosen.append(_candidate(desk, each))
        elif reclaims_any and is_borrowed and each.gang.team in cohort:
            chosen.append(_candidate(desk, each, is_reclaim=True))
    return chosen


def _exposed(desk: Desk) -> list[RunningGang]:
    """Return gangs that nothing protects from being preempted, the latest first. They are looked up once."""
    if desk.exposed is None:
        found = (each for each in desk.running.values() if each.slices is None and not _is_protected(desk, each))
        desk.exposed = sorted(found, key=lambda each: (-each.started_s, each.gang.key))
    return desk.exposed


def _is_protected(desk: Desk, running: RunningGang) -> bool:
    return desk.state.now_s < running.started_s + desk.classes[running.gang.priority_class].protected_s


def _is_overdue(desk: Desk, key: RunKey) -> bool:
    """Whether a gang that was told to leave is so late that nobody can count on it: its supervisor may be gone."""
    by_s = desk.running[key].yields_by_s
    return by_s is not None and desk.state.now_s >= by_s + desk.state.policy.overrun_s


def _borrowed(desk: Desk, found: Sequence[RunningGang]) -> set[RunKey]:
    """Return gangs of ``found``, the latest first, that teams run on what they have borrowed: until they do no more."""
    usage_TQ = desk.timeline.now.usage_TQ.copy()
    chosen: set[RunKey] = set()
    borrows_T = desk.table.borrows_T(usage_TQ)
    if not borrows_T.any():
        return chosen
    for each in found:
        team = desk.team[each.gang.team]
        if borrows_T[team]:
            chosen.add(each.gang.key)
            usage_TQ[team] -= desk.timeline.running[each.gang.key].asked_Q
            borrows_T = desk.table.borrows_T(usage_TQ)
    return chosen


def _candidate(desk: Desk, running: RunningGang, *, is_reclaim: bool = False) -> Candidate:
    key = running.gang.key
    span = desk.timeline.running[key]
    if key not in desk.costs_accelerator_s:
        desk.costs_accelerator_s[key] = lost_work_accelerator_s(running, now_s=desk.state.now_s)
    return Candidate(
        key=key,
        team=span.team,
        share=span.share,
        asked_Q=span.asked_Q,
        cost_accelerator_s=desk.costs_accelerator_s[key],
        is_reclaim=is_reclaim,
    )
