from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.topology.patterns import MAX_PATTERN, compiled


@pytest.mark.parametrize(
    "pattern",
    [
        "^node-[0-9]+$",
        "rack1-.*",
        "n(?:a|b)[0-3]",
        "gpu-[0-9]{1,3}",
        r"a\+b",
        "[+*]x",
        "(abc){3}",
        "(?:ab)+c",
        "n[]a]+",
    ],
)
def test_patterns_that_people_write_are_taken(pattern: str) -> None:
    compiled(pattern)


def test_a_pattern_is_searched_in_names() -> None:
    assert compiled("rack[12]").search("dc1-rack2-n7")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a+)+$", "repeats a group"),
        ("((a+)b)*", "repeats a group"),
        ("(a|aa)*$", "repeats a group"),
        ("(a?){9,}", "repeats a group"),
        (".*.*.*.*x", "4 repeats"),
        (r"(a)\1", "refers back"),
        ("(?P<n>a)(?P=n)", "refers back"),
        ("(?=a)b", "looks around"),
        ("[[:alpha:]]", "is no pattern"),
        ("[", "is no pattern"),
        ("(", "is no pattern"),
        ("a{99999999999}", "is no pattern"),
        ("a" * (MAX_PATTERN + 1), "longer than"),
    ],
)
def test_patterns_that_could_take_forever_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compiled(pattern)


@given(st.text(alphabet="ab(|)*+?{}[]^$.\\1,:P=<>", max_size=20))
def test_any_pattern_that_is_taken_ends_soon(pattern: str) -> None:
    try:
        taken = compiled(pattern)
    except ValueError:
        return
    started_s = time.process_time()
    taken.search("a" * 63 + "!")
    assert time.process_time() - started_s < 2.0
