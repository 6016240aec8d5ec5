from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.reports import words
from airflow_llmsched.reports.build import build_report
from tests.support.history import preempted_run


def test_cost_of_earlier_generations_is_said_only_where_there_were_any():
    built = build_report(**preempted_run())
    assert words.earlier(built) == ""
    assert words.earlier(replace(built, num_earlier_attempts=1, earlier_usd=2.5)) == (
        "$2.50 of it for 1 launch before the last clear"
    )
    assert words.earlier(replace(built, num_earlier_attempts=3, earlier_usd=None)).startswith("— of it for 3 launches")


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (None, "—"),
        (0.0, "0 ms"),
        (0.25, "250 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (185.2, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (5 * 3600 + 185, "5 h 03 min"),
        (3 * 86400 + 4 * 3600, "3 d 04 h"),
        (-61.0, "-1 min 01 s"),
    ],
)
def test_durations_use_the_two_units_that_matter(value_s, text):
    assert words.duration(value_s) == text


@given(st.floats(-1e9, 1e9))
def test_every_duration_has_words(value_s):
    assert words.duration(value_s)


def test_moments_are_utc():
    assert words.moment(0.0) == "1970-01-01 00:00:00 UTC"
    assert words.moment(None) == words.UNKNOWN


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(None, "—"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes_are_binary(num_bytes, text):
    assert words.size(num_bytes) == text


@pytest.mark.parametrize(
    ("number", "text"), [(None, "—"), (0, "0"), (999_999, "999,999"), (1_250_000, "1.25 M"), (2.5e12, "2.5 T")]
)
def test_counts_are_exact_below_a_million(number, text):
    assert words.count(number) == text


@pytest.mark.parametrize(("usd", "text"), [(None, "—"), (0.0, "$0.00"), (0.0269, "$0.0269"), (1234.5, "$1,234.50")])
def test_small_sums_keep_their_digits(usd, text):
    assert words.money(usd) == text


def test_ratios_and_losses():
    assert words.percent(0.4857) == "48.6%"
    assert words.percent(None) == words.UNKNOWN
    assert words.loss(1.98768) == "1.9877"
    assert words.loss(None) == words.UNKNOWN


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), "none"),
        ((7,), "7"),
        ((5, 6, 7, 8, 12), "5-8, 12"),
        ((8, 5, 5, 6), "5-6, 8"),
        ((1, 3, 5, 7, 9, 11, 13, 14, 15), "1, 3, 5, 7, 9, 11 and 3 more"),
    ],
)
def test_step_numbers_read_as_ranges(numbers, text):
    assert words.steps(numbers) == text
