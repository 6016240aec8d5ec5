from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.planner.market.replay import replay
from airflow_llmsched.planner.market.spot_policy import SpotPolicy
from airflow_llmsched.planner.market.values import NUM_CELLS, SpotTerms
from airflow_llmsched.planner.market.within_budget import soonest_s
from airflow_llmsched.units import HOUR_S
from tests.support.pools import TICK_S, drawn, model_of

TERMS = SpotTerms(time_s=60 * HOUR_S, work_s=20 * HOUR_S, changeover_s=0.2 * HOUR_S, spot_ratio=0.3)
CELL_H = 60 / NUM_CELLS
HALF_UP = model_of(loss_per_hour=0.3, return_per_hour=0.3)


def soonest_h(budget_h: float, *, is_up: bool | None = None, terms: SpotTerms = TERMS) -> float | None:
    found = soonest_s(HALF_UP, terms, budget_s=budget_h * HOUR_S, is_up=is_up)
    return None if found is None else found / HOUR_S


def test_money_for_on_demand_capacity_buys_the_soonest_end_there_is() -> None:
    assert soonest_h(21.0) == pytest.approx(20.2, abs=2 * CELL_H)


def test_less_money_takes_longer_until_there_is_too_little_for_any_time() -> None:
    times = [soonest_h(budget_h) for budget_h in (20.5, 16.0, 12.0, 9.0, 7.5)]
    assert all(time is not None for time in times)
    assert times == sorted(times)
    assert times[-1] > times[0] + 10
    assert soonest_h(5.9) is None  # all of it on spot, and not interrupted once, would be 6.06


def test_capacity_that_is_there_now_ends_sooner() -> None:
    assert soonest_h(10.0, is_up=True) < soonest_h(10.0) < soonest_h(10.0, is_up=False)


def test_slow_on_demand_capacity_needs_its_time() -> None:
    slow = replace(TERMS, demand_speed_ratio=0.5, demand_ratio=0.4, spot_speed_ratio=0.5, spot_ratio=0.2)
    assert soonest_h(100.0, terms=slow) == pytest.approx(40.2, abs=2 * CELL_H)


@pytest.mark.parametrize("budget_h", [9.0, 13.0])
def test_run_with_the_deadline_that_is_found_costs_no_more_than_the_budget_on_average(budget_h: float) -> None:
    time_h = soonest_h(budget_h)
    assert time_h is not None
    terms = replace(TERMS, time_s=time_h * HOUR_S)
    up_T = drawn(HALF_UP, hours=9000, seed=5)
    starts_N = np.arange(0, len(up_T) - int(60 * HOUR_S / TICK_S), 307)
    done = replay(up_T[None], tick_s=TICK_S, starts_N=starts_N, terms=terms, policy=SpotPolicy(HALF_UP))
    assert done.in_time_N.all()
    assert done.cost_s_N.mean() / HOUR_S == pytest.approx(budget_h, rel=0.04)
