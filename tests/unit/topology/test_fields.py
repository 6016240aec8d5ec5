from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.fields import Fields, named, parse_json

THING = Fields(
    {
        "name": "a",
        "count": 3,
        "on": True,
        "inner": {"x": "y"},
        "items": [{"k": 1}],
        "words": ["a"],
        "labels": {"l": "1"},
    },
    "thing 'a'",
)


def test_fields_are_asked_for_by_kind() -> None:
    assert (THING.text("name"), THING.text("count"), THING.text("none", "-")) == ("a", "3", "-")
    assert (THING.whole("count"), THING.flag("on"), THING.flag("none")) == (3, True, False)
    assert (THING.child("inner").text("x"), THING.child("none").names) == ("y", ())
    assert [each.whole("k") for each in THING.children("items")] == [1]
    assert (THING.texts("words"), THING.texts("none")) == (("a",), ())
    assert (THING.table("labels"), THING.table_of(("name", "none"))) == ({"l": "1"}, {"name": "a"})


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda thing: thing.text("none"), "thing 'a': none: is missing and not text"),
        (lambda thing: thing.text("on"), "on: is true or false and not text"),
        (lambda thing: thing.whole("name"), "name: must be a whole number"),
        (lambda thing: thing.flag("name"), "name: is text and neither"),
        (lambda thing: thing.child("words"), "words: is a list and not an object"),
        (lambda thing: thing.children("name"), "name: is text and not a list"),
        (lambda thing: thing.children("words"), r"words\[0\]: is text and not an object"),
        (lambda thing: thing.texts("items"), "items: must be a list of texts"),
        (lambda thing: thing.children("items")[0].whole("z"), r"items\[0\]: z"),
        (lambda thing: thing.called(named("node", "b")).whole("z"), "node 'b': z"),
        (lambda thing: Fields({"n": 10**5000}, "big").text("n"), "far too large"),
    ],
)
def test_what_has_another_kind_is_refused_with_object_and_field(ask: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        ask(THING)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{\n"a": \n}', "list: line 3: is no JSON"),
        ("[" * 100_000, "list: is no JSON"),
        ("1" * 5000, "list: is no JSON"),
    ],
)
def test_what_is_no_json_is_refused(text: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        parse_json(text, source="list")


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_json(text, source="list")
    except DataError:
        return
