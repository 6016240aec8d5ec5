from __future__ import annotations

import pytest

from airflow_llmsched.clouds.parts import of_each
from airflow_llmsched.errors import CouldNotLookError, PartlySeenError


def silent() -> list[int]:
    raise CouldNotLookError("no answer")


def half() -> list[int]:
    raise PartlySeenError("b2 is away", seen=[5], unseen=["b2"])


def test_what_all_parts_have_comes_in_the_order_asked_for() -> None:
    looks = {"a": lambda: [3, 1], "b": lambda: [2]}
    assert of_each(looks) == [3, 1, 2]
    assert of_each(looks, order=int) == [1, 2, 3]
    assert of_each({}) == []


def test_a_silent_part_is_named_with_its_words_beside_what_the_others_have() -> None:
    with pytest.raises(PartlySeenError, match="b: no answer") as caught:
        of_each({"a": lambda: [3], "b": silent, "c": lambda: [1]}, order=int)
    assert (caught.value.seen, caught.value.unseen) == ((1, 3), ("b",))


def test_a_part_that_is_itself_seen_in_part_names_what_of_it_is_missing() -> None:
    with pytest.raises(PartlySeenError, match="b2 is away") as caught:
        of_each({"a": half, "b2": silent})
    assert (caught.value.seen, caught.value.unseen) == ((5,), ("b2",))


def test_where_no_part_answers_nothing_was_seen() -> None:
    for looks in ({"a": silent}, {"a": silent, "b": silent}):
        with pytest.raises(CouldNotLookError, match="no answer") as caught:
            of_each(looks)
        assert not isinstance(caught.value, PartlySeenError)
