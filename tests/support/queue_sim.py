"""A discrete simulator of one queue: arrivals are replayed, and whatever is decided is done to the letter.

It shares no code with ``planner.queue`` but the values: what must hold is checked here by counting anew.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.queue import QueuedGang, QueueState, Reservation, RunningGang, SliceHold, WaitingGang
from airflow_llmsched.domain.queue_decision import QueueDecision, Start

Decide = Callable[[QueueState], QueueDecision]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A gang that comes at ``at_s`` and has ``work_s`` of work; it says that it needs no more than ``says_s``."""

    gang: QueuedGang
    at_s: float
    work_s: float
    says_s: float | None = None
    save_every_s: float = 50.0
    restart_s: float = 10.0
    yield_s: float = 5.0

    @property
    def runs_for_s(self) -> float:
        return self.work_s if self.says_s is None else self.says_s


@dataclass(kw_only=True)
class Spell:
    """One stay of a gang on its slots."""

    start: Start
    start_s: float
    end_s: float
    work_at_start_s: float
    startup_s: float
    was_preempted: bool = False
    yields_to: RunKey | None = None


@dataclass(kw_only=True)
class History:
    """What happened. ``promises`` are the starts that a gang was promised, in order, with when that was said."""

    spells: dict[str, list[Spell]] = field(default_factory=dict)
    came_s: dict[str, float] = field(default_factory=dict)
    done_s: dict[str, float] = field(default_factory=dict)
    promises: dict[str, list[tuple[float, Reservation]]] = field(default_factory=dict)
    decisions: list[tuple[QueueState, QueueDecision]] = field(default_factory=list)
    preemptions: list[tuple[str, str]] = field(default_factory=list)

    def first_start_s(self, key: str) -> float:
        return self.spells[key][0].start_s

    def completion_s(self, key: str) -> float:
        return self.done_s[key] - self.came_s[key]

    @property
    def mean_completion_s(self) -> float:
        return sum(map(self.completion_s, self.done_s)) / len(self.done_s)


@dataclass(kw_only=True)
class QueueSim:
    """Replays jobs on a state without any. ``decide`` is asked whenever anything happens."""

    empty: QueueState
    decide: Decide
    now_s: float = 0.0
    jobs: dict[str, Job] = field(default_factory=dict)
    waiting: dict[str, WaitingGang] = field(default_factory=dict)
    live: dict[str, Spell] = field(default_factory=dict)
    done_work_s: dict[str, float] = field(default_factory=dict)
    history: History = field(default_factory=History)

    def run(self, jobs: Iterable[Job], *, until_s: float = math.inf) -> History:
        self.jobs = {job.gang.key: job for job in jobs}
        arrivals = [(job.at_s, key) for key, job in self.jobs.items()]
        heapq.heapify(arrivals)
        for _ in range(100_000):
            moments = [spell.end_s for spell in self.live.values()] + [at_s for at_s, _ in arrivals[:1]]
            if not moments or min(moments) > until_s:
                return self.history
            self.now_s = min(moments)
            for key in sorted(key for key, spell in self.live.items() if spell.end_s <= self.now_s):
                self._end(key)
            while arrivals and arrivals[0][0] <= self.now_s:
                key = heapq.heappop(arrivals)[1]
                job = self.jobs[key]
                self.history.came_s[key] = self.now_s
                self.waiting[key] = WaitingGang(gang=job.gang, since_s=self.now_s, runs_for_s=job.runs_for_s)
            self._look()
        raise AssertionError("the simulation does not end")

    def state(self) -> QueueState:
        running = tuple(self._running(key, spell) for key, spell in self.live.items())
        return replace(self.empty, now_s=self.now_s, waiting=tuple(self.waiting.values()), running=running)

    def _look(self) -> None:
        state = self.state()
        decision = self.decide(state)
        self.history.decisions.append((state, decision))
        for start in decision.starts:
            self._start(start)
        for order in decision.preemptions:
            spell = self.live[order.gang]
            spell.end_s = min(spell.end_s, order.leaves_by_s)
            spell.yields_to = order.beneficiary
            self.history.preemptions.append((order.gang, order.beneficiary))
        kept = {each.gang: each for each in decision.reservations}
        for key, waiting in self.waiting.items():
            self.waiting[key] = replace(waiting, reserved=kept.get(RunKey(key)))
        for each in decision.reservations:
            self.history.promises.setdefault(each.gang, []).append((self.now_s, each))
        check(self.state())

    def _start(self, start: Start) -> None:
        del self.waiting[start.gang]
        job, done_s = self.jobs[start.gang], self.done_work_s.get(start.gang, 0.0)
        startup_s = job.restart_s if start.gang in self.history.spells else 0.0
        end_s = self.now_s + startup_s + job.work_s - done_s
        spell = Spell(start=start, start_s=self.now_s, end_s=end_s, work_at_start_s=done_s, startup_s=startup_s)
        self.live[start.gang] = spell
        self.history.spells.setdefault(start.gang, []).append(spell)

    def _end(self, key: str) -> None:
        spell, job = self.live.pop(key), self.jobs[key]
        done_s = spell.work_at_start_s + max(0.0, self.now_s - spell.start_s - spell.startup_s)
        if done_s >= job.work_s - 1e-6:
            self.history.done_s[key] = self.now_s
            return
        spell.was_preempted = True
        # Whoever is told to leave saves first: it waits again with all of its work.
        self.done_work_s[key] = done_s
        left_s = job.runs_for_s - done_s + job.restart_s
        self.waiting[key] = WaitingGang(gang=job.gang, since_s=self.now_s, runs_for_s=left_s)

    def _running(self, key: str, spell: Spell) -> RunningGang:
        job = self.jobs[key]
        worked_s = max(0.0, self.now_s - spell.start_s - spell.startup_s)
        saved_s = self.now_s - worked_s % job.save_every_s
        return RunningGang(
            gang=job.gang,
            held=spell.start.held,
            slices=spell.start.slices,
            started_s=spell.start_s,
            saved_s=saved_s,
            ends_by_s=spell.start_s + spell.startup_s + job.runs_for_s - spell.work_at_start_s,
            restart_s=job.restart_s,
            yield_s=job.yield_s,
            next_save_s=saved_s + job.save_every_s,
            yields_to=spell.yields_to,
            yields_by_s=spell.end_s if spell.yields_to else None,
        )


def check(state: QueueState) -> None:
    """Count anew: nobody holds what is not there or another's, gangs are whole, and quotas hold."""
    slots = {node.id: set(node.usable_slot_indexes) for node in state.tree.nodes}
    divided = {(each.node, each.slot): each.num_slices for each in state.sliced}
    used: Counter[tuple[NodeId, int]] = Counter()
    for running in state.running:
        if running.gang.slices is None:
            assert running.num_held == running.gang.num_slots, running.gang.key
        else:
            assert isinstance(running.slices, SliceHold)
            used[running.slices.node, running.slices.slot] += running.slices.num_slices
        for node, held in running.held.items():
            assert set(held) <= slots[node], f"{running.gang.key} holds what is not there, or another's"
            assert not {(node, slot) for slot in held} & set(divided)
            slots[node] -= set(held)
    assert all(used[slot] <= divided[slot] for slot in used)
    host_bytes = sum(running.gang.host_bytes for running in state.running)
    assert host_bytes <= _or_all(state.capacity.host_bytes), "more host memory is used than there is"
    check_quotas(state)


def check_quotas(state: QueueState) -> None:
    used: Counter[str] = Counter()
    for running in state.running:
        used[running.gang.team] += running.num_held
    cohorts: dict[str, list[str]] = {}
    limits: Mapping[str, tuple[float, float, float]] = {
        each.team: (
            _or_all(each.nominal.num_accelerators),
            _or_all(each.borrowing.num_accelerators),
            _or_all(each.lending.num_accelerators),
        )
        for each in state.quotas
    }
    for each in state.quotas:
        nominal, borrowing, _ = limits[each.team]
        assert used[each.team] <= nominal + (borrowing if each.cohort else 0.0), f"{each.team} is over its quota"
        if each.cohort:
            cohorts.setdefault(each.cohort, []).append(each.team)
    for members in cohorts.values():
        lent = {team: min(limits[team][0], limits[team][2]) for team in members}
        taken = sum(max(0.0, used[team] - (limits[team][0] - lent[team])) for team in members)
        assert taken <= sum(lent.values()), f"teams {members} use more than they lend"


def _or_all(limit: float | None) -> float:
    return math.inf if limit is None else limit
