from __future__ import annotations

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.domain.queue import Limits, QueueState
from airflow_llmsched.planner.queue.desk import Desk
from airflow_llmsched.planner.queue.forecast import Forecast
from tests.support.queues import gang, quota, racks, runs_on, state_of

RUNS = (
    runs_on(gang("a", 4), {"r0n0": 4}, ends=10.0),
    runs_on(gang("b", 4, team="blue"), {"r0n1": 4}, ends=20.0),
)


def forecast(state: QueueState, *, num_waiting: int = 8) -> Forecast:
    desk = Desk.of(state)
    return Forecast.of(desk.timeline, desk.table, num_waiting=num_waiting, unknown_run_s=1000.0)


def test_gangs_start_one_after_the_other_as_others_end():
    expected = forecast(state_of(racks(1), *RUNS))
    assert expected.start_s(team=1, num_slots=4, runs_for_s=5.0) == 10.0
    assert expected.start_s(team=1, num_slots=8, runs_for_s=5.0) == 20.0
    assert expected.start_s(team=1, num_slots=1, runs_for_s=5.0) == 15.0, "into the gap before the large one"
    assert expected.start_s(team=1, num_slots=5, runs_for_s=5.0) == 25.0


def test_what_is_larger_than_all_there_is_never_starts():
    assert forecast(state_of(racks(1), *RUNS)).start_s(team=1, num_slots=9, runs_for_s=1.0) is None


def test_a_team_waits_for_its_quota():
    expected = forecast(state_of(racks(1), *RUNS, quotas=(quota("blue", 4), quota("red", 8))))
    assert expected.start_s(team=0, num_slots=4, runs_for_s=5.0) == 20.0


def test_what_is_promised_is_not_given_away():
    desk = Desk.of(state_of(racks(1), *RUNS))
    asked = gang("p", 8)
    share = desk.room.choose(desk.room.whole_N, asked)
    wanted_Q = desk.timeline.running["a"].asked_Q * 2
    desk.timeline.promise(desk.span(asked, share, wanted_Q, start_s=20.0, end_s=50.0))
    expected = Forecast.of(desk.timeline, desk.table, num_waiting=2, unknown_run_s=1000.0)
    assert expected.start_s(team=1, num_slots=4, runs_for_s=10.0) == 10.0
    assert expected.start_s(team=1, num_slots=4, runs_for_s=11.0) == 50.0


def test_a_gang_that_never_ends_may_be_counted():
    expected = forecast(state_of(racks(1), *RUNS))
    assert expected.start_s(team=1, num_slots=4, runs_for_s=math.inf) == 10.0
    assert expected.start_s(team=1, num_slots=5, runs_for_s=1.0) is None


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_no_more_is_ever_counted_than_there_is(seed):
    rng = random.Random(seed)
    expected = forecast(state_of(racks(1), *RUNS), num_waiting=12)
    spans = [(0.0, 10.0, 4), (0.0, 20.0, 4)]
    for _ in range(12):
        size, runs_for_s = rng.randint(1, 8), float(rng.randint(1, 20))
        start_s = expected.start_s(team=1, num_slots=size, runs_for_s=runs_for_s)
        assert start_s is not None
        spans.append((start_s, start_s + runs_for_s, size))
    for at_s, _, _ in spans:
        assert sum(size for start_s, end_s, size in spans if start_s <= at_s < end_s) <= 8


def test_the_next_change_is_the_next_end():
    assert forecast(state_of(racks(1), *RUNS)).next_change_s == 10.0
    assert forecast(state_of(racks(1))).next_change_s is None


def test_usage_of_teams_is_told_over_time():
    expected = forecast(state_of(racks(1), *RUNS))
    at_s_B, free_B, *used_TB = expected.rows_RB[:, : expected.num_moments].tolist()
    assert at_s_B == [0.0, 10.0, 20.0]
    assert free_B == [0.0, 4.0, 8.0]
    assert used_TB == [[4.0, 4.0, 0.0], [4.0, 0.0, 0.0]]


def test_what_cohorts_have_lent_is_counted_as_gangs_come():
    quotas = (quota("red", 4, cohort="c"), quota("blue", 4, cohort="c", lending=Limits(num_accelerators=1.0)))
    expected = forecast(state_of(racks(1), *RUNS, quotas=quotas))
    for number in range(6):
        expected.start_s(team=number % 2, num_slots=1 + number % 3, runs_for_s=7.0 + number)
        rows_RB, number_of_moments = expected.rows_RB, expected.num_moments
        over_CB = expected.table.over_CB(rows_RB[2:-1, :number_of_moments])
        assert rows_RB[-1:, :number_of_moments].tolist() == over_CB.tolist()
