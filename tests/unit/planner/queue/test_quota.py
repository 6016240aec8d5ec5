from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.queue import Limits, Reclaim, TeamQuota
from airflow_llmsched.domain.queue_decision import WaitReason
from airflow_llmsched.planner.queue.quota import QuotaTable
from tests.support.queues import quota

TEAMS = ("blue", "green", "red")


def hinders(quotas: list[TeamQuota], used: dict[str, float], team: str, asked: float) -> WaitReason | None:
    usage_TQ = np.zeros((3, 3))
    for name, amount in used.items():
        usage_TQ[TEAMS.index(name), 0] = amount
    table = QuotaTable.of(quotas, TEAMS)
    return table.hinders(usage_TQ, team=TEAMS.index(team), asked_Q=np.array([asked, 0.0, 0.0]))


def limits(number: float) -> Limits:
    return Limits(num_accelerators=number)


def test_a_team_without_a_quota_is_not_limited():
    assert hinders([], {"red": 1e9}, "red", 1e9) is None


def test_a_team_without_a_cohort_has_its_nominal_quota_and_no_more():
    assert hinders([quota("red", 8)], {"red": 4.0}, "red", 4.0) is None
    assert hinders([quota("red", 8)], {"red": 4.0}, "red", 5.0) is WaitReason.TEAM_QUOTA


def test_a_team_borrows_what_others_of_its_cohort_leave_unused():
    both = [quota("red", 8, cohort="c"), quota("blue", 8, cohort="c")]
    assert hinders(both, {"red": 8.0, "blue": 2.0}, "red", 6.0) is None
    assert hinders(both, {"red": 8.0, "blue": 2.0}, "red", 7.0) is WaitReason.COHORT_QUOTA
    assert hinders([*both, quota("green", 8)], {"red": 8.0}, "green", 9.0) is WaitReason.TEAM_QUOTA


def test_a_team_borrows_no_more_than_its_borrowing_limit():
    both = [quota("red", 8, cohort="c", borrowing=limits(2)), quota("blue", 8, cohort="c")]
    assert hinders(both, {"red": 8.0}, "red", 2.0) is None
    assert hinders(both, {"red": 8.0}, "red", 3.0) is WaitReason.TEAM_QUOTA


def test_what_a_team_does_not_lend_is_kept_for_it():
    both = [quota("red", 8, cohort="c"), quota("blue", 8, cohort="c", lending=limits(3))]
    assert hinders(both, {}, "red", 11.0) is None
    assert hinders(both, {}, "red", 12.0) is WaitReason.COHORT_QUOTA
    assert hinders(both, {"red": 11.0}, "blue", 5.0) is None
    assert hinders(both, {"red": 11.0}, "blue", 6.0) is WaitReason.COHORT_QUOTA


def test_what_a_gang_does_not_ask_for_does_not_hinder_it():
    table = QuotaTable.of([TeamQuota(team="red", nominal=Limits(num_accelerators=8.0, host_bytes=10.0))], TEAMS)
    usage_TQ = np.zeros((3, 3))
    usage_TQ[2, 1] = 99.0
    assert table.hinders(usage_TQ, team=2, asked_Q=np.array([1.0, 0.0, 0.0])) is None
    assert table.hinders(usage_TQ, team=2, asked_Q=np.array([1.0, 1.0, 0.0])) is WaitReason.TEAM_QUOTA


def test_what_no_team_may_ever_have_is_told_apart_from_what_is_used():
    table = QuotaTable.of([quota("red", 8, cohort="c"), quota("blue", 8, cohort="c")], TEAMS)
    assert not table.never_allows(team=2, asked_Q=np.array([16.0, 0.0, 0.0]))
    assert table.never_allows(team=2, asked_Q=np.array([17.0, 0.0, 0.0]))


def test_who_borrows_and_who_stays_within_his_quota():
    table = QuotaTable.of([quota("red", 8, cohort="c"), quota("blue", 8, cohort="c")], TEAMS)
    usage_TQ = np.zeros((3, 3))
    usage_TQ[:, 0] = [8.0, 50.0, 9.0]
    assert table.borrows_T(usage_TQ).tolist() == [False, False, True]
    assert table.is_within(usage_TQ, team=0, asked_Q=np.zeros(3))
    assert not table.is_within(usage_TQ, team=0, asked_Q=np.array([1.0, 0.0, 0.0]))


def test_rules_of_reclaiming_are_read_team_by_team():
    table = QuotaTable.of([quota("red", 8, reclaim=Reclaim.ANY), quota("blue", 8, reclaim=Reclaim.NEVER)], TEAMS)
    assert table.reclaims_any_T.tolist() == [False, False, True]
    assert table.reclaims_T.tolist() == [False, True, True]


amounts = st.integers(0, 10)


@given(
    nominal=st.tuples(amounts, amounts), lent=st.tuples(amounts, amounts), borrowed=amounts, used=amounts, asked=amounts
)
def test_headroom_is_the_most_that_hinders_nobody(nominal, lent, borrowed, used, asked):
    quotas = [
        quota("red", nominal[0], cohort="c", lending=limits(lent[0]), borrowing=limits(borrowed)),
        quota("blue", nominal[1], cohort="c", lending=limits(lent[1])),
    ]
    table = QuotaTable.of(quotas, TEAMS)
    usage_TQ = np.zeros((3, 3))
    usage_TQ[0, 0] = min(used, nominal[1])
    own_TB = usage_TQ[:, :1]
    room = table.headroom_B(own_TB[2], table.over_CB(own_TB)[0], team=2)[0]
    reason = table.hinders(usage_TQ, team=2, asked_Q=np.array([float(asked + 1), 0.0, 0.0]))
    assert (reason is None) == (asked + 1 <= room)


def test_headroom_is_told_for_many_moments_at_once():
    table = QuotaTable.of([quota("red", 8, cohort="c"), quota("blue", 4, cohort="c")], TEAMS)
    used_TB = np.array([[0.0, 4.0, 6.0], [0.0, 0.0, 0.0], [0.0, 8.0, 0.0]])
    assert table.headroom_B(used_TB[2], table.over_CB(used_TB)[0], team=2).tolist() == pytest.approx([12.0, 0.0, 6.0])
