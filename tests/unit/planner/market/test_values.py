from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.replay import replay
from airflow_llmsched.planner.market.spot_policy import SpotPolicy
from airflow_llmsched.planner.market.values import NUM_CELLS, SpotTerms, States, solve
from airflow_llmsched.units import HOUR_S
from tests.support.pools import TICK_S, drawn, model_of

TERMS = SpotTerms(time_s=30 * HOUR_S, work_s=20 * HOUR_S, changeover_s=0.2 * HOUR_S, spot_ratio=0.3)


def cost_h(state: int, *, loss_per_hour: float, return_per_hour: float, terms: SpotTerms = TERMS) -> float:
    values = solve(model_of(loss_per_hour=loss_per_hour, return_per_hour=return_per_hour), terms)
    at = values.at(np.array([state]), left_s=terms.time_s, work_s_N=np.array([terms.work_s]))
    return float(at[0, 0]) / HOUR_S


def test_capacity_that_stays_costs_its_price_and_one_changeover() -> None:
    cost = cost_h(States.IDLE_UP, loss_per_hour=1e-9, return_per_hour=1.0)
    assert cost == pytest.approx(0.3 * 20.2, rel=0.01)


def test_capacity_that_never_comes_costs_what_on_demand_costs() -> None:
    cost = cost_h(States.IDLE_DOWN, loss_per_hour=1.0, return_per_hour=1e-9)
    assert cost == pytest.approx(20.2, rel=0.01)


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"demand_ratio": 0.0}, "demand_ratio"),
        ({"spot_speed_ratio": float("inf")}, "spot_speed_ratio"),
        ({"base_ratio": -1.0}, "base_ratio"),
        ({"base_speed_ratio": 0.5}, "base_ratio"),  # what works is paid for
    ],
)
def test_prices_and_speeds_that_mean_nothing_are_refused(values: dict[str, float], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        replace(TERMS, **values)
    assert refused.value.path == path


def test_slower_capacity_takes_longer_and_costs_its_price_for_longer() -> None:
    slow = replace(TERMS, demand_speed_ratio=0.8, demand_ratio=0.6)
    cost = cost_h(States.ON_DEMAND_DOWN, loss_per_hour=1.0, return_per_hour=1e-9, terms=slow)
    assert cost == pytest.approx(0.6 * 20 / 0.8, rel=0.01)


def test_base_of_a_mix_works_while_nothing_more_is_held() -> None:
    mix = replace(TERMS, base_ratio=0.5, base_speed_ratio=0.8)
    cost = cost_h(States.IDLE_DOWN, loss_per_hour=1.0, return_per_hour=1e-9, terms=mix)
    assert cost == pytest.approx(0.5 * 20 / 0.8, rel=0.01)


def test_mix_starts_over_when_its_spot_nodes_go() -> None:
    mix = replace(TERMS, base_ratio=0.5, base_speed_ratio=0.8, changeover_s=2 * HOUR_S)
    cost = cost_h(States.SPOT, loss_per_hour=1e4, return_per_hour=1e-9, terms=mix)
    assert cost == pytest.approx(0.5 * (20 / 0.8 + 2), rel=0.01)


def test_what_is_held_needs_no_changeover() -> None:
    assert cost_h(States.ON_DEMAND_DOWN, loss_per_hour=1.0, return_per_hour=1e-9) == pytest.approx(20.0, rel=0.01)
    assert cost_h(States.SPOT, loss_per_hour=1e-9, return_per_hour=1.0) == pytest.approx(6.0, rel=0.01)


def test_spot_that_costs_more_than_on_demand_is_never_worth_it() -> None:
    dear = SpotTerms(time_s=TERMS.time_s, work_s=TERMS.work_s, changeover_s=TERMS.changeover_s, spot_ratio=1.4)
    cost = cost_h(States.IDLE_UP, loss_per_hour=1e-9, return_per_hour=1.0, terms=dear)
    assert cost == pytest.approx(20.2, rel=0.01)


def test_more_work_never_costs_less_and_more_time_never_more() -> None:
    values = solve(model_of(loss_per_hour=0.5, return_per_hour=0.5), TERMS)
    rounding = 1e-6 * values.cost_TSKW.max()
    assert (np.diff(values.cost_TSKW, axis=-1) >= -rounding).all()
    assert (np.diff(values.cost_TSKW, axis=0) <= rounding).all()


@pytest.mark.parametrize("changeover_h", [0.0, 0.03, 0.37])
def test_changeovers_need_not_be_whole_cells(changeover_h: float) -> None:
    terms = SpotTerms(time_s=30 * HOUR_S, work_s=20 * HOUR_S, changeover_s=changeover_h * HOUR_S, spot_ratio=0.3)
    cost = cost_h(States.IDLE_DOWN, loss_per_hour=1.0, return_per_hour=1e-9, terms=terms)
    assert cost == pytest.approx(20.0 + changeover_h, rel=0.01)


def test_table_says_what_following_it_costs() -> None:
    """The mean over runs drawn from the very model is the table's first entry."""
    model = model_of(loss_per_hour=0.4, return_per_hour=0.6)
    up_T = drawn(model, hours=6000, seed=1)
    starts_N = np.arange(0, len(up_T) - int(TERMS.time_s / TICK_S) - 1, 97)
    done = replay(up_T[None], tick_s=TICK_S, starts_N=starts_N, terms=TERMS, policy=SpotPolicy(model))
    values = solve(model, TERMS)
    left = {"left_s": TERMS.time_s, "work_s_N": np.array([TERMS.work_s])}
    share_up = up_T[starts_N].mean()
    expected = share_up * values.at(np.array([States.IDLE_UP]), **left)
    expected += (1 - share_up) * values.at(np.array([States.IDLE_DOWN]), **left)
    assert done.cost_s_N.mean() == pytest.approx(expected.item(), rel=0.03)


@pytest.mark.parametrize("name", ["time_s", "work_s", "spot_ratio"])
def test_terms_without_a_meaning_are_refused(name: str) -> None:
    terms = {"time_s": 1.0, "work_s": 1.0, "changeover_s": 0.0, "spot_ratio": 0.3, name: 0.0}
    with pytest.raises(SpecError, match=name):
        SpotTerms(**terms)
    with pytest.raises(SpecError, match="changeover_s"):
        SpotTerms(time_s=1.0, work_s=1.0, changeover_s=-1.0, spot_ratio=0.3)


def test_table_stays_small() -> None:
    values = solve(model_of(loss_per_hour=0.5, return_per_hour=0.5), TERMS)
    assert values.cost_TSKW.shape[:3] == (NUM_CELLS + 1, States.NUM, 1)
    assert values.cost_TSKW.nbytes < 20e6


def test_a_way_that_is_longer_than_a_changeover_is_paid_for_in_full() -> None:
    model = model_of(loss_per_hour=0.1, return_per_hour=1.0)
    terms = SpotTerms(time_s=4000.0, work_s=1600.0, changeover_s=40.0, spot_ratio=0.1)
    values = solve(model, terms, longest_way_s=2500.0)
    state_N = np.array([States.ON_DEMAND_UP])
    near, far = (values.at(state_N, left_s=3000.0, work_s_N=np.array([work_s]))[0, 0] for work_s in (1600.0, 4100.0))
    assert far > near + 50 * 1000.0
