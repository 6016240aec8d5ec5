from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import ParallelLayout, PlacementWish, RankGroup
from airflow_llmsched.domain.placement import HelperSlot, NotPlaced, Placed, Placement, RankSlot
from airflow_llmsched.domain.queue import (
    QueuedGang,
    QueueState,
    Reclaim,
    RunningGang,
    SliceAsk,
    SlicedSlot,
    SliceKind,
    WaitingGang,
)
from airflow_llmsched.domain.queue_decision import QueueDecision, WaitReason
from airflow_llmsched.domain.roles import RoleKind
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import InternalError
from airflow_llmsched.planner.placement.balanced import BalancedSolver
from airflow_llmsched.planner.placement.fleet import FleetSolver
from airflow_llmsched.planner.placement.wishes import domain_of_rank_R, num_split_groups
from airflow_llmsched.planner.queue.decide import decide, held_by_node, placing_by
from airflow_llmsched.planner.queue.desk import Desk
from tests.support.queues import (
    PLACE,
    crowd,
    decided,
    drawn_groups,
    gang,
    quota,
    racks,
    reasons,
    runs_on,
    start_s,
    started,
    state_of,
    waits,
)


def test_gangs_start_in_order_for_as_long_as_there_is_room():
    decision = decided(racks(2), *(waits(gang(f"g{number}", 6), since=number) for number in range(4)))
    assert started(decision) == {"g0": {"r0n0": 4, "r0n1": 2}, "g1": {"r1n0": 4, "r1n1": 2}}
    assert reasons(decision) == {"g2": "capacity", "g3": "capacity"}
    assert all(each.placement is not None and each.ends_by_s == 100.0 for each in decision.starts)


def test_a_gang_starts_as_a_whole_or_not_at_all():
    decision = decided(racks(1), waits(gang("a", 9)), waits(gang("b", 8), since=1.0))
    assert sum(started(decision)["b"].values()) == 8
    assert reasons(decision) == {"a": "never_fits"}


def test_two_gangs_on_one_node_get_different_slots():
    decision = decided(racks(1, nodes=1), waits(gang("a", 2)), waits(gang("b", 2)))
    assert sorted(slot for each in decision.starts for slot in each.held[NodeId("r0n0")]) == [0, 1, 2, 3]


def test_evaluation_goes_to_what_others_left_over():
    busy = runs_on(gang("x", 3), {"r1n1": 3})
    assert started(decided(racks(2), busy, waits(gang("evaluation", 1)))) == {"evaluation": {"r1n1": 1}}


def test_a_short_gang_passes_by_but_never_delays_who_was_promised_a_start():
    busy = runs_on(gang("x", 4), {"r0n0": 4}, ends=50.0)
    big, short, long = (
        waits(gang("big", 8, required_level="rack")),
        waits(gang("short", 4), since=1.0, runs=50.0),
        waits(gang("long", 4), since=2.0, runs=51.0),
    )
    decision = decided(racks(1), busy, big, short, long)
    assert list(started(decision)) == ["short"]
    assert decision.starts[0].is_backfill
    assert start_s(decision)["big"] == 50.0
    assert reasons(decision) == {"big": "capacity", "long": "capacity"}
    assert reasons(decided(racks(1), busy, big, long)) == {"big": "capacity", "long": "promised"}


def test_a_gang_whose_end_nobody_knows_stays_clear_of_all_promises():
    busy = runs_on(gang("x", 4), {"r0n0": 4}, ends=50.0)
    decision = decided(racks(1), busy, waits(gang("big", 8)), waits(gang("endless", 1), since=1.0, runs=None))
    assert reasons(decision)["endless"] == "promised"


def test_without_backfill_nobody_passes_by():
    busy = runs_on(gang("x", 4), {"r0n0": 4}, ends=50.0)
    decision = decided(
        racks(1),
        busy,
        waits(gang("big", 8)),
        waits(gang("short", 1), since=1.0, runs=10.0),
        policy={"may_backfill": False},
    )
    assert reasons(decision) == {"big": "capacity", "short": "in_order"}


def test_a_gang_that_only_its_quota_keeps_keeps_no_room_from_others():
    busy = runs_on(gang("x", 4), {"r0n0": 4})
    decision = decided(
        racks(1), busy, waits(gang("a", 4)), waits(gang("b", 4, team="blue"), since=1.0, runs=None),
        quotas=(quota("red", 7),),
    )  # fmt: skip
    assert list(started(decision)) == ["b"]
    assert reasons(decision) == {"a": "team_quota"}
    assert decision.reservations == ()
    assert start_s(decision)["a"] == 1000.0


def test_who_would_start_now_by_counting_is_expected_at_the_next_change():
    apart = [runs_on(gang(f"x{rack}", 2), {f"r{rack}n0": 2}, ends=70.0 + rack) for rack in (0, 1)]
    asked = waits(gang("a", 8, required_level="rack"))
    (told,) = decided(racks(2), *apart, asked, policy={"num_reservations": 0}).waits
    assert (told.reason, told.start_s, told.is_promised) == ("fragmented", 70.0, False)


def test_each_class_has_as_many_promises_as_the_policy_says():
    busy = runs_on(gang("x", 8), {"r0n0": 4, "r0n1": 4}, ends=50.0)
    asked = [waits(gang(f"g{number}", 8), since=number) for number in range(3)]
    easy = decided(racks(1), busy, *asked, policy={"num_reservations": 1})
    assert [each.gang for each in easy.reservations] == ["g0"]
    assert [(each.gang, each.start_s, each.is_promised) for each in easy.waits] == [
        ("g0", 50.0, True),
        ("g1", 150.0, False),
        ("g2", 250.0, False),
    ]
    conservative = decided(racks(1), busy, *asked, policy={"num_reservations": None})
    assert [each.start_s for each in conservative.reservations] == [50.0, 150.0, 250.0]


def test_whoever_has_waited_too_long_goes_before_higher_classes_and_is_not_passed_by():
    busy = runs_on(gang("x", 4, cls="urgent"), {"r0n0": 4}, ends=50.0)
    old = waits(gang("old", 8, cls="low"), since=-1000.0)
    urgent = waits(gang("urgent", 4, cls="urgent"))
    assert list(started(decided(racks(1), busy, old, urgent))) == ["urgent"]
    decision = decided(racks(1), busy, old, urgent, policy={"starving_after_s": 1000.0})
    assert started(decision) == {}
    assert start_s(decision)["old"] == 50.0


def test_an_urgent_gang_has_one_gang_leave_and_its_domain_is_kept_for_it():
    held = [runs_on(gang(f"v{rack}", 8, cls="low"), {f"r{rack}n0": 4, f"r{rack}n1": 4}) for rack in (0, 1)]
    urgent = waits(gang("u", 8, cls="urgent", required_level="rack"))
    decision = decided(racks(2), *held, urgent)
    (order,) = decision.preemptions
    (kept,) = decision.reservations
    assert (order.gang, order.beneficiary, order.domain) == ("v0", "u", ("b0", "r0"))
    assert (kept.gang, kept.is_claim, kept.start_s, set(kept.num_slots)) == ("u", True, 60.0, {"r0n0", "r0n1"})
    assert reasons(decision) == {"u": "yielding"}


def test_while_one_leaves_nobody_else_is_told_to_and_nobody_takes_its_place():
    leaving = runs_on(gang("v0", 8, cls="low"), {"r0n0": 4, "r0n1": 4}, yields_to="u", yields_by_s=30.0)
    other = runs_on(gang("v1", 8, cls="low"), {"r1n0": 4, "r1n1": 4})
    urgent = waits(gang("u", 8, cls="urgent", required_level="rack"))
    again = decided(racks(2), leaving, other, urgent)
    assert (again.preemptions, reasons(again), start_s(again)) == ((), {"u": "yielding"}, {"u": 30.0})
    (kept,) = again.reservations
    claims = replace(urgent, reserved=replace(kept, is_claim=True))
    more_urgent = waits(gang("w", 8, cls="urgent", required_level="rack"), since=-999.0)
    assert list(started(decided(racks(2), other, claims, more_urgent))) == ["u"]


def test_a_gang_of_its_own_lower_class_makes_room_within_the_quota():
    mine = runs_on(gang("mine", 4, cls="low"), {"r0n0": 4})
    decision = decided(racks(2), mine, waits(gang("u", 8, cls="urgent")), quotas=(quota("red", 8),))
    assert [each.gang for each in decision.preemptions] == ["mine"]


def test_what_was_lent_comes_back():
    held = [runs_on(gang(f"b{node}", 4, team="blue"), {f"r0n{node}": 4}, started=-100.0 + node) for node in (0, 1)]
    both = (quota("red", 4, cohort="c", reclaim=Reclaim.ANY), quota("blue", 4, cohort="c"))
    decision = decided(racks(1), *held, waits(gang("mine", 4)), quotas=both)
    assert [(each.gang, each.is_reclaim) for each in decision.preemptions] == [("b1", True)]


def test_jobs_on_slices_share_accelerators_and_count_in_quotas():
    sliced = (SlicedSlot(node=NodeId("r0n0"), slot=0, kind=SliceKind.MIG, num_slices=4),)
    asked = [waits(gang(f"e{number}", 1, slices=SliceAsk(num_slices=2)), since=number) for number in range(3)]
    decision = decided(racks(1), *asked, waits(gang("whole", 8)), sliced=sliced)
    assert [(each.gang, each.slices.num_slices if each.slices else 0) for each in decision.starts] == [
        ("e0", 2),
        ("e1", 2),
    ]
    assert reasons(decision) == {"e2": "no_slice", "whole": "never_fits"}
    assert start_s(decision)["e2"] == 100.0
    half = decided(racks(1), *asked, sliced=sliced, quotas=(quota("red", 0.5),))
    assert reasons(half) == {"e1": "team_quota", "e2": "team_quota"}
    tiny = decided(racks(1), *asked, sliced=sliced, quotas=(quota("red", 0.4),))
    assert set(reasons(tiny).values()) == {"over_quota"}
    odd = waits(gang("odd", 1, slices=SliceAsk(kind=SliceKind.TIME)))
    assert reasons(decided(racks(1), odd, sliced=sliced)) == {"odd": "never_fits"}


def test_a_solver_that_refuses_every_domain_is_a_reason_by_itself():
    asked = []

    def refuse(_: QueuedGang, tree: TopologyTree) -> NotPlaced:
        asked.append(len(tree.nodes))
        return NotPlaced(summary="no")

    decision = decide(state_of(racks(4, blocks=2), waits(gang("a", 4)), waits(gang("b", 4))), refuse)
    assert reasons(decision) == {"a": "no_place", "b": "no_place"}
    assert asked[:4] == [1, 2, 4, 8], "the smallest domain first"


@pytest.mark.parametrize("slot", [7, 0])
def test_a_solver_that_gives_what_was_not_offered_is_a_bug(slot: int):
    def wrong(_: QueuedGang, __: TopologyTree) -> Placed:
        ranks = tuple(RankSlot(rank=rank, node=NodeId("r0n0"), slot=slot, local_rank=rank) for rank in range(2))
        return Placed(placement=Placement(slots=ranks), num_domains=1)

    with pytest.raises(InternalError, match="gang a needs 2 slots"):
        decide(state_of(racks(1), waits(gang("a", 2))), wrong)


def test_slots_of_helpers_are_held_too():
    ranks = (RankSlot(rank=0, node=NodeId("n"), slot=3, local_rank=0),)
    helper = HelperSlot(role=RoleKind.EVALUATOR, index=0, node=NodeId("m"), slots=(1, 2))
    idle = HelperSlot(role=RoleKind.EVALUATOR, index=1, node=NodeId("k"))
    assert held_by_node(Placement(slots=ranks, helpers=(helper, idle))) == {"n": (3,), "m": (1, 2)}


def test_an_unknown_level_is_an_error_and_no_reason_to_wait():
    with pytest.raises(ValueError, match="no level 'pod'"):
        decided(racks(1), waits(gang("a", 1, required_level="pod")))


REPLICAS = PlacementWish(group=RankGroup.DP, level="rack", required=True)


def test_groups_start_inside_the_level_that_is_required_of_them_and_not_before_there_is_room_for_that():
    """Of seven free slots in a rack and five in the other, a gang of twelve takes all, whole groups of six none."""
    busy = [runs_on(gang("x", 1), {"r0n0": 1}, ends=50.0), runs_on(gang("y", 3), {"r1n0": 3}, ends=70.0)]
    asked = replace(gang("a", 12), layout=ParallelLayout(dp=6, pp=2))
    assert list(started(decided(racks(2), *busy, waits(asked)))) == ["a"]
    kept = replace(asked, group_levels=(REPLICAS,))
    decision = decided(racks(2), *busy, waits(kept))
    assert reasons(decision) == {"a": "fragmented"}
    assert start_s(decision) == {"a": 70.0}
    (told,) = decision.waits
    assert "each dp group of 6 in one rack" in told.detail
    never = replace(gang("b", 9), group_levels=(REPLICAS,))
    assert reasons(decided(racks(2), waits(never))) == {"b": "never_fits"}


def test_accelerators_of_helpers_are_taken_beside_groups_in_the_gangs_level():
    asked = gang("a", 6, group_levels=(REPLICAS,), num_helper_slots=2, required_level="block")
    assert started(decided(racks(4, blocks=2), waits(asked))) == {"a": {"r0n0": 4, "r0n1": 4}}
    wide = gang("a", 8, group_levels=(REPLICAS,), num_helper_slots=2, required_level="block")
    assert started(decided(racks(4, blocks=2), waits(wide))) == {"a": {"r0n0": 4, "r0n1": 4, "r1n0": 2}}
    lone = gang("a", 8, group_levels=(REPLICAS,), num_helper_slots=2, required_level="rack")
    assert reasons(decided(racks(4, blocks=2), waits(lone))) == {"a": "never_fits"}


def pipelines(**others: Any) -> QueuedGang:
    wish = PlacementWish(group=RankGroup.PP, level="rack", required=True)
    return replace(gang("a", 12, group_levels=(wish,), **others), layout=ParallelLayout(dp=3, tp=2, pp=2))


def test_a_place_that_only_the_solver_knows_of_is_asked_for_in_turn():
    tree = racks(2)
    free = {"r0n0": 4, "r0n1": 4, "r1n0": 2, "r1n1": 2}
    tree = replace(tree, nodes=tuple(replace(node, num_free_slots=free[node.id]) for node in tree.nodes))
    desk = Desk.of(state_of(tree, waits(pipelines())))
    assert not desk.room.fits(desk.room.whole_N, pipelines())
    assert started(decided(tree, waits(pipelines()))) == {"a": free}
    ahead = waits(gang("ahead", 13), since=-1.0)
    late = runs_on(gang("late", 4), {"r1n0": 2, "r1n1": 2}, first=2, ends=50.0)
    assert list(started(decided(tree, late, ahead, waits(pipelines(), runs=40.0)))) == ["a"]
    assert reasons(decided(tree, late, ahead, waits(pipelines(), runs=60.0)))["a"] != "never_fits"
    strict = decided(tree, late, ahead, waits(pipelines(), runs=40.0), policy={"may_backfill": False})
    assert started(strict) == {}
    assert started(decided(tree, waits(pipelines()), quotas=(quota("red", 11),))) == {}


def crowd_of_groups(seed: int) -> QueueState:
    """Return gangs with levels required of groups among others, on nodes that are partly in use."""
    rng = random.Random(seed)
    tree, running = racks(6, blocks=2), []
    for number, node in enumerate(tree.nodes):
        size = rng.randint(0, 4)
        if size:
            asked = gang(f"r{number}", size, cls=rng.choice(["low", "normal"]))
            ends = rng.choice([None, float(rng.randint(1, 99))])
            running.append(runs_on(asked, {node.id: size}, ends=ends, saved=-rng.random() * 50, next_save_s=9.0))
    waiting = []
    for number in range(rng.randint(1, 6)):
        level, cls = rng.choice([None, None, "block"]), rng.choice(["low", "normal", "urgent"])
        asked = drawn_groups(rng, f"w{number}", required_level=level, cls=cls)
        asked = rng.choice([asked, asked, gang(f"w{number}", rng.randint(1, 12), required_level=level)])
        runs = rng.choice([None, float(rng.randint(1, 200))])
        waiting.append(waits(asked, since=-float(rng.randint(0, 500)), runs=runs))
    return state_of(tree, *running, *waiting, policy={"num_reservations": rng.choice([1, None])})


def state_number(seed: int) -> QueueState:
    rng = random.Random(seed)
    tree = racks(4, blocks=2)
    running: list[RunningGang] = []
    for number, node in enumerate(tree.nodes):
        size = rng.randint(0, 4)
        if size:
            asked = gang(f"r{number}", size, team=rng.choice(["red", "blue"]), cls=rng.choice(["low", "normal"]))
            ends = rng.choice([None, float(rng.randint(1, 99))])
            running.append(runs_on(asked, {node.id: size}, ends=ends, saved=-rng.random() * 50, next_save_s=9.0))
    waiting: list[WaitingGang] = []
    for number in range(rng.randint(1, 8)):
        tp = rng.choice([1, 2, 4])
        asked = gang(
            f"w{number}", tp * rng.randint(1, 4), tp=tp, team=rng.choice(["red", "blue"]),
            cls=rng.choice(["low", "normal", "urgent"]), required_level=rng.choice([None, "rack", "block"]),
        )  # fmt: skip
        runs = rng.choice([None, float(rng.randint(1, 200))])
        waiting.append(waits(asked, since=-float(rng.randint(0, 500)), runs=runs))
    both = (quota("red", 16, cohort="c"), quota("blue", 8, cohort="c", reclaim=rng.choice(list(Reclaim))))
    policy = {"num_reservations": rng.choice([1, 2, None]), "starving_after_s": 400.0}
    return state_of(tree, *running, *waiting, quotas=both, policy=policy)


def with_busy_links(state: QueueState, seed: int) -> QueueState:
    """Return a queue whose links others keep busy, here more and there less."""
    rng, busy = random.Random(seed), dict[tuple[str, ...], float]()
    nodes = []
    for node in state.tree.nodes:
        paths = [(*node.path, node.id)[:depth] for depth in range(1, len(node.path) + 2)]
        ratios = tuple(busy.setdefault(path, rng.choice([0.0, 0.0, 0.1, 0.5, 1.0])) for path in paths)
        nodes.append(replace(node, busy_ratios=ratios))
    return replace(state, tree=replace(state.tree, nodes=tuple(nodes)))


GROUPS = st.integers(0, 1_000_000).map(crowd_of_groups)
PLAIN = st.integers(0, 1_000_000).map(state_number)
STATES = PLAIN | GROUPS


@settings(max_examples=80, deadline=None)
@given(state=STATES, seed=st.integers(0, 99))
def test_every_gang_gets_one_answer_whatever_the_order_of_the_input(state: QueueState, seed: int):
    decision = decide(state, PLACE)
    rng = random.Random(seed)
    shuffled = replace(
        state,
        tree=replace(state.tree, nodes=tuple(rng.sample(state.tree.nodes, len(state.tree.nodes)))),
        waiting=tuple(rng.sample(state.waiting, len(state.waiting))),
        running=tuple(rng.sample(state.running, len(state.running))),
        quotas=state.quotas[::-1],
        classes=state.classes[::-1],
    )
    assert decide(shuffled, PLACE) == decision
    answers = [each.gang for each in (*decision.starts, *decision.waits)]
    assert sorted(answers) == sorted(each.gang.key for each in state.waiting)
    assert all(each.start_s is not None for each in decision.waits if each.reason is not WaitReason.NEVER_FITS)


@settings(max_examples=80, deadline=None)
@given(state=STATES)
def test_whoever_is_preempted_is_of_a_lower_class_or_has_borrowed(state: QueueState):
    decision = decide(state, PLACE)
    gangs = {each.gang.key: each.gang for each in (*state.waiting, *state.running)}  # type: ignore[union-attr]
    for order in decision.preemptions:
        victim, winner = gangs[order.gang], gangs[order.beneficiary]
        is_lower = state.priority(victim).priority < state.priority(winner).priority
        assert is_lower or (order.is_reclaim and victim.team != winner.team)
    beneficiaries = {each.beneficiary for each in decision.preemptions}
    assert beneficiaries <= {each.gang for each in decision.reservations if each.is_claim}


def test_a_gang_for_which_others_leave_takes_nobodys_promise():
    """It goes first to get what was freed for it: an earlier start that its equals were promised stays theirs."""
    busy = runs_on(gang("x", 4), {"r0n0": 4}, ends=50.0)
    asked = [waits(gang("first", 4)), waits(gang("second", 4), since=1.0)]
    promised = {
        each.gang: each
        for each in decided(racks(1, nodes=1), busy, *asked, policy={"num_reservations": 2}).reservations
    }
    assert [each.start_s for each in promised.values()] == [50.0, 150.0]
    promised[asked[1].gang.key] = replace(promised[asked[1].gang.key], is_claim=True)
    again = decided(racks(1, nodes=1), busy, *(replace(each, reserved=promised[each.gang.key]) for each in asked))
    assert start_s(again) == {"first": 50.0, "second": 150.0}


@settings(max_examples=60, deadline=None)
@given(state=STATES)
@example(state=state_number(2010)).via("a claim of a starving gang's equal that took its start")
def test_what_was_promised_holds_when_asked_again_at_once(state: QueueState):
    """Of one class: a higher one may still preempt more for itself when it is asked about again."""
    alike = tuple(replace(each, gang=replace(each.gang, priority_class="low")) for each in state.waiting)
    first = decide(replace(state, waiting=alike), PLACE)
    kept = {each.gang: each for each in first.reservations}
    again = start_s(decide(carried_out(replace(state, waiting=alike), first), PLACE))
    for key, reservation in kept.items():
        assert again.get(key, -math.inf) <= reservation.start_s + 1e-9


def carried_out(state: QueueState, decision: QueueDecision) -> QueueState:
    """Return the state once a decision has been recorded: who starts runs, who is to leave knows, who waits keeps."""
    kept = {each.gang: each for each in decision.reservations}
    starts = {each.gang: each for each in decision.starts}
    told = {each.gang: each for each in decision.preemptions}
    begun = (
        RunningGang(
            gang=each.gang, held=starts[each.gang.key].held, started_s=state.now_s, saved_s=state.now_s,
            ends_by_s=starts[each.gang.key].ends_by_s,
        )
        for each in state.waiting
        if each.gang.key in starts
    )  # fmt: skip
    running = tuple(
        replace(each, yields_to=told[each.gang.key].beneficiary, yields_by_s=told[each.gang.key].leaves_by_s)
        if each.gang.key in told
        else each
        for each in (*state.running, *begun)
    )
    left = tuple(
        replace(each, reserved=kept.get(each.gang.key)) for each in state.waiting if each.gang.key not in starts
    )
    return replace(state, waiting=left, running=running)


@settings(max_examples=100, deadline=None)
@given(state=GROUPS)
def test_whatever_starts_keeps_its_groups_and_what_is_promised_is_room_where_the_solver_keeps_them(state: QueueState):
    decision = decide(state, PLACE)
    gangs = {each.gang.key: each.gang for each in state.waiting}
    for each in decision.starts:
        asked = gangs[each.gang]
        assert each.placement is not None
        assert sum(map(len, each.held.values())) == asked.num_slots
        for wish in asked.group_levels:
            domain_R = domain_of_rank_R(each.placement, state.tree, level=wish.level)
            assert num_split_groups(asked.layout, domain_R, group=wish.group) == 0
    nodes = {node.id: node for node in state.tree.nodes}
    for each in decision.reservations:
        kept = {name: replace(nodes[name], num_free_slots=number) for name, number in each.num_slots.items()}
        assert isinstance(PLACE(gangs[each.gang], replace(state.tree, nodes=tuple(kept.values()))), Placed)
        assert sum(each.num_slots.values()) >= gangs[each.gang].num_slots


@settings(max_examples=40, deadline=None)
@given(state=GROUPS)
def test_where_others_have_made_room_for_groups_they_start(state: QueueState):
    state = replace(state, waiting=state.waiting[:1], policy=replace(state.policy, may_consolidate=False))
    decision = decide(state, PLACE)
    gone = {each.gang for each in decision.preemptions}
    if gone:
        gone |= {each.gang.key for each in state.running if each.ends_by_s is not None and each.ends_by_s <= 60.0}
        left = tuple(each for each in state.running if each.gang.key not in gone)
        assert list(started(decide(replace(state, running=left), PLACE))) == [state.waiting[0].gang.key]


@settings(max_examples=80, deadline=None)
@given(state=STATES, seed=st.integers(0, 99))
@example(state=state_number(712), seed=712).via("a gang that started behind one that keeps off links")
@example(state=state_number(856), seed=856).via("a promise of a week later")
@example(state=state_number(163), seed=163).via("a gang that had to leave")
def test_nobody_waits_for_a_link_or_is_promised_less_for_one(state: QueueState, seed: int):
    anyhow, beside = decide(state, PLACE), decide(with_busy_links(state, seed), PLACE)
    assert started(anyhow).keys() <= started(beside).keys()
    promised_s = {each.gang: each.start_s for each in beside.reservations}
    for each in anyhow.reservations:
        assert each.gang in started(beside) or promised_s.get(each.gang, math.inf) <= each.start_s
    assert len(beside.preemptions) <= len(anyhow.preemptions)


@settings(max_examples=15, deadline=None)
@given(state=PLAIN)
def test_solvers_differ_in_where_gangs_start_and_not_in_who_does(state: QueueState):
    expected = set(started(decide(state, PLACE)))
    for solver in (FleetSolver(), BalancedSolver()):
        assert set(started(decide(state, placing_by(solver)))) == expected


def test_a_decision_is_a_value_that_can_be_compared():
    assert decided(racks(1)) == QueueDecision(at_s=0.0)


def test_a_thousand_gangs_that_wait_and_a_thousand_that_run_are_decided_in_a_moment():
    """In half a second where nothing else runs; CPU time grows with what shares the machine, hence the rest."""
    state = crowd(0)
    took_s = []
    for _ in range(3):
        start_s = time.process_time()
        decision = decide(state, PLACE)
        took_s.append(time.process_time() - start_s)
    assert len(decision.starts) + len(decision.waits) == 1000
    assert min(took_s) < 1.5
