"""Errors say where, what and what to do, and keep it in fields."""

from __future__ import annotations

import pytest

from airflow_llmsched import errors
from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.errors import LlmschedError, SpecError, SpecErrors


def test_a_spec_error_names_file_line_path_value_and_hint() -> None:
    error = SpecError(path="a.b", value=3, hint="must be 4", file="f.yaml", line=7)
    assert str(error) == "f.yaml:7: a.b = 3: must be 4"
    assert (error.path, error.value, error.hint, error.file, error.line) == ("a.b", 3, "must be 4", "f.yaml", 7)
    assert error.errors == (error,)


def test_what_is_not_known_is_left_out() -> None:
    assert str(SpecError(path="a", hint="is required")) == "a: is required"
    assert str(SpecError(path="a", hint="is required", file="f")) == "f: a: is required"


def test_a_member_of_an_enumeration_is_shown_as_the_word_that_a_spec_has() -> None:
    error = SpecError(path="precision.compute", value=NumberFormat.FP8, hint="is not known")
    assert str(error) == "precision.compute = 'fp8': is not known"
    assert error.value is NumberFormat.FP8


def test_a_long_value_is_cut_in_the_message_but_kept_in_the_field() -> None:
    error = SpecError(path="a", value="x" * 1000, hint="is long")
    assert len(str(error)) < 200
    assert error.value == "x" * 1000


def test_several_errors_are_one_with_the_fields_of_the_first() -> None:
    first, second = SpecError(path="a", hint="one", file="f", line=1), SpecError(path="b", hint="two")
    both = SpecErrors([first, second])
    assert both.errors == (first, second)
    assert (both.path, both.hint, both.file, both.line) == ("a", "one", "f", 1)
    assert str(both) == "2 errors in the spec:\n  - f:1: a: one\n  - b: two"
    with pytest.raises(SpecError):
        raise both


def test_what_is_left_over_is_named_in_the_message_and_kept_in_the_field() -> None:
    error = errors.LeftoverError("the cloud did not remove 2 machines of ls-a-g1-l1", ids=["i-1", "i-2"])
    assert str(error) == "the cloud did not remove 2 machines of ls-a-g1-l1: i-1, i-2"
    assert error.ids == ("i-1", "i-2")


def test_a_quota_error_keeps_the_region_that_is_used_up() -> None:
    assert errors.QuotaError("quota", region="us-east-1").region == "us-east-1"


def test_every_error_of_ours_can_be_caught_as_one() -> None:
    ours = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert len(ours) > 8
    assert all(issubclass(each, LlmschedError) for each in ours)


def test_could_not_look_is_worth_another_try_and_never_absence() -> None:
    assert issubclass(errors.CouldNotLookError, errors.TransientError)
    assert not issubclass(errors.ObjectMissingError, errors.TransientError)
