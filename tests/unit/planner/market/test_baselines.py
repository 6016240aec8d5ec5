from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.planner.market.baselines import GreedySpot, OnDemandOnly, UniformProgress
from airflow_llmsched.planner.market.rental import Holding, RentalPolicy, RentalView
from airflow_llmsched.planner.market.replay import replay
from airflow_llmsched.planner.market.values import SpotTerms

TERMS = SpotTerms(time_s=6000.0, work_s=4800.0, changeover_s=20.0, spot_ratio=0.3)
TICK_S = 10.0


def view_of(*, left_s: float, work_s: float, holding: Holding, up: bool) -> RentalView:
    return RentalView(
        left_s=left_s,
        tick_s=TICK_S,
        work_s_N=np.array([work_s]),
        overhead_s_N=np.zeros(1),
        holding_N=np.array([int(holding)]),
        pool_N=np.zeros(1, dtype=np.int64),
        up_ZN=np.array([[up]]),
    )


def chosen(policy: RentalPolicy, view: RentalView) -> Holding:
    policy.begin(TERMS, num_runs=1, num_pools=1)
    return Holding(int(policy.choose(view).holding_N[0]))


@pytest.mark.parametrize(
    ("left_s", "work_s", "holding", "up", "expected"),
    [
        (6000.0, 4800.0, Holding.NOTHING, True, Holding.SPOT),
        (6000.0, 4800.0, Holding.NOTHING, False, Holding.NOTHING),
        (4829.0, 4800.0, Holding.NOTHING, True, Holding.ON_DEMAND),
    ],
)
def test_greedy_takes_spot_and_waits_for_it_until_it_must_not(
    left_s: float, work_s: float, holding: Holding, up: bool, expected: Holding
) -> None:
    assert chosen(GreedySpot(), view_of(left_s=left_s, work_s=work_s, holding=holding, up=up)) is expected


@pytest.mark.parametrize(
    ("work_s", "holding", "up", "expected"),
    [
        (2400.0, Holding.NOTHING, False, Holding.NOTHING),  # on pace: half the time, half the work
        (2500.0, Holding.NOTHING, False, Holding.ON_DEMAND),  # behind it
        (2500.0, Holding.NOTHING, True, Holding.SPOT),  # spot even so
        (2390.0, Holding.ON_DEMAND, True, Holding.ON_DEMAND),  # ahead, but not by two changeovers
        (2300.0, Holding.ON_DEMAND, True, Holding.SPOT),
        (2300.0, Holding.ON_DEMAND, False, Holding.NOTHING),
    ],
)
def test_uniform_progress_keeps_its_four_rules(work_s: float, holding: Holding, up: bool, expected: Holding) -> None:
    assert chosen(UniformProgress(), view_of(left_s=3000.0, work_s=work_s, holding=holding, up=up)) is expected


def test_uniform_progress_without_slack_stays_on_demand_to_the_end() -> None:
    policy = UniformProgress()
    policy.begin(TERMS, num_runs=1, num_pools=1)
    late = view_of(left_s=2445.0, work_s=2400.0, holding=Holding.NOTHING, up=True)
    assert policy.choose(late).holding_N[0] == Holding.ON_DEMAND
    later = view_of(left_s=2000.0, work_s=1000.0, holding=Holding.ON_DEMAND, up=True)
    assert policy.choose(later).holding_N[0] == Holding.ON_DEMAND


@settings(max_examples=40, deadline=None)
@given(
    spells=st.lists(st.integers(min_value=1, max_value=120), min_size=1, max_size=40),
    starts_up=st.booleans(),
    policy=st.sampled_from([OnDemandOnly(), GreedySpot(), UniformProgress()]),
)
def test_none_of_them_is_ever_late(spells: list[int], starts_up: bool, policy: RentalPolicy) -> None:
    up_T = np.repeat([(number % 2 == 0) == starts_up for number in range(len(spells))], spells)
    up_T = np.resize(up_T, 600)
    done = replay(up_T[None], tick_s=TICK_S, starts_N=np.array([0]), terms=TERMS, policy=policy)
    assert done.in_time_N.all()
