from __future__ import annotations

import math
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.planner.queue.timeline import Left, Span, Timeline


def span(key: str, taken: dict[int, int], *, start: float = 0.0, end: float = 100.0) -> Span:
    nodes = np.array(sorted(taken), dtype=np.int64)
    counts = np.array([taken[node] for node in sorted(taken)], dtype=np.int64)
    asked_Q = np.array([float(counts.sum()), 0.0, 0.0])
    return Span(key=RunKey(key), team=0, share=(nodes, counts), asked_Q=asked_Q, start_s=start, end_s=end)


def timeline(*running: Span, whole: tuple[int, ...] = (4, 4)) -> Timeline:
    return Timeline.of(now_s=0.0, whole_N=np.array(whole), num_teams=1, running=list(running))


def needs(*wanted: int):
    return lambda left: bool(np.all(left.free_N >= np.array(wanted)))


def test_what_is_free_grows_as_gangs_end():
    plan = timeline(span("a", {0: 4}, end=10.0), span("b", {0: 0, 1: 3}, end=20.0))
    assert plan.now.free_N.tolist() == [0, 1]
    assert plan.at(10.0).free_N.tolist() == [4, 1]
    assert plan.at(20.0).free_N.tolist() == [4, 4]
    assert plan.at(20.0).usage_TQ[0, 0] == 0.0


def test_a_gang_fits_first_when_enough_has_ended():
    plan = timeline(span("a", {0: 4}, end=10.0), span("b", {1: 4}, end=20.0))
    assert plan.earliest(needs(4, 0), runs_for_s=5.0)[0] == 10.0
    assert plan.earliest(needs(1, 1), runs_for_s=5.0)[0] == 20.0
    assert plan.earliest(needs(5, 0), runs_for_s=5.0) is None
    assert timeline().earliest(needs(1, 1), runs_for_s=math.inf)[0] == 0.0


def test_what_is_promised_leaves_room_before_and_beside_it_only():
    plan = timeline(span("a", {0: 4}, end=10.0))
    plan.promise(span("p", {0: 4, 1: 2}, start=10.0, end=30.0))
    assert plan.window(plan.num_before(10.0)).free_N.tolist() == [0, 4], "who is gone by then sees nothing of it"
    assert plan.window(plan.num_before(11.0)).free_N.tolist() == [0, 2]
    assert plan.earliest(needs(1, 0), runs_for_s=1.0)[0] == 30.0
    assert plan.earliest(needs(0, 3), runs_for_s=10.0)[0] == 0.0
    assert plan.earliest(needs(0, 3), runs_for_s=11.0)[0] == 30.0


def test_a_promise_taken_back_leaves_no_trace():
    plan = timeline(span("a", {0: 4}, end=10.0))
    plan.promise(span("p", {0: 4}, start=10.0, end=30.0))
    plan.promise(span("due", {1: 4}, start=0.0, end=15.0))
    for key in ("p", "due", "never promised"):
        plan.retract(RunKey(key))
    assert len(plan.instants) == 1
    assert plan.at(12.0).free_N.tolist() == [4, 4]
    assert plan.now.free_N.tolist() == [0, 4]


def test_a_gang_that_is_due_keeps_its_room_against_others_now():
    plan = timeline()
    plan.promise(span("due", {0: 3}, start=0.0, end=50.0))
    assert plan.window(1).free_N.tolist() == [4, 4]
    assert plan.window(plan.num_before(10.0)).free_N.tolist() == [1, 4]


def test_a_gang_that_starts_takes_its_slots_until_it_ends():
    plan = timeline(span("a", {0: 4}, end=10.0))
    plan.promise(span("p", {0: 4}, start=10.0, end=30.0))
    plan.start(span("s", {1: 3}, end=20.0), ends_s=20.0)
    assert plan.now.free_N.tolist() == [0, 1]
    assert plan.at(10.0).free_N.tolist() == [0, 1]
    assert plan.at(20.0).free_N.tolist() == [0, 4]


def test_a_gang_that_leaves_sooner_frees_its_slots_for_what_was_promised_after():
    plan = timeline(span("a", {0: 4}, end=90.0), span("b", {1: 4}, end=40.0))
    plan.promise(span("p", {1: 4}, start=40.0, end=60.0))
    plan.leave(RunKey("a"), at_s=5.0)
    assert plan.now.free_N.tolist() == [0, 0]
    assert plan.within(5.0, 100.0).free_N.tolist() == [4, 0]


def test_who_is_taken_to_go_is_taken_to_be_there_until_he_does():
    plan = timeline(span("a", {0: 4}, end=10.0))
    plan.promise(span("p", {1: 1}, start=30.0, end=50.0))
    left = plan.within(5.0, 40.0, held=[plan.running[RunKey("a")]])
    assert left.free_N.tolist() == [0, 3]
    assert [usage[0, 0] for usage in left.usages] == [4.0, 5.0]
    assert plan.at(30.0).free_N.tolist() == [4, 3], "nothing else is changed"


def test_what_is_left_keeps_usage_of_each_instant_apart():
    plan = timeline(span("a", {0: 4}, end=10.0))
    plan.promise(span("p", {1: 1}, start=10.0, end=30.0))
    assert [usage[0, 0] for usage in plan.within(0.0, 20.0).usages] == [4.0, 1.0]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_least_that_is_left_is_what_counting_at_every_moment_finds(seed):
    """Promises are only made where they fit, as the queue makes them; then nothing is ever held twice."""
    rng = random.Random(seed)
    whole = (4, 4, 4)
    spans = [span(f"r{node}", {node: rng.randint(0, 4)}, end=float(rng.randint(1, 9))) for node in range(3)]
    plan = timeline(*spans, whole=whole)
    for number in range(4):
        wanted = tuple(rng.randint(0, 3) for _ in whole)
        runs_for_s = float(rng.randint(1, 9))
        found = plan.earliest(needs(*wanted), runs_for_s=runs_for_s)
        assert found is not None
        placed = span(f"p{number}", dict(enumerate(wanted)), start=found[0], end=found[0] + runs_for_s)
        plan.promise(placed)
        spans.append(placed)
    for moment in np.arange(0.0, 40.0, 0.5):
        free = [whole[node] - _held(spans, node, moment) for node in range(3)]
        assert min(free) >= 0, "never over capacity"
        assert plan.at(float(moment)).free_N.tolist() == free


def _live(spans: list[Span], at_s: float) -> list[Span]:
    return [each for each in spans if each.start_s <= at_s < each.end_s]


def _held(spans: list[Span], node: int, at_s: float) -> int:
    return sum(int(each.share[1][each.share[0] == node].sum()) for each in _live(spans, at_s))


def test_a_node_of_which_more_is_held_than_there_is_has_nothing_free():
    plan = timeline(span("a", {0: 4}), span("b", {0: 2}))
    assert Left.over(plan.instants).free_N.tolist() == [0, 4]
    assert plan.earliest(needs(4, 4), runs_for_s=1.0)[0] == 100.0
