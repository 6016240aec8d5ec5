"""Means of the largest of n standard normal variables: Harter (1961), "Expected values of normal order statistics"."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.calibration import rates_of
from airflow_llmsched.planner.perf.hardware import node_shape
from airflow_llmsched.planner.perf.machine import Machine
from airflow_llmsched.planner.perf.step import step_terms
from airflow_llmsched.planner.perf.stragglers import (
    VARYING_TERMS,
    expected_maximum,
    maximum_quantile,
    step_quantile_s,
    straggler_s,
)
from tests.support.fleets import job

H100 = node_shape("p5.48xlarge")


def machine(num: int = 1, *, jitter_ratio: float = 0.01) -> Machine:
    rates = replace(rates_of(H100.accelerator), jitter_ratio=jitter_ratio)
    return Machine(shape=H100, ranks_per_node_C=np.full(num, 8), rates=rates)


@pytest.mark.parametrize(
    ("num", "mean"),
    [
        (1, 0.0),
        (2, 0.56419),
        (3, 0.84628),
        (10, 1.53875),
        (100, 2.50759),
        (400, 2.96818),
    ],
)
def test_the_mean_of_the_largest_is_as_tabled(num: int, mean: float) -> None:
    assert expected_maximum(num) == pytest.approx(mean, abs=2e-5)


def test_the_largest_of_very_many_nears_the_law_of_extreme_values() -> None:
    """Gumbel: location a = F^-1(1 - 1/n) and scale about 1/a (David and Nagaraja 2003, section 10.5)."""
    num = 10**6
    location = -maximum_quantile(1, share=1 / num)
    assert expected_maximum(num) == pytest.approx(location + 0.5772 / location, rel=0.005)


@given(num=st.integers(1, 100_000), share=st.floats(0.01, 0.99))
def test_more_ranks_are_never_faster_and_quantiles_keep_their_order(num: int, share: float) -> None:
    assert expected_maximum(num + 1) > expected_maximum(num) - 1e-9
    assert maximum_quantile(num + 1, share=share) > maximum_quantile(num, share=share)
    assert maximum_quantile(num, share=0.5) < maximum_quantile(num, share=0.9)


def test_drawn_steps_have_the_mean_and_the_quantiles_that_are_predicted() -> None:
    drawn = np.random.default_rng(7).standard_normal((20_000, 64)).max(axis=1)
    assert drawn.mean() == pytest.approx(expected_maximum(64), abs=0.02)
    for share in (0.5, 0.9):
        assert np.quantile(drawn, share) == pytest.approx(maximum_quantile(64, share=share), abs=0.03)


def test_a_rank_alone_waits_for_nobody_and_its_steps_vary_all_the_same() -> None:
    table = LayoutTable.of([ParallelLayout(dp=1), ParallelLayout(dp=64)])
    terms = {"matmul": np.array([10.0, 10.0]), "data_parallel": np.array([0.0, 5.0])}
    waited_s = straggler_s(terms, table, machine(2))
    assert waited_s.tolist() == pytest.approx([0.0, 0.1 * expected_maximum(64)])
    p90_s = step_quantile_s(terms | {"stragglers": waited_s}, table, machine(2), share=0.9)
    assert p90_s.tolist() == pytest.approx(
        [10.0 + 0.1 * 1.28155, 15.0 + 0.1 * maximum_quantile(64, share=0.9)], rel=1e-6
    )


def test_waiting_is_a_part_of_the_step_and_none_without_jitter() -> None:
    table = LayoutTable.of([ParallelLayout(dp=512, zero_stage=1)])
    steady, varying = (step_terms(job(), table, machine(jitter_ratio=ratio)) for ratio in (0.0, 0.02))
    computed_s = sum(float(varying[name][0]) for name in VARYING_TERMS)
    assert float(steady["stragglers"][0]) == 0.0
    assert float(varying["stragglers"][0]) == pytest.approx(0.02 * computed_s * expected_maximum(512))


def test_steps_of_the_prior_spread_as_much_as_those_of_published_logs() -> None:
    """MLPerf Training 4.0 to 5.1: the 90th percentile of a run's steps is 1.007 times their median, over all sizes."""
    table = LayoutTable.of([ParallelLayout(dp=size, zero_stage=1) for size in (8, 64, 512)])
    here = replace(machine(3), rates=None)
    terms = step_terms(job(), table, here)
    p50_s, p90_s = (step_quantile_s(terms, table, here, share=share) for share in (0.5, 0.9))
    assert (p90_s / p50_s).tolist() == pytest.approx([1.004, 1.004, 1.004], abs=0.003)
