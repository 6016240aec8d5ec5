"""Keys are typed when read, and what was not read is left over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs.hf_config.keys import Keys


def keys(**config: Any) -> Keys:
    return Keys(config, file="config.json")


def test_what_was_not_placed_is_left_over_unless_it_is_neutral() -> None:
    told = keys(a=1, b=2, rope_theta=1e4, _private=3, inner={"c": 4})
    told.size("a")
    inner = told.nested("inner")
    assert told.left_over() == ["b", "inner.c"]
    assert inner.left_over() == ["inner.c"]
    with pytest.raises(SpecError, match=r"b: could not place 'b', 'inner.c'"):
        told.require_all_placed()
    told.ignore("b")
    inner.ignore("c")
    told.require_all_placed()


def test_an_absent_key_takes_the_default_and_null_is_nothing() -> None:
    told = keys(null=None)
    assert (told.size("absent", 3), told.size("null", 3)) == (3, None)
    assert (told.count("absent", 3), told.count("null", 3)) == (3, 3)
    assert (told.flag("absent", True), told.flag("null", True)) == (True, True)
    assert told.words("null", length=2) is None
    assert told.numbers("null", below=2) is None


def test_lists_are_for_layers() -> None:
    told = keys(words=["a", "b"], numbers=[3, 1, 3], bits=[1, 0], none=[])
    assert told.words("words", length=2) == ["a", "b"]
    assert told.numbers("numbers", below=4) == (1, 3)
    assert told.bits("bits", length=2) == [True, False]
    assert told.bits("none", length=2) is None


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (0, lambda told: told.size("k")),
        (True, lambda told: told.size("k")),
        (2**31, lambda told: told.size("k")),
        ("1", lambda told: told.size("k")),
        (-1, lambda told: told.count("k")),
        (None, lambda told: told.need("k")),
        (1, lambda told: told.flag("k", False)),
        (1, lambda told: told.word("k")),
        (["a"], lambda told: told.words("k", length=2)),
        ([1, 2], lambda told: told.words("k", length=2)),
        ([4], lambda told: told.numbers("k", below=4)),
        ([True], lambda told: told.numbers("k", below=4)),
        ([1, 0, 1], lambda told: told.bits("k", length=2)),
        ([2, 0], lambda told: told.bits("k", length=2)),
        ([], lambda told: told.nested("k")),
        (1, lambda told: told.only("k", True)),
        ("x", lambda told: told.only("k", "y", "z")),
        ("x", lambda told: told.only("k")),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key(value: Any, read: Callable[[Keys], Any]) -> None:
    with pytest.raises(SpecError) as caught:
        read(keys(k=value))
    assert (caught.value.path, caught.value.file) == ("k", "config.json")
