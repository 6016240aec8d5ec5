from __future__ import annotations

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.energy_terms import EnergyTerms, Grid
from airflow_llmsched.planner.perf.energy import node_power_w
from airflow_llmsched.planner.perf.hardware import node_shape
from tests.support.market import offer_of

GRIDS = {"aws/east": Grid(usd_per_kwh=0.1, carbon_g_per_kwh=400.0), "aws/north": Grid(carbon_g_per_kwh=20.0)}


def test_a_grid_says_what_a_node_at_full_use_draws_and_emits() -> None:
    power_kw = (node_power_w(node_shape("p5.48xlarge")) or 0.0) / 1000
    assert 8 < power_kw < 11
    (east, north) = EnergyTerms(grids=GRIDS, overhead_ratio=0.25).filled(
        [offer_of(9.0, shape="p5.48xlarge"), offer_of(9.0, shape="p5.48xlarge", region="north")]
    )
    assert east.energy_usd_per_hour == pytest.approx(power_kw * 1.25 * 0.1)
    assert east.carbon_g_per_hour == pytest.approx(power_kw * 1.25 * 400)
    assert north.energy_usd_per_hour is None
    assert north.carbon_g_per_hour == pytest.approx(power_kw * 1.25 * 20)


def test_what_an_offer_tells_itself_stays_and_what_nobody_states_stays_unknown() -> None:
    terms = EnergyTerms(grids=GRIDS)
    told = offer_of(9.0, shape="p5.48xlarge", energy_usd_per_hour=0.0, carbon_g_per_hour=7.0)
    elsewhere = offer_of(9.0, shape="p5.48xlarge", region="south")
    of_no_known_power = [offer_of(9.0, shape="trn2.48xlarge"), offer_of(9.0, shape="mine")]
    offers = [told, elsewhere, *of_no_known_power]
    assert terms.filled(offers) == offers
    assert EnergyTerms().filled(offers) == offers


def test_less_than_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="carbon_g_per_kwh"):
        Grid(carbon_g_per_kwh=-1.0)
    with pytest.raises(SpecError, match="overhead_ratio"):
        EnergyTerms(overhead_ratio=-0.1)
