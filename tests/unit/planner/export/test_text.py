from __future__ import annotations

import json
import shlex
import tomllib

import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.planner.export.text import arguments_text, comments, json_text, toml_text, yaml_text

KEYS = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS = st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT


def test_each_option_has_a_line_and_keeps_its_values() -> None:
    text = arguments_text(["--size", "8", "--flag", "--names", "a", "b c"])
    assert text == "--size 8\n--flag\n--names a 'b c'\n"


@given(st.lists(TEXT, max_size=6))
def test_a_shell_reads_back_the_arguments(arguments: list[str]) -> None:
    assert shlex.split(arguments_text(arguments)) == arguments


@given(st.dictionaries(KEYS, st.dictionaries(KEYS, SCALARS | st.lists(TEXT, max_size=3), min_size=1), max_size=4))
def test_toml_reads_back_as_written(sections: dict[str, dict[str, object]]) -> None:
    assert tomllib.loads(toml_text(sections)) == sections


@given(st.dictionaries(KEYS, st.booleans() | st.integers() | st.just("plain text: of [any] #kind"), max_size=4))
def test_yaml_reads_back_as_written(settings: dict[str, object]) -> None:
    nested = {**settings, "nested": {"a": 1, "b": "no"}}
    assert yaml.safe_load(yaml_text(nested)) == nested


def test_what_is_empty_is_left_out_and_json_reads_back() -> None:
    assert toml_text({"empty": {}, "full": {"a": 1}}) == "[full]\na = 1\n"
    assert yaml_text({"empty": {}, "a": None}) == "a: null\n"
    assert json.loads(json_text({"a": {"b": [1, True]}})) == {"a": {"b": [1, True]}}


def test_a_comment_stays_one_line() -> None:
    assert comments(["two\nlines"]) == "# two lines\n"
