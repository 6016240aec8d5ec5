"""Rates: priors of known kinds, what no hardware can have."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from airflow_llmsched.planner.perf.hardware import accelerators
from airflow_llmsched.planner.perf.rates import (
    LOG_SPREAD,
    POWER_EXPONENT,
    Rates,
    attention_speedup,
    clock_ratio,
    generation_of,
    prior_of_generation,
)


@pytest.mark.parametrize("name", sorted(accelerators()))
def test_every_known_kind_has_rates(name: str) -> None:
    assert prior_of_generation(generation_of(accelerators()[name])).matmul_ratio > 0


def test_a_kind_that_nobody_knows_has_the_rates_of_a_recent_gpu() -> None:
    unknown = replace(accelerators()["h100-sxm"], name="abacus")
    assert prior_of_generation(generation_of(unknown)) == Rates()


def test_every_number_has_a_spread_in_the_prior() -> None:
    assert set(LOG_SPREAD) == {field.name for field in fields(Rates)}


@pytest.mark.parametrize(("name", "value"), [("matmul_ratio", 1.2), ("kernel_s", -1e-6)])
def test_what_no_hardware_can_have_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Rates().changed({name: value})


def test_of_one_generation_the_kind_with_more_power_clocks_higher() -> None:
    kinds = accelerators()
    assert clock_ratio(kinds["h100-sxm"]) == pytest.approx(1, rel=1e-3)
    assert clock_ratio(kinds["gb300"]) / clock_ratio(kinds["gb200"]) == pytest.approx((1400 / 1200) ** POWER_EXPONENT)
    assert clock_ratio(kinds["h100-sxm-96gb-500w"]) < 1
    assert clock_ratio(replace(kinds["h100-sxm"], power_limit_w=0.0)) == 1


def test_twice_the_exponentials_make_attention_a_third_faster() -> None:
    kinds = accelerators()
    assert attention_speedup(kinds["gb300"]) == pytest.approx(4 / 3)
    assert attention_speedup(kinds["gb200"]) == 1


@pytest.mark.parametrize("name", sorted(accelerators()))
def test_no_kind_is_clocked_past_its_peak(name: str) -> None:
    chip = accelerators()[name]
    assert clock_ratio(chip) * prior_of_generation(generation_of(chip)).matmul_ratio < 0.9


def test_graphics_chips_are_generations_of_their_own() -> None:
    kinds = accelerators()
    for name, relative in (("a10g", "a100-40gb"), ("rtx-pro-6000", "b200"), ("mi250x-gcd", "mi300x")):
        assert generation_of(kinds[name]) != generation_of(kinds[relative])
        assert clock_ratio(kinds[name]) == pytest.approx(1, rel=1e-3)
