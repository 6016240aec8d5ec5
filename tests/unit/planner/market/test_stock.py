from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.forecast import AvailabilityTrace
from airflow_llmsched.planner.market.stock import ALWAYS, StockModel
from airflow_llmsched.units import HOUR_S
from tests.support.pools import TICK_S, stock_drawn

SCARCE = StockModel(out_per_hour=0.1, back_per_hour=0.4)


def test_share_of_time_out_of_stock_is_the_textbooks() -> None:
    assert SCARCE.out_ratio == pytest.approx(0.2)
    assert ALWAYS.out_ratio == 0.0


def test_what_is_seen_now_fades_into_the_mean() -> None:
    seen = [SCARCE.out_probability(in_stock=False, after_s=hours * HOUR_S) for hours in (0, 1, 5, 100)]
    assert seen[0] == 1.0
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == pytest.approx(0.2)
    assert SCARCE.out_probability(in_stock=True, after_s=0.0) == 0.0
    assert SCARCE.out_probability(in_stock=True, after_s=1e9) == pytest.approx(0.2)


def test_margin_is_as_many_ticks_as_the_promise_takes_and_no_more() -> None:
    margin_s = SCARCE.margin_s(max_miss_ratio=0.01, tick_s=TICK_S)
    assert margin_s % TICK_S == 0.0
    assert SCARCE.miss_probability(slack_s=margin_s, margin_s=margin_s, tick_s=TICK_S) <= 0.01
    less_s = margin_s - TICK_S
    assert SCARCE.miss_probability(slack_s=less_s, margin_s=less_s, tick_s=TICK_S) > 0.01


def test_no_margin_is_needed_where_stock_is_surer_than_the_promise() -> None:
    assert ALWAYS.margin_s(max_miss_ratio=1e-9, tick_s=TICK_S) == 0.0
    assert SCARCE.margin_s(max_miss_ratio=0.2, tick_s=TICK_S) == 0.0


@given(
    out=st.floats(0.001, 2.0),
    back=st.floats(0.05, 5.0),
    promise=st.floats(1e-6, 0.5),
    tick_s=st.sampled_from([60.0, 300.0, 3600.0, 7200.0]),
)
def test_margin_keeps_every_promise(out: float, back: float, promise: float, tick_s: float) -> None:
    """Also with long ticks, between which stock may come and go again."""
    model = StockModel(out_per_hour=out, back_per_hour=back)
    margin_s = model.margin_s(max_miss_ratio=promise, tick_s=tick_s)
    assert model.miss_probability(slack_s=margin_s + 1e9, margin_s=margin_s, tick_s=tick_s) <= promise * (1 + 1e-9)


@given(
    slack_h=st.lists(st.floats(-1.0, 60.0), min_size=2, max_size=6).map(sorted), in_stock=st.sampled_from([None, False])
)
def test_more_time_to_spare_never_makes_it_likelier_to_be_late(slack_h: list[float], in_stock: bool | None) -> None:
    margin_s = SCARCE.margin_s(max_miss_ratio=0.001, tick_s=TICK_S)
    stated = [
        SCARCE.miss_probability(slack_s=hours * HOUR_S, margin_s=margin_s, tick_s=TICK_S, in_stock=in_stock)
        for hours in slack_h
    ]
    assert stated == sorted(stated, reverse=True)
    assert all(0.0 <= each <= 1.0 for each in stated)


def test_what_is_due_and_in_stock_cannot_be_missed() -> None:
    assert SCARCE.miss_probability(slack_s=0.0, margin_s=HOUR_S, tick_s=TICK_S, in_stock=True) == 0.0
    assert SCARCE.miss_probability(slack_s=-2 * TICK_S, margin_s=HOUR_S, tick_s=TICK_S, in_stock=True) == 1.0


@pytest.mark.parametrize("tick_s", [300.0, 3600.0])
def test_stock_that_is_drawn_is_out_as_often_as_stated(tick_s: float) -> None:
    in_stock_T = stock_drawn(SCARCE, num_ticks=400_000, seed=1, tick_s=tick_s)
    asked = 12
    windows = np.lib.stride_tricks.sliding_window_view(~in_stock_T, asked + 1).all(axis=1)
    stated = SCARCE.miss_probability(slack_s=1e9, margin_s=asked * tick_s, tick_s=tick_s)
    assert windows.mean() == pytest.approx(stated, rel=0.15)


def test_fit_finds_the_rates_and_shrinks_what_it_never_saw() -> None:
    traces = [AvailabilityTrace(TICK_S, stock_drawn(SCARCE, num_ticks=40_000, seed=seed)) for seed in range(3)]
    found = StockModel.of(traces)
    assert (found.out_per_hour, found.back_per_hour) == pytest.approx((0.1, 0.4), rel=0.15)
    never = StockModel.of([AvailabilityTrace(TICK_S, np.ones(1200, dtype=bool))])
    assert never.out_per_hour == pytest.approx(0.5 / 101, rel=0.01)
    assert never.back_per_hour == pytest.approx(0.5)


def test_nonsense_is_refused() -> None:
    with pytest.raises(SpecError, match="back_per_hour"):
        StockModel(out_per_hour=1.0, back_per_hour=0.0)
    with pytest.raises(SpecError, match="out_per_hour"):
        StockModel(out_per_hour=float("nan"), back_per_hour=1.0)
    with pytest.raises(SpecError, match="max_miss_ratio"):
        SCARCE.margin_s(max_miss_ratio=0.0, tick_s=TICK_S)
    with pytest.raises(SpecError, match="more than once"):
        StockModel.of([AvailabilityTrace(TICK_S, np.ones(1, dtype=bool))])
