from __future__ import annotations

import math

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.queue import SliceAsk, SlicedSlot, SliceHold, SliceKind
from airflow_llmsched.planner.queue.slices import SliceBoard

NODE = NodeId("n0")
MIG = SlicedSlot(node=NODE, slot=0, kind=SliceKind.MIG, num_slices=7)
TIME = SlicedSlot(node=NODE, slot=1, kind=SliceKind.TIME, num_slices=2)


def board(*held: tuple[int, int, float]) -> SliceBoard:
    holds = [(SliceHold(node=NODE, slot=slot, num_slices=number), end_s) for slot, number, end_s in held]
    return SliceBoard.of(now_s=0.0, sliced=(TIME, MIG), held=holds)


def test_a_job_goes_where_the_fewest_slices_are_left_over():
    hold, part = board().fitting_now(SliceAsk(num_slices=2), end_s=10.0)
    assert (hold.slot, hold.num_slices, part) == (1, 2, 1.0)
    hold, part = board((1, 1, 50.0)).fitting_now(SliceAsk(num_slices=2), end_s=10.0)
    assert (hold.slot, part) == (0, 2 / 7)


def test_the_kind_that_is_asked_for_is_the_kind_that_is_given():
    hold, _ = board().fitting_now(SliceAsk(kind=SliceKind.MIG), end_s=10.0)
    assert hold.slot == 0
    assert board((1, 2, 9.0)).fitting_now(SliceAsk(kind=SliceKind.TIME), end_s=10.0) is None


def test_slices_are_never_given_twice():
    full = board((0, 7, 30.0), (1, 2, 20.0))
    assert full.fitting_now(SliceAsk(), end_s=5.0) is None
    assert full.soonest(SliceAsk(), runs_for_s=5.0) == (20.0, SliceHold(node=NODE, slot=1, num_slices=1))


def test_what_is_promised_to_one_is_used_by_another_only_until_then():
    some = board((0, 4, 20.0), (1, 2, 90.0))
    at_s, hold = some.soonest(SliceAsk(num_slices=6), runs_for_s=50.0)
    some.take(hold, start_s=at_s, end_s=at_s + 50.0)
    assert at_s == 20.0
    assert some.fitting_now(SliceAsk(num_slices=3), end_s=20.0) is not None
    assert some.fitting_now(SliceAsk(num_slices=3), end_s=21.0) is None
    assert some.fitting_now(SliceAsk(num_slices=1), end_s=99.0) is not None


def test_what_no_accelerator_has_is_never_promised():
    assert not board().could_ever(SliceAsk(num_slices=8))
    assert board().soonest(SliceAsk(num_slices=8), runs_for_s=1.0) is None
    assert board().smallest_part(SliceAsk(num_slices=2)) == 2 / 7
    endless = board((0, 7, math.inf), (1, 2, math.inf))
    assert endless.soonest(SliceAsk(), runs_for_s=1.0) is None


def test_slices_of_an_accelerator_that_is_no_longer_divided_are_left_out():
    assert board((5, 1, 10.0)).fitting_now(SliceAsk(), end_s=1.0) is not None
