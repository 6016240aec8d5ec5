"""Problems become one error that names file, line, path and value of each."""

from __future__ import annotations

from airflow_llmsched.errors import SpecErrors
from airflow_llmsched.specs import tree
from airflow_llmsched.specs.problems import Problem, nearest, to_error

ROOT = tree.parse("a: 1\nb: 2\n", file="f.yaml")


def test_the_nearest_word_forgives_case_and_dashes_but_not_everything() -> None:
    assert nearest("Micro-Batch-Sise", ["micro_batch_size", "recompute"]) == "micro_batch_size"
    assert nearest("zzz", ["micro_batch_size", "recompute"]) is None


def test_one_problem_is_one_error_with_its_line() -> None:
    error = to_error([Problem(path=("b",), value=2, hint="is odd")], ROOT, file="f.yaml")
    assert str(error) == "f.yaml:2: b = 2: is odd"
    assert error.errors == (error,)


def test_several_problems_are_listed_in_the_order_of_their_lines() -> None:
    problems = [Problem(path=("b",), hint="second"), Problem(path=("a",), hint="first", value=1)]
    error = to_error(problems, ROOT, file="f.yaml")
    assert isinstance(error, SpecErrors)
    assert [each.line for each in error.errors] == [1, 2]
    assert (error.path, error.line, error.value, error.hint, error.file) == ("a", 1, 1, "first", "f.yaml")
    assert "2 errors" in str(error)
    assert str(error).index("first") < str(error).index("second")
