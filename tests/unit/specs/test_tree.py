"""YAML is read into values that know their line, within limits, and by the 1.2 core rules."""

from __future__ import annotations

import contextlib
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs import tree
from tests.support.specs import steady


def refuse(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        tree.parse(text, file="f.yaml")
    assert caught.value.file == "f.yaml"
    return caught.value


def test_every_node_knows_its_line() -> None:
    root = tree.parse("a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n", file="f")
    assert root.plain() == {"a": 1, "b": ["x", {"c": 2, "d": 3}]}
    assert root.line_of(("a",)) == 1
    assert root.line_of(("b", 0)) == 3
    assert root.line_of(("b", 1, "d")) == 5


def test_the_line_of_something_absent_is_that_of_the_block_it_is_missing_from() -> None:
    root = tree.parse("a: 1\nb:\n  c: 2\n", file="f")
    assert root.line_of(("b", "missing")) == 2
    assert root.line_of(("missing",)) == 1
    assert root.line_of(("b", 7)) == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("off", "off"),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        ("012", 12),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("true", True),
        ("~", None),
        ("", None),
        ("'true'", "true"),
        ('"12"', "12"),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_scalars_follow_the_core_rules_of_yaml_1_2(text, value) -> None:
    read = tree.parse(f"a: {text}", file="f").plain()["a"]
    assert read == value
    assert type(read) is type(value)


def test_infinities_are_numbers_for_the_schema_to_refuse() -> None:
    assert tree.parse("[.inf, -.inf]", file="f").plain() == [math.inf, -math.inf]
    assert math.isnan(tree.parse("[.nan]", file="f").plain()[0])


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    error = refuse("a: 1\nb:\n  c: 1\n  c: 2\n")
    assert (error.line, error.path) == (4, "b")
    assert "line 3" in str(error)


def test_aliases_are_followed() -> None:
    assert tree.parse("a: &x {k: [1]}\nb: *x\n", file="f").plain() == {"a": {"k": [1]}, "b": {"k": [1]}}


def test_a_billion_laughs_are_refused_before_they_are_built() -> None:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 6)}]" for i in range(1, 10)]
    assert "aliases" in str(refuse("\n".join(lines)))


def test_many_aliases_are_refused() -> None:
    assert "aliases" in str(refuse("a: &a x\nb: [" + ", ".join(["*a"] * 65) + "]"))


@pytest.mark.parametrize("text", ["[" * 25, "{a: " * 25, "\n".join("  " * i + "a:" for i in range(30)), "[" * 500_000])
def test_deep_nesting_is_refused(text) -> None:
    assert "nest" in str(refuse(text))


def test_a_text_over_the_size_limit_is_refused_unread() -> None:
    assert "1048576" in str(refuse("a: " + "x" * tree.MAX_BYTES))


def test_more_values_than_the_limit_are_refused() -> None:
    assert "values" in str(refuse("[" + "x," * (tree.MAX_NODES + 1) + "]"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("# only a comment", "is empty"),
        ("a: !!python/object/apply:os.system [x]", "tag"),
        ("a: !!str 1", "tag"),
        ("--- a\n--- b", "second document"),
        ("a: &a [*a]", "inside its own anchor"),
        ("a: *nowhere", "nothing is anchored"),
        ("? [x, y]\n: 1", "key that is not text"),
        ("a: &k key\n*k : 2", "key that is not text"),
        ("a: 9223372036854775808", "2^63"),
        ("a: " + "9" * 5000, "2^63"),
        ("a: 'open", "not valid YAML"),
        ("a: \x00", "not valid YAML"),
        ("a: \ud800", "Unicode"),
        ("a: b: c", "not valid YAML"),
        ("%FOO bar", "not valid YAML"),
    ],
)
def test_what_no_spec_needs_is_refused(text, says) -> None:
    assert says in str(refuse(text))


@steady
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_as_a_spec_error(text) -> None:
    with contextlib.suppress(SpecError):
        tree.parse(text, file="f").plain()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@steady
@given(
    st.dictionaries(st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=8), JSON, max_size=4)
)
def test_plain_values_come_back_as_they_were(value) -> None:
    assert tree.from_plain(value, file="f").plain() == value


@steady
@given(st.dictionaries(st.from_regex("[a-z]{1,8}", fullmatch=True), st.text(max_size=20), min_size=1, max_size=4))
def test_quoted_text_reads_back_from_what_a_yaml_writer_writes(value) -> None:
    text = yaml.safe_dump(value, default_style='"')
    assert tree.parse(text, file="f").plain() == value


@pytest.mark.parametrize(
    "value", [object(), {"a": {1, 2}}, {"a": b"x"}, {1: "x"}, {"a": 2**63}, {"a": "x" * (2**20 + 1)}]
)
def test_other_plain_values_are_refused(value) -> None:
    with pytest.raises(SpecError):
        tree.from_plain(value, file="f")


def test_a_mapping_that_holds_itself_is_refused() -> None:
    loop: dict[str, object] = {}
    loop["self"] = loop
    with pytest.raises(SpecError, match="nested too deep"):
        tree.from_plain(loop, file="f")


def test_paths_are_written_with_dots_and_brackets() -> None:
    assert tree.dotted(("batch", "schedule", 1, "from")) == "batch.schedule[1].from"
    assert tree.dotted(()) == "(spec)"
    assert tree.dotted(("a", "odd\nkey")) == "a['odd\\nkey']"
