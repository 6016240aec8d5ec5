from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.queue import QueueOrder, SliceAsk, SlicedSlot, SliceKind
from airflow_llmsched.domain.queue_rules import QueueWeights
from airflow_llmsched.planner.queue import choices as module
from airflow_llmsched.planner.queue.choices import choices, choose, costs_of, front
from airflow_llmsched.planner.queue.decide import decide
from tests.support.queue_mixes import front_by_brute_force, rows_of, small_state
from tests.support.queues import PLACE, gang, racks, runs_on, state_of, waits

NONE = {"throughput": 0.0, "cost": 0.0, "latency": 0.0, "fairness": 0.0, "reliability": 0.0}


def weights(**chosen: float) -> QueueWeights:
    return QueueWeights(**{**NONE, **chosen})


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_front_is_what_brute_force_finds(seed: int) -> None:
    state = small_state(seed)
    assert rows_of(front(choices(state, PLACE))) == front_by_brute_force(state)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_every_set_of_gangs_that_leaves_room_for_no_other_can_be_chosen(seed: int) -> None:
    """Of one class and one node size, counted by hand: a set is found when it fits and nothing can be added to it."""
    rng = random.Random(seed)
    sizes = {f"w{number}": rng.randint(1, 6) for number in range(4)}
    state = state_of(racks(1), *(waits(gang(key, size), runs=100.0) for key, size in sizes.items()))
    sets = [set(chosen) for number in range(5) for chosen in combinations(sizes, number)]
    fitting = [chosen for chosen in sets if sum(sizes[key] for key in chosen) <= 8]
    largest = [chosen for chosen in fitting if not any(chosen < other for other in fitting)]
    found = [{start.gang for start in each.decision.starts} for each in choices(state, PLACE)]
    assert all(chosen in found for chosen in largest)
    assert all(chosen in fitting for chosen in found)


def test_each_weight_gets_what_it_wants() -> None:
    state = state_of(
        racks(1),
        runs_on(gang("low", 4, cls="low", team="blue"), {"r0n0": 4}, saved=-3600.0, ends=7200.0),
        waits(gang("urgent", 8, cls="urgent"), runs=3600.0),
    )
    found = choices(state, PLACE)
    for number, name in enumerate(NONE):
        best = min(each.costs.row[number] for each in found)
        assert choose(state, PLACE, weights=weights(**{name: 1.0})).costs.row[number] == best
    assert choose(state, PLACE, weights=weights(latency=1.0)).decision.preemptions
    assert not choose(state, PLACE, weights=weights(cost=1.0)).decision.preemptions


def test_nodes_that_fail_often_are_left_to_those_who_do_not_care() -> None:
    often = {NodeId("r0n0"): 0.5, NodeId("r0n1"): 0.001, NodeId("r1n0"): 0.0, NodeId("r1n1"): 0.0}
    state = state_of(
        racks(2), *(waits(gang(f"w{number}", 4), since=number) for number in range(4)), failures_per_hour=often
    )
    safe = choose(state, PLACE, weights=weights(reliability=1.0))
    assert {node for start in safe.decision.starts for node in start.held} == {"r1n0", "r1n1"}
    full = choose(state, PLACE, weights=weights(throughput=1.0))
    assert full.costs.idle_ratio == 0.0
    assert safe.costs.failures_per_hour == 0.0


def test_a_choice_can_be_made_again_from_its_policy() -> None:
    state = small_state(7)
    for each in choices(state, PLACE):
        assert decide(replace(state, policy=each.policy), PLACE) == each.decision


def test_where_nothing_counts_the_queues_own_policy_decides() -> None:
    state = state_of(racks(1), waits(gang("a", 4)), policy={"order": QueueOrder.LARGEST_FIRST})
    choice = choose(state, PLACE, weights=weights())
    assert choice.policy == state.policy
    assert choices(state, PLACE)[0].policy == state.policy


def test_a_large_queue_is_looked_at_by_the_orders_that_have_names() -> None:
    gangs = [waits(gang(f"w{number}", 1 + number % 5), since=number, runs=50.0 + number) for number in range(12)]
    found = choices(state_of(racks(1), *gangs), PLACE)
    assert 1 < len(found) <= 2 * len(QueueOrder)
    assert all(each.policy.first == () for each in found)


def test_costs_are_those_that_can_be_worked_out_by_hand() -> None:
    sliced = (SlicedSlot(node=NodeId("r0n1"), slot=3, kind=SliceKind.MIG, num_slices=4),)
    state = state_of(
        racks(1),
        runs_on(gang("x", 2, team="blue"), {"r0n0": 2}, ends=3600.0),
        waits(gang("a", 4), runs=100.0),
        waits(gang("b", 6), since=1.0, runs=100.0),
        waits(gang("e", 1, slices=SliceAsk(num_slices=2)), since=2.0),
        sliced=sliced,
        policy={"history_ratio": 0.0},
        failures_per_hour={NodeId("r0n0"): 0.1},
    )
    decision = decide(state, PLACE)
    assert [each.gang for each in decision.starts] == ["a", "e"]
    costs = costs_of(state, decision)
    assert costs.idle_ratio == pytest.approx(1 - 6.5 / 8)
    assert costs.wait_hours == pytest.approx(1 / 3), "of three gangs one waits for an hour"
    assert costs.spread_ratio == pytest.approx(4.5 / 8 - 2 / 8)
    held = next(each.held for each in decision.starts if each.gang == "a")
    on_frail = 4 / 8 * 0.1 if NodeId("r0n0") in held else 0.0
    assert costs.failures_per_hour == pytest.approx(2 / 8 * 0.1 + on_frail)
    assert costs.lost_hours == 0.0


def test_whoever_is_named_goes_first_in_his_class() -> None:
    gangs = [waits(gang(key, 8, cls=cls)) for key, cls in (("a", "normal"), ("b", "normal"), ("u", "urgent"))]
    decision = decide(state_of(racks(2), *gangs, policy={"first": (RunKey("b"), RunKey("gone"))}), PLACE)
    assert [each.gang for each in decision.starts] == ["u", "b"]


def test_a_queue_of_thousands_is_decided_by_a_few_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERVED", 20)
    gangs = [waits(gang(f"w{number}", 1 + number % 5), since=number, runs=50.0 + number) for number in range(7)]
    state = state_of(racks(1), *gangs)
    looked: list[object] = []
    monkeypatch.setattr(module, "decide", lambda state, place: looked.append(state.policy) or decide(state, place))
    choices(state, PLACE)
    assert looked[0] == state.policy
    assert len(looked) == 2
