from __future__ import annotations

import pytest

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.layout import PlacementWish, RankGroup
from airflow_llmsched.domain.queue import Limits, SliceAsk, SlicedSlot, SliceKind
from airflow_llmsched.domain.queue_decision import WaitReason
from airflow_llmsched.planner.queue.desk import Desk
from airflow_llmsched.planner.queue.reasons import detail
from tests.support.queues import decided, gang, quota, racks, runs_on, state_of, waits

HALF = runs_on(gang("x", 4), {"r0n0": 2, "r1n0": 2})
SLICED = (SlicedSlot(node=NodeId("r1n1"), slot=3, kind=SliceKind.MIG, num_slices=2),)


def said(asked: object, *others: object, **rules: object) -> str:
    """Return the sentence of the gang ``w``."""
    decision = decided(racks(2), asked, *others, **rules)  # type: ignore[arg-type]
    return next(each.detail for each in decision.waits if each.gang == "w")


def test_a_sentence_says_what_is_needed_and_what_there_is():
    assert said(waits(gang("w", 13)), HALF) == "needs 13 accelerators; 12 are free"
    full = runs_on(gang("x", 16), {f"r{rack}n{node}": 4 for rack in (0, 1) for node in (0, 1)})
    assert said(waits(gang("w", 1)), full) == "needs 1 accelerator; 0 are free"
    level = said(waits(gang("w", 8, tp=4, required_level="rack")), HALF)
    assert level == "needs 8 accelerators in groups of 4 in one rack; 12 are free, but at most 4 together"
    wish = PlacementWish(group=RankGroup.DP, level="rack", required=True)
    groups = said(waits(gang("w", 8, group_levels=(wish,))), HALF)
    assert groups == "needs 8 accelerators, each dp group of 8 in one rack; 12 are free, but at most 0 together"
    capacity = Limits(host_bytes=4.0)
    busy = runs_on(gang("x", 1, host_bytes=3.0), {"r0n0": 1})
    memory = said(waits(gang("w", 8, host_bytes=2.0)), busy, capacity=capacity)
    assert memory == "needs 8 accelerators; host memory or network bandwidth for them is used up"


def test_quotas_are_told_with_their_figures():
    assert said(waits(gang("w", 5)), HALF, quotas=(quota("red", 8),)).endswith("team red uses 4 of the 8 that it may")
    both = (quota("red", 8, cohort="c"), quota("blue", 4, cohort="c"))
    used = runs_on(gang("y", 4, team="blue"), {"r0n1": 4})
    cohort = said(waits(gang("w", 5)), HALF, used, quotas=both)
    assert cohort.endswith("the teams of its cohort use 8, and none has enough left to lend")
    over = said(waits(gang("w", 9)), quotas=(quota("red", 8),))
    assert over.endswith("may have 8 at most, or its cohort lends less. Raise its quota")


def test_what_never_fits_says_what_would():
    assert said(waits(gang("w", 17))).endswith("with all of them free, 16 fit. Ask for fewer, or for a wider level")
    assert said(waits(gang("w", 1, slices=SliceAsk(num_slices=3))), sliced=SLICED).endswith("is divided into so many")


def test_what_the_fleet_has_too_little_of_is_named():
    asked = waits(gang("w", 4, host_bytes=9.0))
    assert said(asked, capacity=Limits(host_bytes=8.0)).endswith("less host memory or network bandwidth than it needs")


def test_promises_and_preemptions_are_named():
    ahead = waits(gang("big", 16), since=-9.0)
    assert said(ahead, HALF, waits(gang("w", 4), runs=5000.0)).endswith("one of the 1 gangs that were promised a start")
    low = runs_on(gang("low", 16, cls="low"), {f"r{rack}n{node}": 4 for rack in (0, 1) for node in (0, 1)})
    assert said(waits(gang("w", 4)), low) == "needs 4 accelerators; waits until low has left"
    strict = said(ahead, HALF, waits(gang("w", 4)), policy={"may_backfill": False})
    assert strict == "needs 4 accelerators; a gang before it waits, and the queue does not backfill"


@pytest.mark.parametrize("reason", WaitReason)
def test_every_reason_has_a_sentence(reason: WaitReason):
    asked = gang("w", 1, slices=SliceAsk(kind=SliceKind.MIG)) if reason is WaitReason.NO_SLICE else gang("w", 8)
    desk = Desk.of(state_of(racks(2), waits(asked), quotas=(quota("red", 8, cohort="c"),), sliced=SLICED))
    assert detail(desk, asked, reason).startswith("needs ")
