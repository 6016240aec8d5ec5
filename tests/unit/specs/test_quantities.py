"""Quantities keep their units apart, stay exact, and read back what they write."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.specs import quantities
from airflow_llmsched.specs.quantities import QuantityError
from tests.support.specs import steady

WHOLE = st.integers(min_value=0, max_value=2**63 - 1)
REAL = st.floats(min_value=0, max_value=1e15, allow_nan=False)

PARSERS = [
    quantities.parse_bytes,
    quantities.parse_duration_s,
    quantities.parse_tokens,
    quantities.parse_sequences,
    quantities.parse_usd,
    quantities.parse_ratio,
    quantities.parse_bytes_per_s,
]


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (quantities.parse_bytes, "80GiB", 85_899_345_920),
        (quantities.parse_bytes, "80GB", 80_000_000_000),
        (quantities.parse_bytes, " 1.5 GiB ", 1_610_612_736),
        (quantities.parse_bytes, "1.1GB", 1_100_000_000),
        (quantities.parse_bytes, "512 B", 512),
        (quantities.parse_duration_s, "36h", 129_600.0),
        (quantities.parse_duration_s, "90s", 90.0),
        (quantities.parse_duration_s, "1h30min", 5400.0),
        (quantities.parse_duration_s, "1d 12h", 129_600.0),
        (quantities.parse_duration_s, "250ms", 0.25),
        (quantities.parse_tokens, "4Mi tokens", 4_194_304),
        (quantities.parse_tokens, "4M tokens", 4_000_000),
        (quantities.parse_tokens, "15T tokens", 15 * 10**12),
        (quantities.parse_tokens, "300Btokens", 300 * 10**9),
        (quantities.parse_tokens, "1e12 tokens", 10**12),
        (quantities.parse_tokens, "1 token", 1),
        (quantities.parse_sequences, "512 sequences", 512),
        (quantities.parse_usd, "$120", 120.0),
        (quantities.parse_usd, "$0.5", 0.5),
        (quantities.parse_usd, "120 USD", 120.0),
        (quantities.parse_ratio, "5%", 0.05),
        (quantities.parse_ratio, "100 %", 1.0),
        (quantities.parse_bytes_per_s, "400 Gbit/s", 50e9),
        (quantities.parse_bytes_per_s, "3.35 TB/s", 3.35e12),
        (quantities.parse_bytes_per_s, "1GiB/s", 2.0**30),
    ],
)
def test_a_quantity_reads_as_its_exact_value_in_the_base_unit(parse, text, expected) -> None:
    assert parse(text) == expected


def test_gb_and_gib_differ() -> None:
    assert quantities.parse_bytes("80GiB") - quantities.parse_bytes("80GB") == 5_899_345_920


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("value", [80, 0.5, 0, "80", "-1", ".5"])
def test_a_bare_number_is_refused_with_an_example_of_how_to_write_it(parse, value) -> None:
    with pytest.raises(QuantityError, match=r"write .*\d"):
        parse(value)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        [],
        {},
        "",
        " ",
        "GiB",
        "$",
        "%",
        "nan",
        "inf",
        "nan s",
        "-inf B",
        "1e999 B",
        "1 2 s",
        "9" * 500,
        "1,000 s",
        "٣s",
    ],
)
def test_anything_else_is_refused_as_a_quantity_error(parse, value) -> None:
    with pytest.raises(QuantityError):
        parse(value)


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (quantities.parse_bytes, "-1GB", "negative"),
        (quantities.parse_duration_s, "-2h", "negative"),
        (quantities.parse_usd, "$-5", "negative"),
        (quantities.parse_bytes, "80gib", "'GiB'"),
        (quantities.parse_bytes, "80Gb", "'GB'"),
        (quantities.parse_tokens, "4Mi", "unknown unit"),
        (quantities.parse_tokens, "4M tokenz", "'M token"),
        (quantities.parse_duration_s, "3 hours", "unknown unit 'hours'"),
        (quantities.parse_bytes, "0.5B", "whole number of bytes"),
        (quantities.parse_bytes, "1.3GiB", "1395864371"),
        (quantities.parse_bytes, "9000000PB", "too large"),
        (quantities.parse_tokens, "1e19 tokens", "too large"),
        (quantities.parse_duration_s, "1e300h", "too large"),
        (quantities.parse_ratio, "101%", "more than 100%"),
        (quantities.parse_bytes_per_s, "400 Gbps", "unknown unit"),
        (quantities.parse_usd, "$120 USD", "not an amount|unknown unit|is not"),
    ],
)
def test_a_wrong_quantity_says_what_is_wrong(parse, text, says) -> None:
    with pytest.raises(QuantityError, match=says):
        parse(text)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (quantities.format_bytes(80 * 2**30), "80GiB"),
        (quantities.format_bytes(80 * 10**9), "80GB"),
        (quantities.format_bytes(128_000), "128kB"),
        (quantities.format_bytes(0), "0B"),
        (quantities.format_duration_s(129_600), "36h"),
        (quantities.format_duration_s(90), "90s"),
        (quantities.format_duration_s(0.25), "0.25s"),
        (quantities.format_duration_s(0), "0s"),
        (quantities.format_tokens(4_194_304), "4Mi tokens"),
        (quantities.format_tokens(15 * 10**12), "15T tokens"),
        (quantities.format_sequences(1024), "1024 sequences"),
        (quantities.format_usd(120.0), "120 USD"),
        (quantities.format_ratio(0.05), "5%"),
        (quantities.format_bytes_per_s(3.35e12), "3.35 TB/s"),
        (quantities.format_bytes_per_s(50e9), "50 GB/s"),
    ],
)
def test_a_quantity_is_written_in_the_unit_a_person_would_choose(written, expected) -> None:
    assert written == expected


@steady
@given(WHOLE)
def test_bytes_survive_the_round_trip(num_bytes) -> None:
    assert quantities.parse_bytes(quantities.format_bytes(num_bytes)) == num_bytes


@steady
@given(WHOLE)
def test_tokens_survive_the_round_trip(num_tokens) -> None:
    assert quantities.parse_tokens(quantities.format_tokens(num_tokens)) == num_tokens


@steady
@given(WHOLE)
def test_sequences_survive_the_round_trip(num_sequences) -> None:
    assert quantities.parse_sequences(quantities.format_sequences(num_sequences)) == num_sequences


@steady
@given(REAL)
def test_durations_survive_the_round_trip(duration_s) -> None:
    assert quantities.parse_duration_s(quantities.format_duration_s(duration_s)) == duration_s


@steady
@given(REAL)
def test_dollars_survive_the_round_trip(amount_usd) -> None:
    assert quantities.parse_usd(quantities.format_usd(amount_usd)) == amount_usd


@steady
@given(st.floats(min_value=0, max_value=1))
def test_ratios_survive_the_round_trip(ratio) -> None:
    assert quantities.parse_ratio(quantities.format_ratio(ratio)) == ratio


@steady
@given(REAL)
def test_rates_survive_the_round_trip(rate_bytes_per_s) -> None:
    assert quantities.parse_bytes_per_s(quantities.format_bytes_per_s(rate_bytes_per_s)) == rate_bytes_per_s


@steady
@given(st.sampled_from(PARSERS), st.text(max_size=30) | st.floats() | st.integers())
def test_any_value_is_read_to_a_finite_number_or_refused(parse, value) -> None:
    try:
        amount = parse(value)
    except QuantityError:
        return
    assert math.isfinite(amount)
    assert 0 <= amount <= quantities.LIMIT
