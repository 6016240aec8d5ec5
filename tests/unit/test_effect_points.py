"""Points tell a listener of both sides of an effect, and nobody of anything without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_llmsched import effect_points
from airflow_llmsched.effect_points import EffectPoint, Side, listen, points

_WITH = EffectPoint("test.with")
_DECORATED = EffectPoint("test.decorated")
_OUTER = EffectPoint("test.outer")

Told = list[tuple[str, Side]]


@pytest.fixture
def told() -> Iterator[Told]:
    heard: Told = []
    listen(lambda name, side: heard.append((name, side)))
    yield heard
    listen(None)


@_DECORATED
def _act(value: int, *, times: int = 1) -> int:
    """Multiply."""
    if times == 0:
        raise LookupError("nothing to do")
    return value * times


def test_a_listener_is_told_before_and_after_a_block(told: Told) -> None:
    with _WITH:
        assert told == [("test.with", Side.BEFORE)]
    assert told == [("test.with", Side.BEFORE), ("test.with", Side.AFTER)]


def test_a_decorated_function_keeps_its_name_words_arguments_and_result(told: Told) -> None:
    assert (_act(2, times=3), _act.__name__, _act.__doc__) == (6, "_act", "Multiply.")
    assert told == [("test.decorated", Side.BEFORE), ("test.decorated", Side.AFTER)]


def test_an_effect_that_failed_has_no_far_side(told: Told) -> None:
    with pytest.raises(LookupError):
        _act(2, times=0)
    assert told == [("test.decorated", Side.BEFORE)]


def test_points_nest(told: Told) -> None:
    with _OUTER:
        _act(1)
    assert [name for name, _ in told] == ["test.outer", "test.decorated", "test.decorated", "test.outer"]


@pytest.mark.parametrize("side", Side)
def test_what_a_listener_raises_ends_the_effects_caller_there(side: Side) -> None:
    done: list[str] = []

    def shoot(_name: str, at: Side) -> None:
        if at is side:
            raise SystemExit

    listen(shoot)
    try:
        with pytest.raises(SystemExit), _WITH:
            done.append("done")
    finally:
        listen(None)
    assert done == ([] if side is Side.BEFORE else ["done"])


def test_without_a_listener_nothing_is_told_and_a_block_may_be_entered_again(told: Told) -> None:
    listen(None)
    with _WITH, _WITH:
        assert _act(5) == 5
    assert told == []


def test_a_second_listener_takes_the_place_of_the_first(told: Told) -> None:
    second: list[str] = []
    listen(lambda name, _side: second.append(name))
    with _WITH:
        pass
    assert (told, second) == ([], ["test.with", "test.with"])


def test_a_name_is_taken_once() -> None:
    assert {"test.with", "test.decorated", "test.outer"} <= points()
    with pytest.raises(ValueError, match=r"already an effect point 'test\.with'"):
        EffectPoint("test.with")


def test_nobody_listens_unless_asked() -> None:
    assert effect_points._listener is None
