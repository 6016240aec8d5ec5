from __future__ import annotations

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.energy_terms import NO_ENERGY, Grid
from airflow_llmsched.provider.energy_arguments import energy_terms

CLOUDS = {"aws": {}, "onprem": {}}


def test_words_of_the_trade_become_weights_and_grids():
    told = {
        "electricity": 1,
        "usd_per_t_co2": "100",
        "overhead": 0.2,
        "grids": {"aws/us-east-1": {"usd_per_kwh": 0.08, "g_co2_per_kwh": 380}, "onprem/x": {"g_co2_per_kwh": 20}},
    }
    terms = energy_terms(told, clouds=CLOUDS)
    assert terms.weights.usd_per_energy_usd == 1.0
    assert terms.weights.usd_per_carbon_g == pytest.approx(1e-4)
    assert terms.overhead_ratio == 0.2
    assert terms.grids == {
        "aws/us-east-1": Grid(usd_per_kwh=0.08, carbon_g_per_kwh=380.0),
        "onprem/x": Grid(carbon_g_per_kwh=20.0),
    }


@pytest.mark.parametrize("nothing", [None, {}])
def test_nothing_counts_unless_it_is_said(nothing):
    assert energy_terms(nothing, clouds=CLOUDS) == NO_ENERGY


@pytest.mark.parametrize(
    ("told", "path"),
    [
        ({"carbon": 1}, r"energy\.carbon"),
        ({"usd_per_t_co2": -1}, r"energy\.usd_per_t_co2"),
        ({"electricity": True}, r"energy\.electricity"),
        ({"overhead": "much"}, r"energy\.overhead"),
        ({"grids": ["aws"]}, r"energy\.grids"),
        ({"grids": {"gcp/x": {"usd_per_kwh": 1}}}, r"energy\.grids\.gcp/x"),
        ({"grids": {"aws": {"usd_per_kwh": 1}}}, r"energy\.grids\.aws"),
        ({"grids": {"aws/x": {}}}, r"energy\.grids\.aws/x"),
        ({"grids": {"aws/x": {"usd": 1}}}, r"energy\.grids\.aws/x\.usd"),
        ({"grids": {"aws/x": {"usd_per_kwh": "?"}}}, r"energy\.grids\.aws/x\.usd_per_kwh"),
        (["green"], "energy"),
    ],
)
def test_mistakes_are_named(told, path):
    with pytest.raises(SpecError, match=path):
        energy_terms(told, clouds=CLOUDS)
