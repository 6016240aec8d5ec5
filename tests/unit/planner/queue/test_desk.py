from __future__ import annotations

import math
from dataclasses import replace

import pytest

from airflow_llmsched.domain.identity import NodeId, RunKey
from airflow_llmsched.domain.layout import PlacementWish, RankGroup
from airflow_llmsched.domain.queue import Limits, QueuedGang, Reservation, SlicedSlot, SliceHold, SliceKind, TeamQuota
from airflow_llmsched.domain.queue_decision import WaitReason
from airflow_llmsched.planner.queue.desk import Desk, end_s
from tests.support.queues import gang, quota, racks, runs_on, state_of, waits


def obstacle(asked: QueuedGang, *gangs: object, **others: object) -> WaitReason | None:
    waiting = waits(asked)
    return Desk.of(state_of(racks(2), waiting, *gangs, **others)).obstacle(waiting)  # type: ignore[arg-type]


def kept(start: float, slots: dict[str, int]) -> Reservation:
    num_slots = {NodeId(node): number for node, number in slots.items()}
    return Reservation(gang=RunKey("p"), start_s=start, until_s=None, num_slots=num_slots, is_promised=True)


def test_each_obstacle_has_its_name():
    half = runs_on(gang("x", 4), {"r0n0": 2, "r1n0": 2})
    assert obstacle(gang("a", 8)) is None
    assert obstacle(gang("a", 13), half) is WaitReason.CAPACITY
    assert obstacle(gang("a", 8, required_level="rack"), half) is WaitReason.FRAGMENTED
    assert obstacle(gang("a", 12, tp=4), half) is WaitReason.FRAGMENTED
    assert obstacle(gang("a", 8), half, quotas=(quota("red", 8),)) is WaitReason.TEAM_QUOTA
    assert obstacle(gang("a", 8, host_bytes=5.0), capacity=Limits(host_bytes=4.0)) is WaitReason.CAPACITY


def test_what_is_promised_to_others_is_an_obstacle_for_whoever_is_not_gone_by_then():
    asked = gang("p", 8)
    desk = Desk.of(state_of(racks(1), waits(asked)))
    share = desk.room.choose(desk.room.whole_N, asked)
    desk.timeline.promise(desk.span(asked, share, desk.capacity_Q * 0, start_s=50.0, end_s=90.0))
    assert desk.obstacle(waits(gang("a", 1), runs=50.0)) is None
    assert desk.obstacle(waits(gang("a", 1), runs=51.0)) is WaitReason.PROMISED
    assert desk.obstacle(waits(gang("a", 1), runs=None)) is WaitReason.PROMISED


def test_quota_that_is_promised_is_kept_too():
    desk = Desk.of(state_of(racks(2), quotas=(quota("red", 8),)))
    asked = gang("p", 8)
    share = desk.room.choose(desk.room.whole_N, asked)
    wanted_Q = desk.capacity_Q * 0
    wanted_Q[0] = 8.0
    desk.timeline.promise(desk.span(asked, share, wanted_Q, start_s=50.0, end_s=90.0))
    assert desk.obstacle(waits(gang("a", 1), runs=51.0)) is WaitReason.PROMISED


def test_what_could_never_start_is_told_from_what_waits():
    held = runs_on(gang("x", 4, team="blue"), {"r0n0": 4})
    desk = Desk.of(state_of(racks(2), held, quotas=(quota("red", 12),)))
    assert desk.never(gang("a", 12)) is None
    assert desk.never(gang("a", 13)) is WaitReason.OVER_QUOTA
    assert desk.never(gang("a", 17, team="blue")) is WaitReason.NEVER_FITS
    assert desk.never(gang("a", 9, required_level="rack")) is WaitReason.NEVER_FITS
    none = Desk.of(state_of(racks(1), quotas=(TeamQuota(team="red", nominal=Limits(num_accelerators=0.0)),)))
    assert none.never(gang("a", 1)) is WaitReason.OVER_QUOTA


def test_a_gang_ends_later_than_now_whatever_it_said():
    state = state_of(racks(1), policy={"overrun_s": 60.0, "unknown_run_s": 500.0})
    asked = runs_on(gang("a"), {"r0n0": 4})
    assert end_s(state, replace(asked, ends_by_s=10.0)) == 10.0
    assert end_s(state, replace(asked, ends_by_s=0.0)) == 60.0
    assert end_s(state, replace(asked, ends_by_s=None)) == 500.0
    leaving = replace(asked, yields_to=RunKey("u"), yield_s=7.0)
    assert end_s(state, leaving) == 7.0
    assert end_s(state, replace(leaving, yields_by_s=3.0)) == 3.0
    assert end_s(state, replace(leaving, yields_by_s=-3.0)) == 60.0


def test_what_was_promised_is_kept_for_as_long_as_its_nodes_are_there():
    promised = replace(waits(gang("p", 8)), reserved=kept(40.0, {"r0n0": 4, "r0n1": 4}))
    desk = Desk.of(state_of(racks(2), promised))
    span = desk.kept_span(promised)
    assert span is not None
    assert (span.start_s, span.end_s) == (40.0, 140.0)
    tree = racks(2)
    broken = replace(tree, nodes=(replace(tree.nodes[0], unusable_reason="drained"), *tree.nodes[1:]))
    assert Desk.of(state_of(broken, promised)).kept_span(promised) is None
    busy = runs_on(gang("x", 4), {"r0n0": 4}, ends=41.0)
    assert Desk.of(state_of(tree, promised, busy)).kept_span(promised) is None
    assert Desk.of(state_of(tree, promised, quotas=(quota("red", 7),))).kept_span(promised) is None


def test_a_promise_that_no_longer_holds_what_the_gang_asks_for_is_not_kept():
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=True)
    scattered = kept(40.0, {"r0n0": 4, "r1n0": 4})
    for asked, is_kept in ((gang("p", 8), True), (gang("p", 9), False), (gang("p", 8, group_levels=(wish,)), False)):
        promised = replace(waits(asked), reserved=scattered)
        assert (Desk.of(state_of(racks(2), promised)).kept_span(promised) is not None) == is_kept


def test_a_promise_that_is_due_is_kept_from_now_on():
    promised = replace(waits(gang("p", 8)), reserved=kept(-5.0, {"r0n0": 4, "r0n1": 4}))
    desk = Desk.of(state_of(racks(1), promised))
    desk.keep(promised)
    assert desk.timeline.promised["p"].start_s == 0.0
    assert desk.obstacle(waits(gang("a", 1), runs=5.0)) is WaitReason.PROMISED
    assert desk.kept_span(waits(gang("a"))) is None


def test_a_reservation_that_rests_on_an_end_nobody_knows_is_no_promise():
    desk = Desk.of(state_of(racks(1), waits(gang("p")), policy={"unknown_run_s": 100.0}))
    share = desk.room.choose(desk.room.whole_N, gang("p"))
    known = desk.span(gang("p"), share, desk.capacity_Q, start_s=99.0, end_s=math.inf)
    record = desk.reservation(known, is_claim=False)
    assert (record.is_promised, record.until_s, record.num_slots) == (True, None, {"r0n0": 4})
    assert not desk.reservation(replace_start(known, 100.0), is_claim=False).is_promised


def replace_start(span, start_s):
    span.start_s = start_s
    return span


def test_slices_that_are_held_count_as_a_part_of_an_accelerator():
    node = NodeId("r0n0")
    held = runs_on(gang("e", 1), {}, slices=SliceHold(node=node, slot=0, num_slices=2))
    sliced = (SlicedSlot(node=node, slot=0, kind=SliceKind.MIG, num_slices=8),)
    desk = Desk.of(state_of(racks(1), held, sliced=sliced))
    assert desk.timeline.now.usage_TQ[0, 0] == pytest.approx(0.25)
    assert desk.capacity_Q[0] == 8.0
    assert desk.room.whole_N.sum() == 7
