from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.workload import OnOverrun
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.market.budget import Ask, CheckpointAndStop, Deny, Go, Standing, judge


def standing(**values: Any) -> Standing:
    """Ten hours to go at 36 dollars an hour: 360 on top of the 100 that are spent."""
    usual = {"spent_usd": 100.0, "usd_per_hour": 36.0, "left_tokens": 3.6e9, "goodput_tokens_per_s": 1e5}
    return Standing(**{**usual, "is_running": True, **values})


def test_run_goes_on_while_its_projection_fits() -> None:
    assert standing().projected_usd == pytest.approx(460.0)
    assert judge(standing(), max_usd=460.01) == Go(words="$460.00 are projected of $460.01")
    assert isinstance(judge(standing(), max_usd=None), Go)


def test_run_that_does_not_fit_is_stopped_with_a_checkpoint_and_says_by_how_much() -> None:
    verdict = judge(standing(), max_usd=400.0)
    assert isinstance(verdict, CheckpointAndStop)
    assert verdict.short_usd == pytest.approx(60.0)
    assert verdict.words == (
        "$100.00 of $400.00 are spent; 3.6e+09 tokens at 1e+05 a second take 10 h, at $36.00 an hour $460.00 in all, "
        "$60.00 too much"
    )


def test_what_does_not_run_yet_is_denied_whatever_is_wanted_of_a_running_one() -> None:
    for wanted in OnOverrun:
        assert isinstance(judge(standing(is_running=False), max_usd=400.0, on_overrun=wanted), Deny)
    assert isinstance(judge(standing(is_running=False), max_usd=500.0), Go)


def test_asking_ends_where_the_money_for_a_last_checkpoint_begins() -> None:
    ask = OnOverrun.ASK
    assert isinstance(judge(standing(save_s=600.0), max_usd=400.0, on_overrun=ask), Ask)
    assert isinstance(judge(standing(save_s=600.0, spent_usd=393.9), max_usd=400.0, on_overrun=ask), Ask)
    assert isinstance(judge(standing(save_s=600.0, spent_usd=394.0), max_usd=400.0, on_overrun=ask), CheckpointAndStop)


def test_goodput_that_falls_turns_the_verdict_though_the_price_is_the_same() -> None:
    """Half the pace is twice the bill: a cap on money alone would notice only when it is gone."""
    assert isinstance(judge(standing(), max_usd=600.0), Go)
    assert isinstance(judge(standing(goodput_tokens_per_s=5e4), max_usd=600.0), CheckpointAndStop)


def test_run_that_keeps_nothing_will_never_fit() -> None:
    verdict = judge(standing(goodput_tokens_per_s=0.0), max_usd=1e12)
    assert isinstance(verdict, CheckpointAndStop)
    assert verdict.short_usd == float("inf")
    assert "no tokens are kept" in verdict.words


def test_finished_run_owes_nothing_more() -> None:
    assert isinstance(judge(standing(left_tokens=0.0, goodput_tokens_per_s=0.0), max_usd=100.0), Go)


def test_money_that_is_gone_is_said_first() -> None:
    verdict = judge(standing(spent_usd=500.0), max_usd=400.0, on_overrun=OnOverrun.ASK)
    assert isinstance(verdict, CheckpointAndStop)
    assert verdict.words == "$500.00 of $400.00 are spent, with 3.6e+09 tokens to go"


@pytest.mark.parametrize("name", ["spent_usd", "usd_per_hour", "left_tokens", "goodput_tokens_per_s", "save_s"])
def test_negative_numbers_and_no_numbers_are_refused(name: str) -> None:
    for value in (-1.0, float("nan")):
        with pytest.raises(SpecError) as refused:
            standing(**{name: value})
        assert refused.value.path == name


ORDER = [Go, Ask, CheckpointAndStop]


@given(
    spent=st.floats(0, 1000),
    more=st.floats(0, 1000),
    price=st.floats(0, 100),
    pace=st.floats(0, 1e6),
    max_usd=st.floats(0, 2000),
    wanted=st.sampled_from(OnOverrun),
    save_s=st.floats(0, 1000),
)
def test_spending_more_never_makes_the_verdict_milder(
    *, spent: float, more: float, price: float, pace: float, max_usd: float, wanted: OnOverrun, save_s: float
) -> None:
    def verdict(spent_usd: float) -> int:
        at = standing(spent_usd=spent_usd, usd_per_hour=price, goodput_tokens_per_s=pace, save_s=save_s)
        return ORDER.index(type(judge(at, max_usd=max_usd, on_overrun=wanted)))

    assert verdict(spent) <= verdict(spent + more)
