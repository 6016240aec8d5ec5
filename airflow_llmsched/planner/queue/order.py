"""Who goes first. Pure.

First whoever others were preempted for; then whoever has waited for too long, the longest first; then class by class.
Within a class, gangs that were promised a start go first; the others by the policy's order. Fair means: the next gang
of the team with the smallest weighted dominant share (Ghodsi et al. 2011), where what it has had counts beside what it
holds.

Axes: T = team, Q = quantity.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from airflow_llmsched.domain.queue import QueueOrder, QueuePolicy, QueueState, WaitingGang
from airflow_llmsched.planner.layout_table import FloatArray

Key = tuple[float, float, str]


@dataclass(slots=True, kw_only=True, eq=False)
class Shares:
    """What each team has, as a part of the fleet. Whoever starts a gang, or promises it a start, counts it here."""

    held_TQ: FloatArray
    history_TQ: FloatArray
    capacity_Q: FloatArray
    weight_T: FloatArray
    history_ratio: float
    _known: dict[int, float] = field(default_factory=dict)

    def take(self, team: int, asked_Q: FloatArray) -> None:
        """Count what a team has been given."""
        self.held_TQ[team] += asked_Q
        self._known.pop(team, None)

    def of(self, team: int) -> float:
        """Return a team's weighted dominant share, rounded: what is all but forgotten gives nobody precedence."""
        if team not in self._known:
            past, present = self.history_ratio, 1.0 - self.history_ratio
            counted_Q = present * self.held_TQ[team] + past * self.history_TQ[team]
            self._known[team] = round(float(np.max(counted_Q / self.capacity_Q)) / float(self.weight_T[team]), 9)
        return self._known[team]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Gangs that go before all gangs of later groups. ``reserved`` ones go first, in this order.

    What was promised to those of ``kept`` holds against this group, in this order, those of other groups included.
    """

    kept: tuple[WaitingGang, ...]
    reserved: tuple[WaitingGang, ...]
    others: tuple[WaitingGang, ...]
    is_in_order: bool = False


def groups(state: QueueState) -> list[Group]:
    """Return waiting gangs in groups, first group first."""
    priorities = {each.name: each.priority for each in state.classes}
    claims: list[WaitingGang] = []
    starving: list[WaitingGang] = []
    by_priority: dict[int, list[WaitingGang]] = {}
    for each in state.waiting:
        if each.reserved and each.reserved.is_claim:
            claims.append(each)
        elif is_starving(each, state.policy, now_s=state.now_s):
            starving.append(each)
        else:
            by_priority.setdefault(priorities[each.gang.priority_class], []).append(each)
    starved = _group(starving, is_in_order=True)
    classed = {priority: _group(by_priority[priority]) for priority in sorted(by_priority, reverse=True)}
    return [*_claiming(claims, priorities, starved, classed), starved, *classed.values()]


def is_starving(waiting: WaitingGang, policy: QueuePolicy, *, now_s: float) -> bool:
    """Whether a gang has waited for so long that it goes before all classes."""
    return now_s - waiting.since_s >= policy.starving_after_s


def lineup(group: Group, policy: QueuePolicy, shares: Shares, teams: Sequence[str]) -> Iterator[WaitingGang]:
    """Yield the gangs of a group. What is given to one before the next is asked for counts in who is next."""
    yield from group.reserved
    if group.is_in_order:
        yield from sorted(group.others, key=_by_age)
        return
    turn = {key: number for number, key in enumerate(policy.first)}
    named = [each for each in group.others if each.gang.key in turn]
    others = [each for each in group.others if each.gang.key not in turn]
    yield from sorted(named, key=lambda each: turn[each.gang.key])
    if policy.order is QueueOrder.FAIR:
        yield from _fair(others, shares, teams)
    else:
        yield from sorted(others, key=lambda each: (*_order(each, policy.order), *_by_age(each)))


def _claiming(
    claims: list[WaitingGang], priorities: Mapping[str, int], starved: Group, classed: Mapping[int, Group]
) -> list[Group]:
    """Return those for whom others were preempted, class by class.

    They go first to get what was freed for them, and not to take what somebody was promised before whom they were not
    then: who starves, and their own class and higher ones.
    """
    claims = sorted(claims, key=lambda each: (-priorities[each.gang.priority_class], *_by_age(each)))
    result: list[Group] = []
    for priority in sorted({priorities[each.gang.priority_class] for each in claims}, reverse=True):
        own = tuple(each for each in claims if priorities[each.gang.priority_class] == priority)
        above = (each for higher, group in classed.items() if higher >= priority for each in group.reserved)
        result.append(Group(kept=(*starved.reserved, *above, *claims), reserved=own, others=()))
    return result


def _group(waiting: list[WaitingGang], *, is_in_order: bool = False) -> Group:
    reserved = [each for each in waiting if each.reserved]
    reserved.sort(key=lambda each: (each.reserved.start_s if each.reserved else 0.0, *_by_age(each)))
    others = tuple(each for each in waiting if not each.reserved)
    return Group(kept=tuple(reserved), reserved=tuple(reserved), others=others, is_in_order=is_in_order)


def _fair(waiting: Sequence[WaitingGang], shares: Shares, teams: Sequence[str]) -> Iterator[WaitingGang]:
    """Yield the next gang of whichever team has the smallest share by then: progressive filling."""
    number = {team: index for index, team in enumerate(teams)}
    queues: dict[int, list[WaitingGang]] = {}
    for each in sorted(waiting, key=_by_age, reverse=True):
        queues.setdefault(number[each.gang.team], []).append(each)
    heap = [(shares.of(team), *_by_age(queue[-1]), team) for team, queue in queues.items()]
    heapq.heapify(heap)
    while heap:
        team = heapq.heappop(heap)[-1]
        yield queues[team].pop()
        if queues[team]:
            heapq.heappush(heap, (shares.of(team), *_by_age(queues[team][-1]), team))


def _by_age(waiting: WaitingGang) -> tuple[float, str]:
    return waiting.since_s, waiting.gang.key


def _order(waiting: WaitingGang, order: QueueOrder) -> tuple[float]:
    slots = max(1, waiting.gang.num_slots)
    if order is QueueOrder.SHORTEST_FIRST:
        return (math.inf if waiting.runs_for_s is None else waiting.runs_for_s * slots,)
    return (-float(slots) if order is QueueOrder.LARGEST_FIRST else 0.0,)
