from __future__ import annotations

import numpy as np
import pytest

from airflow_llmsched.planner.market.choice_costs import ChoiceCosts
from airflow_llmsched.planner.market.forecast import first_belief
from airflow_llmsched.planner.market.rental import Holding
from airflow_llmsched.planner.market.values import SpotTerms, States, solve
from airflow_llmsched.units import HOUR_S
from tests.support.modes import mixed
from tests.support.pools import model_of

TERMS = SpotTerms(time_s=30 * HOUR_S, work_s=20 * HOUR_S, changeover_s=0.2 * HOUR_S, spot_ratio=0.3)
CALM = model_of(loss_per_hour=1e-9, return_per_hour=1e-9)


def hours_of(terms: SpotTerms, *, up: bool, overhead_h: float = 0.2, model=CALM) -> np.ndarray:
    costs = ChoiceCosts(model, solve(model, terms), first_belief(model, np.array([up])), left_s=terms.time_s)
    return costs.of_each(np.array([terms.work_s]), np.full((3, 1), overhead_h * HOUR_S))[:, 0] / HOUR_S


def test_each_holding_costs_its_price_to_the_end() -> None:
    nothing, spot, demand = hours_of(TERMS, up=True)
    assert spot == pytest.approx(0.3 * 20.2, rel=0.01)
    assert nothing == pytest.approx(spot, rel=0.03)  # one cell of waiting, then spot
    assert demand == pytest.approx(spot + 0.7 * 0.1 + 0.3 * 0.2, rel=0.05)  # one cell at the full price, then over


def test_spot_that_is_not_there_has_no_price() -> None:
    nothing, spot, demand = hours_of(TERMS, up=False)
    assert spot == np.inf
    assert (nothing, demand) == pytest.approx((20.2, 20.2), rel=0.01)


def test_what_is_held_and_works_already_saves_the_changeover() -> None:
    assert hours_of(TERMS, up=False, overhead_h=0.0)[Holding.ON_DEMAND] == pytest.approx(20.0, rel=0.01)


def test_base_of_a_mix_works_and_is_paid_for_while_there_is_no_spot() -> None:
    mix = mixed(TERMS, demand_nodes_ratio=0.75, demand_nodes_speed_ratio=0.75)
    base, spot, demand = hours_of(mix, up=False)
    assert spot == np.inf
    assert base == pytest.approx(demand, rel=0.02)  # as much for each bit of work, at three quarters of the pace
    base, spot, demand = hours_of(mix, up=True)
    assert spot == pytest.approx((0.75 + 0.25 * 0.3) * 20.2, rel=0.01)


def test_mix_that_loses_its_spot_nodes_pays_a_changeover() -> None:
    """Lost in almost every cell, a mix does less than its base alone: each loss costs a restart."""
    terms = SpotTerms(time_s=30 * HOUR_S, work_s=10 * HOUR_S, changeover_s=0.05 * HOUR_S, spot_ratio=0.3)
    mix = mixed(terms, demand_nodes_ratio=0.5, demand_nodes_speed_ratio=0.5)
    calm, restless = (
        hours_of(mix, up=True, overhead_h=0.05, model=model_of(loss_per_hour=loss, return_per_hour=loss))[Holding.SPOT]
        for loss in (1e-9, 8.0)
    )
    assert restless > calm * 1.1


def test_next_cells_loss_of_a_mix_is_paid_with_its_restart() -> None:
    mix = mixed(TERMS, demand_nodes_ratio=0.5, demand_nodes_speed_ratio=0.5)
    goes = model_of(loss_per_hour=1e4, return_per_hour=1e-9)
    values = solve(goes, mix)
    costs = ChoiceCosts(goes, values, first_belief(goes, np.array([True])), left_s=mix.time_s)
    spot = costs.of_each(np.array([mix.work_s]), np.zeros((3, 1)))[Holding.SPOT, 0]
    base_restarts_s = mix.work_s - values.cell_s + 0.5 * mix.changeover_s
    later = values.at(
        np.array([States.IDLE_DOWN]), left_s=mix.time_s - values.cell_s, work_s_N=np.array([base_restarts_s])
    )
    assert spot == pytest.approx(mix.spot_ratio * values.cell_s + later[0, 0], rel=1e-6)
