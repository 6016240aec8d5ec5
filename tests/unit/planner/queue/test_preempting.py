from __future__ import annotations

import math

from airflow_llmsched.domain.queue import PriorityClass, Reclaim
from airflow_llmsched.domain.queue_decision import Preempt
from airflow_llmsched.planner.queue.desk import Desk
from airflow_llmsched.planner.queue.preempting import lost_work_accelerator_s, preempt
from tests.support.queues import CLASSES, gang, quota, racks, runs_on, state_of, waits

URGENT = waits(gang("urgent", 8, cls="urgent", required_level="rack"))


def victims(*gangs: object, asked=URGENT, start_s: float = math.inf, **others: object) -> list[Preempt]:
    desk = Desk.of(state_of(racks(2), asked, *gangs, **others))  # type: ignore[arg-type]
    return preempt(desk, asked, start_s=start_s)


def names(found: list[Preempt]) -> list[str]:
    return [each.gang for each in found]


def test_the_gang_that_loses_least_leaves_and_says_what_it_costs():
    found = victims(
        runs_on(gang("a", 8, cls="low"), {"r0n0": 4, "r0n1": 4}, saved=-50.0, restart_s=10.0),
        runs_on(gang("b", 8, cls="low"), {"r1n0": 4, "r1n1": 4}, saved=-30.0, restart_s=20.0, yield_s=15.0),
    )
    (order,) = found
    assert (order.gang, order.beneficiary, order.domain) == ("b", "urgent", ("b0", "r1"))
    assert (order.cost_accelerator_s, order.leaves_by_s, order.is_reclaim) == (8 * 50.0, 15.0, False)


def test_an_equal_or_higher_class_is_never_preempted():
    for cls in ("urgent", "normal"):
        asked = waits(gang("asks", 8, cls="normal"))
        held = runs_on(gang("a", 16, cls=cls), {f"r{rack}n{node}": 4 for rack in (0, 1) for node in (0, 1)})
        assert victims(held, asked=asked) == []


def test_a_gang_is_protected_for_as_long_as_its_class_says():
    classes = (*CLASSES[:2], PriorityClass(name="low", priority=0, protected_s=150.0))
    held = {"r0n0": 4, "r0n1": 4}
    young, old = (runs_on(gang("a", 8, cls="low"), held, started=started) for started in (-149.0, -150.0))
    busy = runs_on(gang("b", 8, cls="urgent"), {"r1n0": 4, "r1n1": 4})
    assert victims(young, busy, classes=classes) == []
    assert names(victims(old, busy, classes=classes)) == ["a"]


def test_nobody_leaves_when_that_would_not_be_sooner():
    held = [runs_on(gang(f"g{rack}", 8, cls="low"), {f"r{rack}n0": 4, f"r{rack}n1": 4}) for rack in (0, 1)]
    assert victims(*held, start_s=60.0) == []
    assert len(victims(*held, start_s=61.0)) == 1


def test_who_is_leaving_already_is_not_told_again_and_for_whom_others_leave_waits():
    leaving = runs_on(gang("a", 8, cls="low"), {"r0n0": 4, "r0n1": 4}, yields_to="other")
    other = runs_on(gang("b", 8, cls="low"), {"r1n0": 4, "r1n1": 4})
    assert names(victims(leaving, other)) == ["b"]
    for_it = runs_on(gang("a", 8, cls="low"), {"r0n0": 4, "r0n1": 4}, yields_to="urgent")
    assert victims(for_it, other) == []


def test_a_class_or_a_queue_may_not_preempt_at_all():
    held = runs_on(gang("a", 16, cls="low"), {f"r{rack}n{node}": 4 for rack in (0, 1) for node in (0, 1)})
    meek = (PriorityClass(name="urgent", priority=100, may_preempt=False), *CLASSES[1:])
    assert victims(held, classes=meek) == []
    assert victims(held, policy={"may_preempt": False}) == []
    assert names(victims(held)) == ["a"]


def test_a_gang_that_its_quota_keeps_preempts_lower_ones_of_its_own_team():
    mine = runs_on(gang("mine", 4, cls="low"), {"r0n0": 4}, saved=-500.0)
    others = runs_on(gang("others", 4, cls="low", team="blue"), {"r0n1": 4})
    asked = waits(gang("asks", 8, cls="urgent"))
    found = victims(mine, others, asked=asked, quotas=(quota("red", 8),))
    assert names(found) == ["mine"]


def test_a_team_that_never_reclaims_preempts_its_own_gangs_only():
    others = runs_on(
        gang("a", 16, cls="low", team="blue"), {f"r{rack}n{node}": 4 for rack in (0, 1) for node in (0, 1)}
    )
    assert victims(others, quotas=(quota("red", 16, reclaim=Reclaim.NEVER),)) == []
    assert names(victims(others, quotas=(quota("red", 16),))) == ["a"]


def test_what_is_borrowed_is_reclaimed_from_an_equal_class_only_where_the_lender_says_so():
    held = [
        runs_on(gang(f"b{rack}{node}", 4, team="blue"), {f"r{rack}n{node}": 4}, started=-100.0 - rack)
        for rack in (0, 1)
        for node in (0, 1)
    ]
    asked = waits(gang("asks", 8))
    for rule, expected in ((Reclaim.LOWER_PRIORITY, []), (Reclaim.ANY, ["b00", "b01"])):
        both = (quota("red", 8, cohort="c", reclaim=rule), quota("blue", 8, cohort="c"))
        assert names(victims(*held, asked=asked, quotas=both)) == expected
    both = (quota("red", 8, cohort="c", reclaim=Reclaim.ANY), quota("blue", 8, cohort="c"))
    assert all(each.is_reclaim for each in victims(*held, asked=asked, quotas=both))


def test_what_is_within_a_teams_own_quota_is_not_reclaimed():
    held = [runs_on(gang(f"b{node}", 4, team="blue"), {f"r0n{node}": 4}) for node in (0, 1)]
    both = (quota("red", 4, cohort="c", reclaim=Reclaim.ANY), quota("blue", 8, cohort="c"))
    assert victims(*held, asked=waits(gang("asks", 12)), quotas=both) == []
    borrower = waits(gang("asks", 12))
    both = (quota("red", 8, cohort="c", reclaim=Reclaim.ANY), quota("blue", 4, cohort="c"))
    assert victims(*held, asked=borrower, quotas=both) == [], "who would borrow himself reclaims nothing"


def test_who_borrows_preempts_nobody_who_is_within_his_quota():
    held = [runs_on(gang(f"b{node}", 4, cls="low", team="blue"), {f"r0n{node}": 4}) for node in (0, 1)]
    busy = runs_on(gang("x", 8, cls="urgent", team="green"), {"r1n0": 4, "r1n1": 4})
    asked = waits(gang("asks", 8, cls="urgent"))
    red = quota("red", 4, cohort="c")
    assert victims(*held, busy, asked=asked, quotas=(red, quota("blue", 12, cohort="c"))) == []
    own = (quota("red", 8, cohort="c"), quota("blue", 12, cohort="c"))
    assert names(victims(*held, busy, asked=asked, quotas=own)) == ["b0", "b1"]
    both_borrow = (red, quota("blue", 4, cohort="c"), quota("grey", 99, cohort="c"))
    assert names(victims(*held, busy, asked=waits(gang("asks", 4, cls="urgent")), quotas=both_borrow[1:])) == ["b0"]
    five = waits(gang("asks", 5, cls="urgent"))
    assert victims(*held, busy, asked=five, quotas=both_borrow) == [], (
        "blue is within its quota without one of its gangs"
    )


def test_lost_work_is_what_is_not_saved_and_the_restart():
    running = runs_on(gang("a", 8), {"r0n0": 4, "r0n1": 4}, saved=-30.0, restart_s=5.0)
    assert lost_work_accelerator_s(running, now_s=0.0) == 8 * 35.0
    assert lost_work_accelerator_s(running, now_s=-40.0) == 8 * 5.0, "a save that is yet to come loses nothing"
