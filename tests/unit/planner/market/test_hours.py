from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.planner.market.hours import NUM_FOLDS, NUM_HOURS, HourEffect, fit_effect, fold_of, hour_of
from airflow_llmsched.units import DAY_S, HOUR_S

HALF_PAST_H = (np.arange(NUM_HOURS) + 0.5) * HOUR_S


def drawn(factor_H: np.ndarray, *, num_events: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Events by fold and hour, of which as many are expected in each, times the factor."""
    expected_DH = np.full((NUM_FOLDS, NUM_HOURS), num_events / NUM_FOLDS / NUM_HOURS)
    return np.random.default_rng(seed).poisson(expected_DH * factor_H).astype(float), expected_DH


def test_no_coefficients_are_no_effect() -> None:
    assert list(HourEffect().factor_N(HALF_PAST_H)) == [1.0] * NUM_HOURS


@given(log=st.lists(st.floats(-1.5, 1.5), min_size=4, max_size=4), days=st.integers(0, 20_000))
def test_factor_averages_to_one_and_comes_back_every_day(log: list[float], days: int) -> None:
    effect = HourEffect(np.array(log))
    factor_H = effect.factor_N(HALF_PAST_H)
    assert factor_H.mean() == pytest.approx(1.0)
    assert effect.factor_N(HALF_PAST_H + days * DAY_S) == pytest.approx(factor_H, rel=1e-6)
    assert (factor_H > 0).all()


def test_effect_is_found_where_every_day_shows_it() -> None:
    truth_H = HourEffect(np.array([0.8, 0.0, 0.4, 0.0])).factor_N(HALF_PAST_H)
    found_H = fit_effect(*drawn(truth_H, num_events=4000, seed=1)).factor_N(HALF_PAST_H)
    assert np.abs(np.log(found_H / truth_H)).max() < 0.15


@pytest.mark.parametrize("seed", range(8))
def test_no_effect_is_believed_where_there_is_none(seed: int) -> None:
    assert not fit_effect(*drawn(np.ones(NUM_HOURS), num_events=300, seed=seed)).log_J.any()


def test_one_wild_day_is_no_hour_of_the_day() -> None:
    """All the excess lies in one fold of days: the others do not foretell it."""
    observed_DH, expected_DH = drawn(np.ones(NUM_HOURS), num_events=600, seed=3)
    observed_DH[0, 3:9] += 12
    assert not fit_effect(observed_DH, expected_DH).log_J.any()


def test_few_events_are_shrunk() -> None:
    truth_H = HourEffect(np.array([1.0, 0.0, 0.0, 0.0])).factor_N(HALF_PAST_H)

    def swing(num_events: float) -> float:
        expected_DH = np.full((NUM_FOLDS, NUM_HOURS), num_events / NUM_FOLDS / NUM_HOURS)
        return float(np.ptp(np.log(fit_effect(expected_DH * truth_H, expected_DH).factor_N(HALF_PAST_H))))

    assert swing(1) == 0.0
    assert 0.0 < swing(12) < 0.9 * swing(100) < 0.9 * swing(6000)
    assert swing(6000) == pytest.approx(np.log(truth_H.max() / truth_H.min()), rel=0.15)


def test_nothing_seen_is_no_effect() -> None:
    assert not fit_effect(*np.zeros((2, NUM_FOLDS, NUM_HOURS))).log_J.any()


def test_hours_and_folds_are_of_utc() -> None:
    at_s = np.array([0.0, 1_764_450_300.0, DAY_S * NUM_FOLDS + 3 * HOUR_S])  # the second is 2025-11-29T21:05Z
    assert list(hour_of(at_s)) == [0, 21, 3]
    assert list(fold_of(at_s))[::2] == [0, 0]
