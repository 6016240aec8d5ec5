from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import DataError
from airflow_llmsched.planner.perf.calibration import (
    COVERED_RATIO,
    FORMAT_VERSION,
    PRIOR_ERROR,
    Calibration,
    FittedKind,
    StepKind,
    band_error_ratio,
    from_toml,
    independent_weights,
    over_packaged,
    packaged,
    rates_of,
    to_toml,
)
from airflow_llmsched.planner.perf.hardware import accelerators
from airflow_llmsched.planner.perf.rates import Rates, prior_of_generation

H100 = accelerators()["h100-sxm"]
FITTED = FittedKind(
    rates=Rates(matmul_ratio=0.71),
    error_ratio=0.12,
    left_out_error_ratio=0.05,
    num_rows_by_source={"a table": 12, 'run "x"': 3},
    error_ratio_by_kind={StepKind.MIXTURE: 0.31},
)
CALIBRATION = Calibration(fitted_on="2026-11-30", kinds={"hopper": FITTED}, notes="two lines\nof notes")


def band(errors: list[float]) -> float:
    return band_error_ratio(np.array(errors), np.ones(len(errors)))


def test_a_saved_calibration_is_read_as_it_was():
    read = from_toml(to_toml(CALIBRATION), name="x")
    assert read.kinds == CALIBRATION.kinds
    assert (read.fitted_on, read.notes) == ("2026-11-30", "two lines of notes")


def test_a_kind_of_steps_has_a_band_of_its_own_where_one_was_fitted():
    assert CALIBRATION.error_ratio(H100, StepKind.MIXTURE) == 0.31
    assert CALIBRATION.error_ratio(H100, StepKind.HOST_BOUND) == 0.12
    older = Calibration(fitted_on="", kinds={"hopper": replace(FITTED, error_ratio_by_kind={})})
    assert older.error_ratio(H100, StepKind.MIXTURE) == older.error_ratio(H100) == 0.12
    assert from_toml(to_toml(older), name="x").kinds == older.kinds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("format_version = 99", "format 99"),
        ("[", "is no calibration"),
        ("format_version = " + "[" * 5_000, "is no calibration"),
        (f"format_version = {FORMAT_VERSION}\nfitted = 7", "is no calibration"),
        (to_toml(CALIBRATION).replace("matmul_ratio = 0.71", "matmul_ratio = 1.3"), "matmul_ratio=1.3"),
    ],
)
def test_what_is_no_calibration_is_refused_by_name(text: str, told: str):
    with pytest.raises(DataError, match=told) as refused:
        from_toml(text, name="calibration.toml")
    assert "calibration.toml" in str(refused.value)


def test_what_was_fitted_wins_and_every_member_of_the_generation_has_it():
    assert CALIBRATION.rates_of(H100).matmul_ratio == 0.71
    assert CALIBRATION.rates_of(accelerators()["h200-sxm"]).matmul_ratio == 0.71
    assert CALIBRATION.error_ratio(H100) == 0.12


def test_what_was_not_fitted_keeps_its_prior_and_a_wide_band():
    a100 = accelerators()["a100-80gb"]
    assert CALIBRATION.rates_of(a100) == prior_of_generation("ampere")
    assert CALIBRATION.error_ratio(a100) > CALIBRATION.error_ratio(H100)


def test_the_packaged_calibration_is_what_predictions_use():
    assert rates_of(H100) == packaged().kinds["hopper"].rates != prior_of_generation("hopper")
    unknown = replace(H100, name="abacus")
    assert rates_of(unknown) == prior_of_generation("abacus")


def test_without_measurements_the_band_is_that_of_the_assumed_error():
    # four fifths of a normal distribution lie within 1.28 deviations; the assumed sizes are few
    assert math.log1p(band([])) == pytest.approx(1.2816 * PRIOR_ERROR, rel=0.3)


def test_the_band_narrows_to_the_errors_really_made_and_holds_as_many_as_it_says():
    rng = np.random.default_rng(3)
    errors_M = 0.05 * rng.normal(size=400)
    few, many = band(errors_M[:10].tolist()), band(errors_M.tolist())
    assert many < few < band([])
    fresh_M = 0.05 * rng.normal(size=4000)
    assert np.mean(np.abs(fresh_M) < math.log1p(many)) == pytest.approx(COVERED_RATIO, abs=0.05)


@given(st.lists(st.floats(-1, 1), max_size=30))
def test_larger_errors_never_make_a_narrower_band(errors: list[float]):
    assert band([2 * error for error in errors]) >= band(errors)


def test_what_was_published_twice_and_what_comes_from_one_source_count_less():
    weight_M = independent_weights(["a", "a", "a", "b"], [1, 1, 2, 3])
    assert weight_M == pytest.approx([0.5 / 1.1, 0.5 / 1.1, 1 / 1.1, 1.0])
    many_M = independent_weights(["a"] * 1000, list(range(1000)))
    assert 9.5 < many_M.sum() < 10


def test_measuring_one_generation_takes_nothing_from_the_others() -> None:
    own = over_packaged(CALIBRATION)
    assert own.rates_of(H100) == FITTED.rates
    a100 = accelerators()["a100-80gb"]
    assert own.rates_of(a100) == packaged().rates_of(a100)
    assert own.error_ratio(a100) == packaged().error_ratio(a100)
    assert (own.fitted_on, own.notes) == (CALIBRATION.fitted_on, CALIBRATION.notes)
