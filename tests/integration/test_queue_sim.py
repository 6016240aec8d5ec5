"""Queues replayed for hours: what must hold at every moment, and what the rules are worth beside simpler ones.

``QueueSim`` counts capacity, whole gangs and quotas anew after every decision.
"""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.queue import (
    Limits,
    PriorityClass,
    QueueState,
    Reclaim,
    SliceAsk,
    SlicedSlot,
    SliceKind,
)
from airflow_llmsched.domain.queue_decision import QueueDecision, WaitReason
from airflow_llmsched.planner.queue.decide import decide
from tests.support.queue_baselines import first_come, strict_priority
from tests.support.queue_mixes import flood_and_few, slowdown
from tests.support.queue_sim import History, Job, QueueSim
from tests.support.queues import PLACE, gang, quota, racks, state_of

CLASSES = (
    PriorityClass(name="urgent", priority=100, protected_s=20.0),
    PriorityClass(name="normal", priority=50, protected_s=20.0),
    PriorityClass(name="low", priority=0, protected_s=20.0),
)
SEEDS = range(3)


def by_rules(state: QueueState) -> QueueDecision:
    return decide(state, PLACE)


def job(key: str, size: int, *, at: float = 0.0, work: float = 50.0, says: float | None = None, **others: Any) -> Job:
    return Job(gang=gang(key, size, **others), at_s=at, work_s=work, says_s=says)


def replay(
    jobs: list[Job], *, rules: Any = by_rules, num_racks: int = 4, until: float = 1e9,
    scale_up_level: str | None = None, **others: Any,
) -> History:  # fmt: skip
    tree = replace(racks(num_racks, blocks=2), scale_up_level=scale_up_level)
    empty = state_of(tree, classes=CLASSES, **others)
    return QueueSim(empty=empty, decide=rules).run(jobs, until_s=until)


def drawn(seed: int, *, classes: tuple[str, ...] = ("low", "normal", "urgent"), ends_early: bool = False) -> list[Job]:
    """Return 20 gangs of two teams over 100 s, as many as keep 32 accelerators busy for about 250 s."""
    rng = random.Random(seed)
    jobs: list[Job] = []
    for number in range(20):
        size = rng.choice([1, 2, 4, 4, 8, 8, 16])
        work_s = float(rng.randint(10, 100))
        jobs.append(
            job(
                f"j{number}", size, at=float(rng.randint(0, 100)), work=work_s,
                says=work_s * rng.choice([1.0, 1.5, 3.0]) if ends_early else None,
                tp=rng.choice([1, min(size, 2), min(size, 4)]), team=rng.choice(["red", "blue"]),
                cls=rng.choice(classes), required_level=rng.choice([None, "block", "rack"]) if size <= 8 else None,
            )
        )  # fmt: skip
    return jobs


QUOTAS = (quota("red", 24, cohort="c", reclaim=Reclaim.ANY), quota("blue", 16, cohort="c", reclaim=Reclaim.ANY))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_gang_ends_and_nobody_is_preempted_by_an_equal(seed: int) -> None:
    jobs = drawn(seed)
    history = replay(jobs, quotas=(quota("red", 24, cohort="c"), quota("blue", 8, cohort="c")))
    assert set(history.done_s) == {each.gang.key for each in jobs}
    priority = {each.gang.key: next(c.priority for c in CLASSES if c.name == each.gang.priority_class) for each in jobs}
    for victim, winner in history.preemptions:
        assert priority[victim] < priority[winner], "so that no gang can ever preempt its way back"


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_is_preempted_had_its_protected_time_and_loses_no_saved_work(seed: int) -> None:
    jobs = {each.gang.key: each for each in drawn(seed)}
    history = replay(list(jobs.values()), quotas=QUOTAS)
    assert set(history.done_s) == set(jobs)
    for key, spells in history.spells.items():
        for spell in spells:
            if spell.was_preempted:
                told_s = next(
                    decision.at_s
                    for _, decision in history.decisions
                    for order in decision.preemptions
                    if order.gang == key and spell.start_s <= decision.at_s <= spell.end_s
                )
                assert told_s >= spell.start_s + 20.0
        restarts_s = (len(spells) - 1) * jobs[key].restart_s
        ran_s = sum(spell.end_s - spell.start_s for spell in spells)
        assert ran_s <= jobs[key].work_s + restarts_s + 1e-6


@pytest.mark.parametrize("ends_early", [False, True])
@pytest.mark.parametrize("num_reservations", [1, 3, None])
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_a_promised_start_never_moves_back(seed: int, num_reservations: int | None, ends_early: bool) -> None:
    """Among gangs of one class, whatever passes by, and however much sooner gangs end than they said."""
    history = replay(
        drawn(seed, classes=("normal",), ends_early=ends_early),
        quotas=QUOTAS,
        policy={"num_reservations": num_reservations, "may_preempt": False},
    )
    assert history.promises
    for key, promises in history.promises.items():
        starts = [promise.start_s for _, promise in promises]
        assert starts == sorted(starts, reverse=True), key
        assert history.first_start_s(key) <= starts[-1] + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_in_line_starts_no_later_than_if_nobody_were_let_past(seed: int) -> None:
    history = replay(
        drawn(seed, classes=("normal",)), quotas=QUOTAS, policy={"num_reservations": 1, "may_preempt": False}
    )
    num_compared = 0
    for state, decision in history.decisions:
        if any(each.reserved for each in state.waiting):
            continue
        for promise in decision.reservations:
            first = [each for each in state.waiting if each.gang.key == promise.gang]
            begun = [start.gang for start in decision.starts if not start.is_backfill]
            before = [each for each in state.waiting if each.gang.key in begun]
            (alone,) = by_rules(replace(state, waiting=(*before, *first))).reservations
            assert history.first_start_s(promise.gang) <= alone.start_s + 1e-9
            num_compared += 1
    assert num_compared


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_the_same_jobs_in_another_order_give_the_same_history(seed: int) -> None:
    jobs = drawn(seed)
    one, other = replay(jobs, quotas=QUOTAS), replay(jobs[::-1], quotas=QUOTAS)
    assert one.done_s == other.done_s
    assert [decision for _, decision in one.decisions] == [decision for _, decision in other.decisions]


def test_a_gang_that_has_waited_too_long_starts_though_urgent_ones_keep_coming() -> None:
    """Bound: the wait after which it starves, the longest run that was live then, and those that starved before it."""
    stream = [job(f"u{number}", 8, at=10.0 * number, work=35.0, cls="urgent") for number in range(60)]
    starved = [job(f"low{number}", 24, at=100.0 + number, work=40.0, cls="low") for number in range(2)]
    history = replay([*stream, *starved], policy={"starving_after_s": 200.0}, until=600.0)
    first, second = history.first_start_s("low0"), history.first_start_s("low1")
    assert 300.0 <= first <= 300.0 + 35.0 + 10.0, "looked at again at the next arrival, at most 10 s later"
    assert second <= first + 40.0 + 35.0 + 10.0
    without = replay([*stream, *starved], policy={"starving_after_s": 1e9}, until=600.0)
    assert "low0" not in without.spells, "without the rule it would wait for ever"


def test_an_urgent_gang_gets_one_whole_rack_and_its_victim_goes_on_later() -> None:
    fill = [job(f"fill{rack}", 8, at=float(rack), work=200.0, cls="low", required_level="rack") for rack in range(4)]
    history = replay([*fill, job("urgent", 8, at=60.0, work=30.0, cls="urgent", required_level="rack")])
    ((victim, winner),) = history.preemptions
    (spell,) = history.spells[winner]
    first, second = history.spells[victim]
    assert (winner, spell.start_s) == ("urgent", 65.0), "when its victim has saved and left"
    assert set(spell.start.held) == set(first.start.held)
    assert second.end_s == second.start_s + 10.0 + 200.0 - (65.0 - first.start_s), "and goes on where it was"


def test_evaluations_live_on_slices_beside_gangs() -> None:
    sliced = tuple(SlicedSlot(node=NodeId("r0n0"), slot=slot, kind=SliceKind.MIG, num_slices=7) for slot in (0, 1))
    evaluations = [
        Job(gang=gang(f"e{number}", 1, slices=SliceAsk(num_slices=3)), at_s=float(number), work_s=20.0)
        for number in range(8)
    ]
    history = replay([*evaluations, job("train", 30, work=60.0)], sliced=sliced)
    assert history.first_start_s("train") == 0.0
    assert len(history.done_s) == 9
    assert max(history.completion_s(f"e{number}") for number in range(8)) < 45.0


def test_gangs_are_done_sooner_and_teams_fare_more_alike_than_by_simpler_rules() -> None:
    done: dict[str, list[float]] = {}
    unfair: dict[str, list[float]] = {}
    for seed in range(3):
        jobs = flood_and_few(seed)
        for name, rules in (("ours", by_rules), ("fifo", first_come), ("priority", strict_priority)):
            history = replay(jobs, rules=rules)
            assert len(history.done_s) == len(jobs)
            done.setdefault(name, []).append(history.mean_completion_s)
            unfair.setdefault(name, []).append(slowdown(history, jobs, "blue") / slowdown(history, jobs, "red"))
    for name in ("fifo", "priority"):
        assert all(ours < theirs for ours, theirs in zip(done["ours"], done[name], strict=True)), (name, done)
        assert mean(unfair["ours"]) < mean(unfair[name]), (name, unfair)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_comes_together_every_gang_that_ever_fits_ends(seed: int) -> None:
    """Slices, host memory, limits on borrowing, fast links across nodes, wrong and unknown run times, all at once."""
    rng = random.Random(seed)
    jobs = [
        replace(each, gang=replace(each.gang, host_bytes=float(rng.randint(0, 3))))
        for each in drawn(seed, ends_early=True)
    ]
    for number in range(6):
        asked = gang(f"e{number}", 1, slices=SliceAsk(num_slices=rng.randint(1, 4)), cls=rng.choice(["low", "urgent"]))
        jobs.append(Job(gang=asked, at_s=float(rng.randint(0, 100)), work_s=30.0))
    sliced = (
        SlicedSlot(node=NodeId("r0n0"), slot=0, kind=SliceKind.MIG, num_slices=4),
        SlicedSlot(node=NodeId("r1n0"), slot=2, kind=SliceKind.TIME, num_slices=4),
    )
    eight = Limits(num_accelerators=8)
    history = replay(
        jobs,
        rules=_as_if_some_said_nothing,
        scale_up_level="rack",
        sliced=sliced,
        capacity=Limits(host_bytes=12.0),
        quotas=(quota("red", 16, cohort="c", borrowing=eight), quota("blue", 16, cohort="c", lending=eight)),
        policy={"starving_after_s": rng.choice([60.0, 1e5]), "unknown_run_s": 500.0},
    )
    waits = (each for _, decision in history.decisions for each in decision.waits)
    never = {each.gang for each in waits if each.reason in (WaitReason.NEVER_FITS, WaitReason.OVER_QUOTA)}
    assert set(history.done_s) | never == {each.gang.key for each in jobs}
    assert len(never) <= 2


def _as_if_some_said_nothing(state: QueueState) -> QueueDecision:
    """Decide without knowing how long every tenth gang runs."""
    waiting = (replace(each, runs_for_s=None) if each.gang.key.endswith("3") else each for each in state.waiting)
    running = (replace(each, ends_by_s=None) if each.gang.key.endswith("3") else each for each in state.running)
    return by_rules(replace(state, waiting=tuple(waiting), running=tuple(running)))


def test_a_small_trace_goes_as_it_was_worked_out_by_hand() -> None:
    """8 accelerators in one rack. A (4, 60 s), B (8, 40 s) and C (4, 50 s), D (4, 70 s) come at 0, 1, 2, 3."""
    jobs = [
        job("A", 4, at=0.0, work=60.0),
        job("B", 8, at=1.0, work=40.0),
        job("C", 4, at=2.0, work=50.0),
        job("D", 4, at=3.0, work=70.0),
    ]
    history = replay(jobs, num_racks=1)
    assert {key: spells[0].start_s for key, spells in history.spells.items()} == {
        "A": 0.0,
        "C": 2.0,
        "B": 60.0,
        "D": 100.0,
    }
    fifo = replay(jobs, num_racks=1, rules=first_come)
    assert {key: spells[0].start_s for key, spells in fifo.spells.items()} == {
        "A": 0.0,
        "B": 60.0,
        "C": 100.0,
        "D": 100.0,
    }
