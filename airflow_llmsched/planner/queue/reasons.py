"""Why a gang waits, in words: what it needs, measured against what there is. Pure."""

from __future__ import annotations

from airflow_llmsched.domain.queue import QueuedGang
from airflow_llmsched.domain.queue_decision import WaitReason
from airflow_llmsched.planner.placement.wishes import stride_and_size
from airflow_llmsched.planner.queue.desk import Desk


def detail(desk: Desk, gang: QueuedGang, reason: WaitReason) -> str:
    """Return one sentence. What it measures against is how the queue stands when all decisions are made."""
    return _SENTENCES[reason](desk, gang)


def _needs(gang: QueuedGang) -> str:
    if gang.slices is not None:
        kind = f" {gang.slices.kind.value}" if gang.slices.kind else ""
        return f"needs {gang.slices.num_slices}{kind} slices of one accelerator"
    groups = f" in groups of {gang.layout.tp}" if gang.layout.tp > 1 else ""
    where = f" in one {gang.required_level}" if gang.required_level else ""
    several = "" if gang.num_slots == 1 else "s"
    kept = "".join(
        f", each {each.group} group of {stride_and_size(gang.layout, each.group)[1]} in one {each.level}"
        for each in gang.group_levels
    )
    return f"needs {gang.num_slots} accelerator{several}{groups}{where}{kept}"


def _free(desk: Desk) -> str:
    free = int(desk.timeline.now.free_N.sum())
    return f"{free} {'is' if free == 1 else 'are'} free"


def _capacity(desk: Desk, gang: QueuedGang) -> str:
    if int(desk.timeline.now.free_N.sum()) < gang.num_slots:
        return f"{_needs(gang)}; {_free(desk)}"
    return f"{_needs(gang)}; host memory or network bandwidth for them is used up"


def _fragmented(desk: Desk, gang: QueuedGang) -> str:
    return f"{_needs(gang)}; {_free(desk)}, but at most {desk.most_now(gang)} together"


def _promised(desk: Desk, gang: QueuedGang) -> str:
    others = desk.timeline.promised.keys() - {gang.key}
    return f"{_needs(gang)}; it would delay one of the {len(others)} gangs that were promised a start"


def _yielding(desk: Desk, gang: QueuedGang) -> str:
    leaving = sorted(key for key, beneficiary in desk.leaving.items() if beneficiary == gang.key)
    return f"{_needs(gang)}; waits until {' and '.join(leaving)} {'have' if len(leaving) > 1 else 'has'} left"


def _team_quota(desk: Desk, gang: QueuedGang) -> str:
    team = desk.team[gang.team]
    used, most = desk.timeline.now.usage_TQ[team, 0], desk.table.most_TQ[team, 0]
    return f"{_needs(gang)}; team {gang.team} uses {used:g} of the {most:g} that it may"


def _cohort_quota(desk: Desk, gang: QueuedGang) -> str:
    cohort = int(desk.table.cohort_T[desk.team[gang.team]])
    members_T = desk.table.cohort_T == cohort
    used = float(desk.timeline.now.usage_TQ[members_T, 0].sum())
    return f"{_needs(gang)}; the teams of its cohort use {used:g}, and none has enough left to lend"


def _over_quota(desk: Desk, gang: QueuedGang) -> str:
    most = desk.table.most_TQ[desk.team[gang.team], 0]
    return f"{_needs(gang)}; team {gang.team} may have {most:g} at most, or its cohort lends less. Raise its quota"


def _never_fits(desk: Desk, gang: QueuedGang) -> str:
    if gang.slices is not None:
        return f"{_needs(gang)}; no accelerator is divided into so many"
    most = desk.room.most(desk.room.whole_N, gang)
    if most >= gang.num_slots:
        return f"{_needs(gang)}; the whole fleet has less host memory or network bandwidth than it needs"
    return f"{_needs(gang)}; with all of them free, {most} fit. Ask for fewer, or for a wider level"


_SENTENCES = {
    WaitReason.CAPACITY: _capacity,
    WaitReason.FRAGMENTED: _fragmented,
    WaitReason.PROMISED: _promised,
    WaitReason.IN_ORDER: lambda _, gang: f"{_needs(gang)}; a gang before it waits, and the queue does not backfill",
    WaitReason.YIELDING: _yielding,
    WaitReason.TEAM_QUOTA: _team_quota,
    WaitReason.COHORT_QUOTA: _cohort_quota,
    WaitReason.NO_SLICE: lambda _, gang: f"{_needs(gang)}; none has so many free",
    WaitReason.NO_PLACE: lambda _, gang: (
        f"{_needs(gang)}; there is room, but the placement solver refuses every domain"
    ),
    WaitReason.OVER_QUOTA: _over_quota,
    WaitReason.NEVER_FITS: _never_fits,
}
