from __future__ import annotations

import numpy as np
import pytest

from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.domain.queue import QueueOrder, Reservation, TeamUsage, WaitingGang
from airflow_llmsched.planner.queue.desk import Desk
from airflow_llmsched.planner.queue.order import Shares, groups, lineup
from airflow_llmsched.planner.queue.usage import asked_Q
from tests.support.queues import gang, quota, racks, runs_on, state_of, waits


def reserved(key: str, start: float, *, is_claim: bool = False) -> Reservation:
    return Reservation(
        gang=RunKey(key), start_s=start, until_s=None, num_slots={}, is_promised=True, is_claim=is_claim
    )  # fmt: skip


def order_of(*gangs: object, **others: object) -> list[str]:
    """Return the order in which gangs come if each starts and is counted."""
    state = state_of(racks(8), *gangs, **others)  # type: ignore[arg-type]
    desk = Desk.of(state)
    found: list[str] = []
    for group in groups(state):
        for each in lineup(group, state.policy, desk.shares, desk.team_names):
            desk.shares.take(desk.team[each.gang.team], asked_Q(each.gang))
            found.append(each.gang.key)
    return found


def test_a_higher_class_goes_first_however_late_it_comes():
    gangs = [waits(gang("l", cls="low"), since=-50.0), waits(gang("u", cls="urgent"), since=-1.0), waits(gang("n"))]
    assert order_of(*gangs) == ["u", "n", "l"]


def test_whoever_others_were_preempted_for_goes_first_then_who_has_waited_too_long():
    claim = WaitingGang(gang=gang("claim", cls="normal"), since_s=0.0, reserved=reserved("claim", 5.0, is_claim=True))
    old = [waits(gang("old", cls="low"), since=-200.0), waits(gang("older", cls="low"), since=-300.0)]
    urgent = waits(gang("urgent", cls="urgent"))
    assert order_of(urgent, *old, claim, policy={"starving_after_s": 150.0}) == ["claim", "older", "old", "urgent"]


def test_whoever_was_promised_a_start_goes_first_in_his_class():
    promised = WaitingGang(gang=gang("p"), since_s=0.0, reserved=reserved("p", 50.0))
    assert order_of(waits(gang("a"), since=-9.0), promised, waits(gang("u", cls="urgent"))) == ["u", "p", "a"]


def test_teams_take_turns_by_what_they_hold():
    gangs = [waits(gang(f"{team}{number}", team=team), since=number) for team in ("red", "blue") for number in range(3)]
    assert order_of(*gangs) == ["blue0", "red0", "blue1", "red1", "blue2", "red2"]
    assert order_of(*gangs, runs_on(gang("x", 8, team="blue"), {"r0n0": 4, "r0n1": 4}))[:2] == ["red0", "red1"]


def test_a_team_of_twice_the_weight_has_twice_the_share():
    gangs = [waits(gang(f"{team}{number}", team=team), since=number) for team in ("red", "blue") for number in range(6)]
    first = order_of(*gangs, quotas=(quota("red", 64, weight=2.0), quota("blue", 64)))[:6]
    assert sum(key.startswith("red") for key in first) == 4


def test_what_a_team_has_had_counts_until_it_is_forgotten():
    gangs = [waits(gang(team, team=team)) for team in ("blue", "red")]
    usage = (TeamUsage(team="blue", accelerator_s=1e6, at_s=-3600.0),)
    assert order_of(*gangs, usage=usage) == ["red", "blue"]
    assert order_of(*gangs, usage=usage, policy={"half_life_s": 10.0}) == ["blue", "red"]
    assert order_of(*gangs, usage=usage, policy={"history_ratio": 0.0}) == ["blue", "red"]


def test_the_resource_that_a_team_has_most_of_makes_its_share():
    shares = Shares(
        held_TQ=np.array([[8.0, 0.0, 0.0], [2.0, 90.0, 0.0]]),
        history_TQ=np.zeros((2, 3)),
        capacity_Q=np.array([16.0, 100.0, 1e30]),
        weight_T=np.ones(2),
        history_ratio=0.0,
    )
    assert (shares.of(0), shares.of(1)) == pytest.approx((0.5, 0.9))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (QueueOrder.FIRST_COME, ["big", "short", "small"]),
        (QueueOrder.SHORTEST_FIRST, ["short", "small", "big"]),
        (QueueOrder.LARGEST_FIRST, ["big", "short", "small"]),
    ],
)
def test_a_queue_may_have_another_order(order: QueueOrder, expected: list[str]):
    gangs = [
        waits(gang("big", 8), since=-3.0, runs=None),
        waits(gang("short", 4), since=-2.0, runs=10.0),
        waits(gang("small", 1), since=-1.0, runs=100.0),
    ]
    assert order_of(*gangs, policy={"order": order}) == expected
