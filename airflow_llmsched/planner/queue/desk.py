"""What a decision works with: a state laid out in arrays, and the plan that grows gang by gang. Pure.

Axes: N = node, T = team, Q = quantity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.queue import PriorityClass, QueuedGang, QueueState, Reservation, RunningGang, WaitingGang
from airflow_llmsched.domain.queue_decision import WaitReason
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.planner.layout_table import FloatArray, IntArray
from airflow_llmsched.planner.queue.group_room import GroupRoom
from airflow_llmsched.planner.queue.order import Shares
from airflow_llmsched.planner.queue.quota import QuotaTable
from airflow_llmsched.planner.queue.room import Kind, Room, Share, kind_of
from airflow_llmsched.planner.queue.slices import SliceBoard
from airflow_llmsched.planner.queue.timeline import Left, Span, Timeline
from airflow_llmsched.planner.queue.usage import asked_Q, history_TQ, limits_Q, teams_of


@dataclass(slots=True, kw_only=True, eq=False)
class Desk:
    """A state laid out. ``free`` are the slots that nobody holds, by position of the node.

    ``leaving`` names for each gang that was told to leave the one that it leaves for. ``costs_accelerator_s`` are what
    stopping gangs costs, ``nevers`` why gangs could never start, as far as it was asked for; ``exposed`` are those that
    may be preempted, None before that was asked.
    """

    state: QueueState
    room: Room
    table: QuotaTable
    team_names: tuple[str, ...]
    team: dict[str, int]
    classes: dict[str, PriorityClass]
    capacity_Q: FloatArray
    timeline: Timeline
    shares: Shares
    board: SliceBoard
    free: list[set[int]]
    running: dict[RunKey, RunningGang]
    leaving: dict[RunKey, RunKey]
    costs_accelerator_s: dict[RunKey, float] = field(default_factory=dict)
    most: dict[tuple[int, int, Kind], int] = field(default_factory=dict)
    exposed: list[RunningGang] | None = None
    nevers: dict[tuple[object, ...], WaitReason | None] = field(default_factory=dict)
    verdicts: dict[tuple[int, int, str, tuple[float, ...]], WaitReason | None] = field(default_factory=dict)

    @classmethod
    def of(cls, state: QueueState) -> Desk:
        """Lay a state out. Raises ``ValueError`` for a gang that requires a level that the tree does not have."""
        room = Room.of(_sound(state), state.running, state.sliced)
        for waiting in state.waiting:
            for level in waiting.gang.levels:
                room.depth(level)
        names = teams_of(state)
        team = {name: number for number, name in enumerate(names)}
        table = QuotaTable.of(state.quotas, names)
        running = sorted(state.running, key=lambda each: each.gang.key)
        spans = [_span(state, room, team, each) for each in running]
        timeline = Timeline.of(now_s=state.now_s, whole_N=room.whole_N, num_teams=len(names), running=spans)
        capacity_Q = limits_Q(state.capacity)
        capacity_Q[0] = min(capacity_Q[0], max(1.0, float(room.whole_N.sum() + len(state.sliced))))
        free = [set(each) for each in room.slots]
        for each in running:
            for node, slots in each.held.items():
                if node in room.position:
                    free[room.position[node]] -= set(slots)
        return cls(
            state=state,
            room=room,
            table=table,
            team_names=names,
            team=team,
            classes={each.name: each for each in state.classes},
            capacity_Q=capacity_Q,
            timeline=timeline,
            shares=Shares(
                held_TQ=timeline.now.usage_TQ.copy(),
                history_TQ=history_TQ(state, names),
                capacity_Q=np.minimum(capacity_Q, limits_Q(state.totals)),
                weight_T=table.weight_T,
                history_ratio=state.policy.history_ratio,
            ),
            board=SliceBoard.of(
                now_s=state.now_s,
                sliced=state.sliced,
                held=[(each.slices, end_s(state, each)) for each in running if each.slices],
            ),
            free=free,
            running={each.gang.key: each for each in running},
            leaving={each.gang.key: each.yields_to for each in running if each.yields_to is not None},
        )

    def until_s(self, waiting: WaitingGang) -> float:
        """Return until when a gang would run that started now; infinity where nobody knows."""
        return self.state.now_s + runs_for_s(waiting)

    def hinders(self, left: Left, gang: QueuedGang, wanted_Q: FloatArray) -> WaitReason | None:
        """Say what keeps a gang from using so much more, apart from where its slots would be."""
        found = (self._hinders(usage_TQ, gang, wanted_Q) for usage_TQ in left.usages)
        return next((reason for reason in found if reason is not None), None)

    def fits(self, left: Left, gang: QueuedGang) -> bool:
        """Whether a gang could have its slots, and what else it needs."""
        return self.room.fits(left.free_N, gang) and self.hinders(left, gang, asked_Q(gang)) is None

    def never(self, gang: QueuedGang) -> WaitReason | None:
        """Say why a gang could not start even if nothing ran. Many gangs ask for the same."""
        key = (gang.team, kind_of(gang), *_asked(gang))
        if key not in self.nevers:
            self.nevers[key] = self._never(gang)
        return self.nevers[key]

    def _never(self, gang: QueuedGang) -> WaitReason | None:
        wanted_Q = asked_Q(gang)
        if self.table.never_allows(team=self.team[gang.team], asked_Q=wanted_Q):
            return WaitReason.OVER_QUOTA
        is_over = bool(((wanted_Q > self.capacity_Q) & (wanted_Q > 0)).any())
        is_room = self._fits_among(self.as_solvers_may(gang), self.room.whole_N, -1)
        return WaitReason.NEVER_FITS if is_over or not is_room else None

    def as_solvers_may(self, gang: QueuedGang) -> QueuedGang:
        """Return a gang that fits at least where a solver may find a place for this one, whatever ways it knows."""
        kept = self.room.kept(gang)
        return gang if kept is None or kept.is_all else replace(gang, group_levels=())

    def unsure_of(self, waiting: WaitingGang) -> GroupRoom | None:
        """Return the room of a gang for which a solver may know a place though there is no room; None for others."""
        kept = self.room.kept(waiting.gang)
        if kept is None or kept.is_all or self.hindrance_now(waiting, asked_Q(waiting.gang)) is not None:
            return None
        return kept

    def obstacle(self, waiting: WaitingGang) -> WaitReason | None:
        """Say why a gang does not start now, None if there is room."""
        gang, now = waiting.gang, self.timeline.now
        hindrance = self.hindrance_now(waiting, asked_Q(gang))
        if hindrance is not None:
            return hindrance
        if not self._fits_among(gang, now.free_N, 1):
            return WaitReason.FRAGMENTED if int(now.free_N.sum()) >= gang.num_slots else WaitReason.CAPACITY
        seen = self.timeline.num_before(self.until_s(waiting))
        if seen == 1 or self._fits_among(gang, self.timeline.window(seen).free_N, seen):
            return None
        return WaitReason.PROMISED

    def hindrance_now(self, waiting: WaitingGang, wanted_Q: FloatArray) -> WaitReason | None:
        """Say what keeps a gang from using so much from now on, apart from where its slots would be."""
        reason = self._hinders_in(1, waiting.gang, wanted_Q)
        seen = self.timeline.num_before(self.until_s(waiting))
        if reason is not None or seen == 1:
            return reason
        return WaitReason.PROMISED if self._hinders_in(seen, waiting.gang, wanted_Q) else None

    def most_now(self, gang: QueuedGang) -> int:
        """Return the largest gang of this one's kind that would fit now."""
        return self._most(gang, self.timeline.now.free_N, 1)

    def keep(self, waiting: WaitingGang) -> None:
        """Keep what a gang was promised for as long as it can be kept. It may be kept already."""
        kept = None if waiting.gang.key in self.timeline.promised else self.kept_span(waiting)
        if kept is not None:
            self.timeline.promise(kept)

    def kept_span(self, waiting: WaitingGang) -> Span | None:
        """Return what a gang was promised, None if that cannot be any more."""
        reserved, gang = waiting.reserved, waiting.gang
        if reserved is None:
            return None
        share = self.room.share_of(reserved.num_slots)
        start_s = max(reserved.start_s, self.state.now_s)
        until_s = start_s + runs_for_s(waiting)
        left = self.timeline.within(start_s, until_s)
        is_whole = int(share[1].sum()) == sum(reserved.num_slots.values())
        is_free = bool(np.all(left.free_N[share[0]] >= share[1]))
        # What a gang asks for may have changed since.
        if not is_whole or not is_free or not self.room.holds(share, gang):
            return None
        if self.hinders(left, gang, asked_Q(gang)) is not None:
            return None
        return self.span(gang, share, asked_Q(gang), start_s=start_s, end_s=until_s)

    def span(self, gang: QueuedGang, share: Share, wanted_Q: FloatArray, *, start_s: float, end_s: float) -> Span:
        """Return what a gang holds from when until when."""
        return Span(
            key=gang.key, team=self.team[gang.team], share=share, asked_Q=wanted_Q, start_s=start_s, end_s=end_s
        )

    def reservation(self, span: Span, *, is_claim: bool) -> Reservation:
        """Return the record of what a gang is promised."""
        return Reservation(
            gang=span.key,
            start_s=span.start_s,
            until_s=span.end_s if math.isfinite(span.end_s) else None,
            num_slots=self.room.by_node(span.share),
            is_promised=span.start_s < self.state.now_s + self.state.policy.unknown_run_s,
            is_claim=is_claim,
        )

    def _hinders_in(self, seen: int, gang: QueuedGang, wanted_Q: FloatArray) -> WaitReason | None:
        """Return what :meth:`hinders` says of the first instants: gangs of one team often ask for the same."""
        key = (self.timeline.version, seen, gang.team, tuple(wanted_Q.tolist()))
        if key not in self.verdicts:
            self.verdicts[key] = self.hinders(self.timeline.window(seen), gang, wanted_Q)
        return self.verdicts[key]

    def _hinders(self, usage_TQ: FloatArray, gang: QueuedGang, wanted_Q: FloatArray) -> WaitReason | None:
        reason = self.table.hinders(usage_TQ, team=self.team[gang.team], asked_Q=wanted_Q)
        if reason is not None or not wanted_Q[1:].any():
            return reason
        total_Q = usage_TQ.sum(axis=0) + wanted_Q
        over_Q = (total_Q > self.capacity_Q * (1 + 1e-9)) & (wanted_Q > 0)
        return WaitReason.CAPACITY if bool(over_Q[1:].any()) else None

    def _fits_among(self, gang: QueuedGang, free_N: IntArray, seen: int) -> bool:
        return self._most(gang, free_N, seen) >= gang.num_slots

    def _most(self, gang: QueuedGang, free_N: IntArray, seen: int) -> int:
        """Return the largest gang that fits into what is free in the first instants: this is asked again and again."""
        version = self.timeline.version if seen > 0 else -1
        ask = (version, seen, kind_of(gang))
        if ask not in self.most:
            self.most[ask] = self.room.most(free_N, gang)
        return self.most[ask]


def _asked(gang: QueuedGang) -> tuple[float, ...]:
    return (float(gang.num_slots), float(gang.host_bytes), float(gang.network_bytes_per_s))


def runs_for_s(waiting: WaitingGang) -> float:
    """Return for how long a gang may run, infinity where nobody knows."""
    return math.inf if waiting.runs_for_s is None else waiting.runs_for_s


def end_s(state: QueueState, running: RunningGang) -> float:
    """Return when a running gang is thought to be gone, always later than now."""
    ends_s = state.now_s + state.policy.unknown_run_s if running.ends_by_s is None else running.ends_by_s
    if running.yields_to is not None:
        ends_s = min(ends_s, state.now_s + running.yield_s if running.yields_by_s is None else running.yields_by_s)
    return ends_s if ends_s > state.now_s else state.now_s + state.policy.overrun_s


def _sound(state: QueueState) -> TopologyTree:
    """Return the tree without the nodes that fail too often."""
    most = state.policy.max_failures_per_hour
    frail = {node for node, often in state.failures_per_hour.items() if most is not None and often > most}
    if not frail:
        return state.tree
    reason = "fails too often"
    nodes = (replace(node, unusable_reason=reason) if node.id in frail else node for node in state.tree.nodes)
    return replace(state.tree, nodes=tuple(nodes))


def _span(state: QueueState, room: Room, team: dict[str, int], running: RunningGang) -> Span:
    whole = {(each.node, each.slot): each.num_slices for each in state.sliced}
    hold = running.slices
    part = hold.num_slices / whole.get((hold.node, hold.slot), hold.num_slices) if hold else 0.0
    return Span(
        key=running.gang.key,
        team=team[running.gang.team],
        share=room.share_of({node: len(slots) for node, slots in running.held.items()}),
        asked_Q=asked_Q(running.gang, num_accelerators=running.num_held + part),
        start_s=running.started_s,
        end_s=end_s(state, running),
    )
