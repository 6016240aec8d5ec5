from __future__ import annotations

import numpy as np
import pytest

from airflow_llmsched.learning.robust_fit import Problem, Start, cost, fit

RNG = np.random.default_rng(5)


def line(num_rows: int, *, truth=(0.5, -0.25), noise=0.01, spread=0.3) -> Problem:
    design_MP = RNG.normal(size=(num_rows, 2))

    return Problem(
        predict=lambda value_P: design_MP @ value_P,
        measured_M=design_MP @ np.array(truth) + noise * RNG.normal(size=num_rows),
        weight_M=np.ones(num_rows),
        prior_P=np.zeros(2),
        spread_P=np.full(2, spread),
        noise=noise,
    )


def fitted(problem: Problem):
    return fit(problem, groups=range(len(problem.measured_M)))


def test_many_rows_find_the_truth_and_say_how_sure_they_are():
    few, many = fitted(line(4)), fitted(line(200))
    assert many.value_P == pytest.approx([0.5, -0.25], abs=0.005)
    assert (many.deviation_P < few.deviation_P).all()


def test_without_rows_parameters_stay_at_their_prior():
    found = fitted(line(0))
    assert found.value_P == pytest.approx([0.0, 0.0])
    assert found.deviation_P == pytest.approx([0.3, 0.3])


def test_one_row_that_is_far_off_hardly_moves_the_fit():
    problem = line(60)
    problem.measured_M[0] += 5.0
    assert fitted(problem).value_P == pytest.approx([0.5, -0.25], abs=0.02)


def test_left_out_residuals_are_those_of_fits_without_the_group():
    problem = line(30, noise=0.05, spread=10.0)
    groups = [number // 3 for number in range(30)]
    whole = fit(problem, groups=groups)
    kept = np.array([group != 2 for group in groups])
    others = Problem(
        predict=lambda value_P: problem.predict(value_P)[kept],
        measured_M=problem.measured_M[kept],
        weight_M=problem.weight_M[kept],
        prior_P=problem.prior_P,
        spread_P=problem.spread_P,
        noise=problem.noise,
    )
    refitted = fit(others, groups=range(int(kept.sum())))
    expected_M = (problem.predict(refitted.value_P) - problem.measured_M)[~kept]
    assert whole.left_out_M[~kept] == pytest.approx(expected_M, abs=0.01)
    assert np.abs(whole.left_out_M).mean() > np.abs(whole.residual_M).mean()


def curved(truth=(0.4, -0.3)) -> Problem:
    at_M = np.linspace(0.0, 2.0, 40)

    def predict(value_P):
        return np.log1p(np.exp(3 * value_P[0]) * at_M + np.exp(2 * value_P[1]) * at_M**2)

    return Problem(
        predict=predict, measured_M=predict(np.array(truth)), weight_M=np.ones(40), prior_P=np.zeros(2),
        spread_P=np.full(2, 0.5), noise=0.01,
    )  # fmt: skip


def test_curved_predictions_are_fitted_without_measuring_slopes_at_each_step():
    found = fitted(curved())
    assert found.value_P == pytest.approx([0.4, -0.3], abs=0.01)
    assert found.num_predictions < 25  # three at each step would be twice as many


def test_beginning_at_the_fit_of_more_rows_is_quick_and_ends_where_beginning_anew_does():
    whole, problem = fitted(curved()), curved()
    first = Problem(
        predict=lambda value_P: problem.predict(value_P)[:20], measured_M=problem.measured_M[:20] + 0.02,
        weight_M=np.ones(20), prior_P=problem.prior_P, spread_P=problem.spread_P, noise=0.01,
    )  # fmt: skip
    anew = fitted(first)
    begun = fit(first, groups=range(20), start=Start(value_P=whole.value_P, slope_MP=whole.slope_MP[:20]))
    assert begun.value_P == pytest.approx(anew.value_P, abs=0.02)
    assert begun.num_predictions < anew.num_predictions


def test_a_fit_costs_less_than_where_it_began_and_beginning_elsewhere_ends_there_too():
    problem = line(30)
    found = fitted(problem)
    assert cost(problem, found.value_P) < cost(problem, problem.prior_P)
    elsewhere = fit(problem, groups=range(30), start=Start(value_P=np.array([-0.5, 0.5])))
    assert elsewhere.value_P == pytest.approx(found.value_P, abs=1e-3)
