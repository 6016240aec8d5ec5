from __future__ import annotations

import pytest

from airflow_llmsched.domain.capacity import Offer, Quote
from airflow_llmsched.planner.market.expected_prices import ExpectedPrices, told_prices
from airflow_llmsched.planner.market.price_forecast import MIN_SAMPLES
from airflow_llmsched.units import HOUR_S
from tests.support.market import NOW_S, ON_DEMAND, SPOT, offer_of

SPIKE = offer_of(6.0, SPOT)


def hourly(*usd: float, pool: str = SPIKE.pool.name) -> dict[str, list[tuple[float, float]]]:
    """Return prices of the hours before now, the last an hour ago."""
    return {pool: [(NOW_S - (len(usd) - number) * HOUR_S, each) for number, each in enumerate(usd)]}


RETURNING = hourly(*([2.0] * 7 + [6.0]) * 8, *[2.0] * 7)
WANDERING = hourly(*[1.0 + 0.1 * number for number in range(50)])


def expected(offer: Offer, *histories: dict[str, list[tuple[float, float]]], hours: float = 48.0) -> float | None:
    return ExpectedPrices(*histories, now_s=NOW_S).usd_per_hour(offer, work_s=hours * HOUR_S)


def test_a_spike_that_prices_always_came_back_from_is_expected_to_pass() -> None:
    soon, late = expected(SPIKE, RETURNING, hours=2.0), expected(SPIKE, RETURNING)
    assert soon is not None
    assert late is not None
    assert 2.0 < late < 2.5 < soon < 5.0
    assert expected(SPIKE, RETURNING, hours=0.5) == pytest.approx(6.0)


def test_nothing_else_is_expected_of_prices_that_wander_of_few_of_them_and_of_a_list() -> None:
    assert expected(SPIKE, WANDERING) is None
    assert expected(SPIKE, hourly(*[2.0] * (MIN_SAMPLES - 2))) is None
    assert expected(SPIKE, {}) is None
    assert expected(SPIKE) is None
    assert expected(offer_of(6.0, ON_DEMAND), hourly(*[2.0, 9.0] * 20, pool=offer_of(6.0, ON_DEMAND).pool.name)) is None
    assert expected(offer_of(6.0, SPOT, zone="b"), RETURNING) is None
    assert expected(offer_of(0.0, SPOT), RETURNING) is None


def test_of_several_histories_the_first_that_saw_enough_of_a_pool_counts() -> None:
    few, other = hourly(9.0, 9.0), hourly(*([4.0] * 7 + [6.0]) * 8, *[4.0] * 7)
    assert expected(SPIKE, few, other) == expected(SPIKE, other)
    assert expected(SPIKE, RETURNING, other) == expected(SPIKE, RETURNING)


def test_what_is_no_price_and_what_is_not_past_does_not_count() -> None:
    (prices,) = RETURNING.values()
    strange = [(NOW_S - 1.5 * HOUR_S, 0.0), (NOW_S - 2.5 * HOUR_S, float("nan")), (NOW_S, 1.0), (NOW_S + 60.0, 1.0)]
    assert expected(SPIKE, {SPIKE.pool.name: [*strange, *prices]}) == expected(SPIKE, RETURNING)


def test_a_run_that_is_nearly_done_has_less_of_the_future_before_it() -> None:
    whole, rest = (
        ExpectedPrices(RETURNING, now_s=NOW_S, work_ratio=ratio).usd_per_hour(SPIKE, work_s=48 * HOUR_S)
        for ratio in (1.0, 0.1)
    )
    assert whole is not None
    assert rest is not None
    assert rest == pytest.approx(expected(SPIKE, RETURNING, hours=4.8) or 0.0)
    assert rest > whole


def test_only_a_difference_that_matters_is_told_and_of_several_the_greatest() -> None:
    def quote(zone: str, usd_per_hour: float | None) -> Quote:
        return Quote(
            offer=offer_of(6.0, SPOT, zone=zone),
            num_nodes=1,
            compute_usd=6.0,
            egress_usd=0.0,
            stage_s=0.0,
            finish_at_s=NOW_S,
            valid_until_s=NOW_S,
            expected_usd_per_hour=usd_per_hour,
        )

    assert told_prices([]) == told_prices([quote("a", None), quote("a", 6.2)]) == ""
    told = told_prices([quote("a", 5.0), quote("b", 2.25)])
    assert told == "a spot node of p5 in aws b costs $6.00 an hour now, and $2.25 are expected on average"
