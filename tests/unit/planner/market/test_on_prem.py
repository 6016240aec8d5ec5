from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.on_prem import NodeCost
from airflow_llmsched.units import DAY_S

YEAR_S = 365 * DAY_S


def cost_of(**values: Any) -> NodeCost:
    return NodeCost(**{"capex_usd": 350_400.0, "lifetime_s": 4 * YEAR_S, **values})


def test_purchase_is_spread_over_the_hours_of_its_life() -> None:
    assert cost_of().usd_per_hour == pytest.approx(10.0)
    assert cost_of(residual_usd=35_040.0).usd_per_hour == pytest.approx(9.0)


def test_idle_hours_are_paid_by_those_that_work_but_draw_no_power() -> None:
    busy = cost_of(busy_ratio=0.5, opex_usd_per_hour=1.0, power_kw=10.0, usd_per_kwh=0.2, overhead_ratio=0.3)
    assert busy.energy_usd_per_hour == pytest.approx(2.6)
    assert busy.usd_per_hour == pytest.approx(20.0 + 2.0 + 2.6)


@given(cheaper=st.floats(0, 0.2), dearer=st.floats(0.2, 1.0), busy=st.floats(0.1, 0.9), power_kw=st.floats(0.1, 20))
def test_it_never_gets_cheaper_with_dearer_power_or_less_use(
    cheaper: float, dearer: float, busy: float, power_kw: float
) -> None:
    def usd(usd_per_kwh: float, busy_ratio: float) -> float:
        return cost_of(usd_per_kwh=usd_per_kwh, busy_ratio=busy_ratio, power_kw=power_kw).usd_per_hour

    assert usd(cheaper, busy) <= usd(dearer, busy)
    assert usd(cheaper, busy) > usd(cheaper, 1.0)


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"capex_usd": -1.0}, "capex_usd"),
        ({"lifetime_s": 0.0}, "lifetime_s"),
        ({"busy_ratio": 0.0}, "busy_ratio"),
        ({"busy_ratio": 1.1}, "busy_ratio"),
        ({"power_kw": float("nan")}, "power_kw"),
        ({"carbon_g_per_kwh": -1.0}, "carbon_g_per_kwh"),
        ({"residual_usd": 400_000.0}, "residual_usd"),
    ],
)
def test_what_has_no_meaning_is_refused(values: dict[str, float], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        cost_of(**values)
    assert refused.value.path == path


def test_carbon_goes_with_what_is_drawn_and_is_not_known_without_the_power() -> None:
    drawn = cost_of(power_kw=10.0, overhead_ratio=0.3, carbon_g_per_kwh=50.0)
    assert drawn.carbon_g_per_hour == pytest.approx(650.0)
    assert cost_of(power_kw=10.0).carbon_g_per_hour is None
    assert cost_of(carbon_g_per_kwh=50.0).carbon_g_per_hour is None
