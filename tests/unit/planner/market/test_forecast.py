from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.forecast import (
    PHASE_START_S,
    AvailabilityTrace,
    HazardModel,
    change_probability,
    first_belief,
    fit,
    mean_spell_s,
    observe,
    phase_occupancy_s,
)
from airflow_llmsched.planner.market.hours import HourEffect
from airflow_llmsched.units import HOUR_S
from tests.support.pools import TICK_S, drawn, model_of, trace_of

UP, DOWN = np.array([True]), np.array([False])


def aging(*, first_per_hour: float, last_per_hour: float) -> HazardModel:
    """One class whose hazards fall evenly (in log) from the first phase to the last."""
    per_hour = np.geomspace(first_per_hour, last_per_hour, len(PHASE_START_S))[None, :]
    return HazardModel(loss_per_s_KF=per_hour / HOUR_S, return_per_s_KF=per_hour / HOUR_S, prior_K=np.ones(1))


def test_fit_finds_how_hazards_fall_with_age() -> None:
    truth = aging(first_per_hour=3.0, last_per_hour=0.15)
    model = fit([trace_of(truth, hours=2000, seed=seed) for seed in range(4)], num_factors=1)
    assert model.loss_per_s_KF[0] * HOUR_S == pytest.approx(truth.loss_per_s_KF[0] * HOUR_S, rel=0.25)
    assert model.return_per_s_KF[0] * HOUR_S == pytest.approx(truth.return_per_s_KF[0] * HOUR_S, rel=0.25)


def test_fit_tells_calm_pools_from_restless_ones() -> None:
    calm, restless = model_of(loss_per_hour=0.1, return_per_hour=1.0), model_of(loss_per_hour=2.0, return_per_hour=1.0)
    model = fit([*(trace_of(each, hours=600, seed=seed) for seed in range(3) for each in (calm, restless))])
    spells_h = mean_spell_s(model.loss_per_s_KF) / HOUR_S
    assert spells_h.min() < 1.0
    assert spells_h.max() > 5.0


@pytest.mark.parametrize("up", [np.ones(10, dtype=bool), np.zeros(10, dtype=bool)])
def test_fit_refuses_traces_that_never_change(up: np.ndarray) -> None:
    with pytest.raises(SpecError, match="comes and goes at least once"):
        fit([AvailabilityTrace(TICK_S, up)])
    with pytest.raises(SpecError, match="comes and goes"):
        fit([])


def test_constant_hazard_gives_exponential_spells() -> None:
    model = model_of(loss_per_hour=0.5, return_per_hour=2.0)
    assert mean_spell_s(model.loss_per_s_KF) == pytest.approx([2 * HOUR_S])
    assert phase_occupancy_s(model.loss_per_s_KF)[0, 0] == pytest.approx(2 * HOUR_S * -np.expm1(-0.5 * 0.2))
    assert model.availability_K() == pytest.approx([2.0 / 2.5])


def test_interruption_probability_of_a_constant_hazard_is_the_textbooks() -> None:
    model = model_of(loss_per_hour=0.5, return_per_hour=2.0)
    up, down = first_belief(model, UP), first_belief(model, DOWN)
    assert change_probability(model, up, within_s=3 * HOUR_S) == pytest.approx([-np.expm1(-1.5)])
    assert change_probability(model, down, within_s=0.5 * HOUR_S) == pytest.approx([-np.expm1(-1.0)])


@given(within_h=st.lists(st.floats(min_value=0, max_value=50), min_size=2, max_size=6).map(sorted))
def test_interruption_gets_no_less_likely_with_time(within_h: list[float]) -> None:
    model = aging(first_per_hour=3.0, last_per_hour=0.1)
    belief = first_belief(model, UP)
    chances = [float(change_probability(model, belief, within_s=hours * HOUR_S)[0]) for hours in within_h]
    assert chances == sorted(chances)
    assert all(0.0 <= chance <= 1.0 for chance in chances)


def test_old_spell_is_trusted_more_than_a_new_one() -> None:
    model = aging(first_per_hour=3.0, last_per_hour=0.1)
    belief = observe(model, first_belief(model, DOWN), UP, after_s=TICK_S)
    young = change_probability(model, belief, within_s=HOUR_S)[0]
    for _ in range(100):
        belief = observe(model, belief, UP, after_s=TICK_S)
    old = change_probability(model, belief, within_s=HOUR_S)[0]
    assert old < young / 5


def test_belief_moves_to_the_class_that_drew_what_was_seen() -> None:
    flat = np.ones((2, len(PHASE_START_S))) / HOUR_S
    model = HazardModel(loss_per_s_KF=flat * [[0.1], [2.0]], return_per_s_KF=flat, prior_K=np.array([0.5, 0.5]))
    for truth in (0, 1):
        up_T = drawn(model, hours=48, seed=3, of_class=truth)
        belief = first_belief(model, up_T[:1])
        for up in up_T[1:]:
            belief = observe(model, belief, np.array([up]), after_s=TICK_S)
        assert belief.weight_NK.sum() == pytest.approx(1.0)
        assert belief.weight_NK[0, truth] > 0.8


def test_belief_that_is_not_renewed_drifts_back_to_the_prior() -> None:
    flat = np.ones((2, len(PHASE_START_S))) / HOUR_S
    model = HazardModel(loss_per_s_KF=flat * [[0.1], [0.1]], return_per_s_KF=flat, prior_K=np.array([0.3, 0.7]))
    belief = first_belief(model, UP)
    belief.weight_NK[:] = [1.0, 0.0]
    later = observe(model, belief, UP, after_s=1000 * HOUR_S)
    assert later.weight_NK[0] == pytest.approx(model.prior_K, abs=1e-3)


NIGHTLY = replace(
    model_of(loss_per_hour=1.0, return_per_hour=1.0), loss_hours=HourEffect(np.array([1.0, 0.0, 0.0, 0.0]))
)
"""Capacity that goes around midnight (UTC), and comes back at any hour."""


def test_hour_of_the_day_is_learnt_from_traces_that_tell_their_start() -> None:
    start_s = 5 * HOUR_S  # not midnight, so that the start has to be used
    traces = [trace_of(NIGHTLY, hours=24 * 60, seed=seed, start_s=start_s) for seed in range(3)]
    model = fit(traces, num_factors=1)
    noon_and_midnight = np.array([12.0, 24.0]) * HOUR_S
    found = model.loss_hours.factor_N(noon_and_midnight)
    assert np.log(found) == pytest.approx(np.log(NIGHTLY.loss_hours.factor_N(noon_and_midnight)), abs=0.4)
    assert np.abs(np.log(model.return_hours.factor_N(noon_and_midnight))).max() < 0.2
    untold = fit([replace(trace, start_s=None) for trace in traces], num_factors=1)
    assert not untold.loss_hours.log_J.any()


def test_interruption_in_a_restless_hour_is_likelier_and_a_whole_day_is_as_the_mean() -> None:
    belief = first_belief(NIGHTLY, np.array([True, True]))
    at_s_N = np.array([12.0, 24.0]) * HOUR_S
    noon, midnight = change_probability(NIGHTLY, belief, within_s=HOUR_S, at_s_N=at_s_N)
    mean = change_probability(NIGHTLY, belief, within_s=HOUR_S)[0]
    assert noon < mean < midnight
    over_a_day = change_probability(NIGHTLY, belief, within_s=24 * HOUR_S, at_s_N=at_s_N)
    assert -np.log1p(-over_a_day) == pytest.approx([24.0, 24.0], rel=0.01)


def test_loss_at_a_restless_hour_says_less_about_the_pool() -> None:
    flat = np.ones((2, len(PHASE_START_S))) / HOUR_S
    model = replace(NIGHTLY, loss_per_s_KF=flat * [[0.1], [1.0]], return_per_s_KF=flat, prior_K=np.array([0.5, 0.5]))
    up = first_belief(model, np.array([True, True]))
    at_s_N = np.array([12.0, 24.0]) * HOUR_S
    stays = observe(model, up, np.array([True, True]), after_s=HOUR_S, at_s_N=at_s_N)
    restless_at_noon, restless_at_midnight = stays.weight_NK[:, 1]
    assert restless_at_midnight < restless_at_noon  # it held out when it was hardest


def test_hazards_are_of_as_many_nodes_as_were_watched_together() -> None:
    trace = replace(trace_of(model_of(loss_per_hour=0.5, return_per_hour=1.0), hours=200, seed=1), num_nodes=4)
    assert fit([trace]).num_nodes == 4
    with pytest.raises(SpecError, match="same num_nodes"):
        fit([trace, replace(trace, num_nodes=1)])
