from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.price_forecast import MIN_SAMPLES, PriceModel
from airflow_llmsched.units import HOUR_S

AHEAD = 6


def returning(*, kept: float, num: int, seed: int, step: float = 0.1) -> np.ndarray:
    """Prices around 10 dollars that keep ``kept`` of their distance from it each hour; 1 wanders for ever."""
    rng = np.random.default_rng(seed)
    away, logs = 0.0, []
    for shock in rng.normal(0.0, step, num):
        away = kept * away + shock
        logs.append(np.log(10.0) + away)
    return np.exp(logs)


def rarely_moving(*, num: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    steps = rng.normal(0.0, 0.3, num) * (rng.random(num) < 0.03)
    return 10.0 * np.exp(np.cumsum(steps))


def scored(prices: np.ndarray, *, train: int) -> tuple[float, float, float]:
    """Squared log errors of ours and of the last value, and the share of prices inside of the 80% band."""
    ours, last, inside = [], [], []
    for end in range(train, len(prices) - AHEAD, 7):
        said = PriceModel.of(prices[:end], tick_s=HOUR_S).forecast(after_s=AHEAD * HOUR_S, coverage_ratio=0.8)
        truth = prices[end - 1 + AHEAD]
        ours.append(np.log(said.usd_per_hour / truth) ** 2)
        last.append(np.log(prices[end - 1] / truth) ** 2)
        inside.append(said.low_usd_per_hour <= truth <= said.high_usd_per_hour)
    return float(np.mean(ours)), float(np.mean(last)), float(np.mean(inside))


def test_last_value_is_beaten_where_prices_come_back() -> None:
    scores = [scored(returning(kept=0.8, num=600, seed=seed), train=300) for seed in range(6)]
    ours, last, _ = np.mean(scores, axis=0)
    assert ours < 0.8 * last


def test_and_hardly_lost_to_where_they_wander() -> None:
    scores = [scored(returning(kept=1.0, num=600, seed=seed, step=0.02), train=300) for seed in range(8)]
    ours, last, _ = np.mean(scores, axis=0)
    assert ours < 1.06 * last


@pytest.mark.parametrize("kept", [0.8, 0.97, 1.0])
def test_band_covers_what_it_says(kept: float) -> None:
    covered = [scored(returning(kept=kept, num=900, seed=seed), train=500)[2] for seed in range(12)]
    assert np.mean(covered) == pytest.approx(0.8, abs=0.07)


def test_band_covers_prices_that_move_rarely_and_far() -> None:
    covered = [scored(rarely_moving(num=900, seed=seed), train=500)[2] for seed in range(12)]
    assert np.mean(covered) > 0.74


@settings(max_examples=60)
@given(
    prices=st.lists(st.floats(min_value=0.01, max_value=1000.0), min_size=1, max_size=60),
    after_h=st.floats(min_value=0.0, max_value=200.0),
    coverage=st.floats(min_value=0.05, max_value=0.99),
)
def test_forecast_lies_in_its_band_and_between_the_last_price_and_the_mean(
    prices: list[float], after_h: float, coverage: float
) -> None:
    said = PriceModel.of(prices, tick_s=HOUR_S).forecast(after_s=after_h * HOUR_S, coverage_ratio=coverage)
    assert 0 < said.low_usd_per_hour <= said.usd_per_hour <= said.high_usd_per_hour
    mean = float(np.exp(np.log(prices).mean()))
    low, high = sorted([mean, prices[-1]])
    assert low * (1 - 1e-9) <= said.usd_per_hour <= high * (1 + 1e-9)


def test_wider_coverage_is_never_a_narrower_band() -> None:
    model = PriceModel.of(returning(kept=0.9, num=300, seed=2), tick_s=HOUR_S)
    widths = [
        said.high_usd_per_hour - said.low_usd_per_hour
        for coverage in (0.5, 0.8, 0.9, 0.99, 1.0)
        for said in [model.forecast(after_s=HOUR_S, coverage_ratio=coverage)]
    ]
    assert widths == sorted(widths)


def test_few_prices_say_the_last_one_and_all_that_was_seen() -> None:
    prices = [10.0, 20.0, 10.0, 12.0]
    assert len(prices) < MIN_SAMPLES
    said = PriceModel.of(prices, tick_s=HOUR_S).forecast(after_s=HOUR_S)
    assert said.usd_per_hour == pytest.approx(12.0)
    assert (said.low_usd_per_hour, said.high_usd_per_hour) == pytest.approx((6.0, 24.0))


def test_price_that_never_moved_is_foretold_to_stay() -> None:
    said = PriceModel.of([3.0] * 50, tick_s=HOUR_S).forecast(after_s=10 * HOUR_S)
    assert (said.low_usd_per_hour, said.usd_per_hour, said.high_usd_per_hour) == pytest.approx((3.0, 3.0, 3.0))


def test_mean_price_is_that_of_the_forecasts_path() -> None:
    """Half of the distance is left after each hour, in logs: 8, 4, and half an hour of 2 sqrt 2 dollars, from 2 on."""
    model = PriceModel(tick_s=HOUR_S, log_usd_T=np.log([2.0, 8.0]), mean_log_usd=math.log(2.0), kept_ratio=0.5)
    assert model.mean_usd_per_hour(over_s=2.5 * HOUR_S) == pytest.approx((8.0 + 4.0 + 0.5 * 2 * math.sqrt(2)) / 2.5)
    assert model.mean_usd_per_hour(over_s=0.5 * HOUR_S) == pytest.approx(8.0)
    assert model.mean_usd_per_hour(over_s=1e9) == pytest.approx(2.0, rel=1e-3)
    wandering = PriceModel(tick_s=HOUR_S, log_usd_T=np.log([2.0, 2.5]), mean_log_usd=math.log(2.2), kept_ratio=1.0)
    assert wandering.mean_usd_per_hour(over_s=9 * HOUR_S) == pytest.approx(2.5)


@pytest.mark.parametrize("prices", [[], [1.0, 0.0], [1.0, float("nan")], [-1.0]])
def test_what_is_no_price_is_refused(prices: list[float]) -> None:
    with pytest.raises(SpecError, match="all above 0"):
        PriceModel.of(prices, tick_s=HOUR_S)


def test_time_between_prices_must_pass() -> None:
    with pytest.raises(SpecError, match="tick_s"):
        PriceModel.of([1.0], tick_s=0.0)
