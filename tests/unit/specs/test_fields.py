"""Single values are checked as written: words, counts, labels, arguments and quantities."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict, TypeAdapter, ValidationError

from airflow_llmsched.domain.workload import TrainingStage
from airflow_llmsched.specs import fields
from tests.support.specs import steady

STRICT = ConfigDict(strict=True)


def read(kind: Any, value: object) -> Any:
    return TypeAdapter(kind, config=STRICT).validate_python(value)


def hint(kind: Any, value: object) -> str:
    with pytest.raises(ValidationError) as caught:
        read(kind, value)
    return str(caught.value)


def test_a_word_reads_as_its_choice_and_a_typo_names_the_nearest() -> None:
    assert read(fields.Stage, "sft") is TrainingStage.SFT
    assert "did you mean 'pretrain'?" in hint(fields.Stage, "pretain")
    assert "must be one of pretrain, continued, sft, lora" in hint(fields.Stage, 3)


@pytest.mark.parametrize("value", [True, "3", 3.0, 0, -1, None, 2**31])
def test_a_count_is_a_whole_number_of_at_least_one(value) -> None:
    assert hint(fields.Count, value)


@pytest.mark.parametrize("name", ["a b", 'it\'s "quoted"', "$(rm -rf /); `x`", "ünïcode 模型", "x" * 200, "../../etc"])
def test_a_label_may_be_any_text_people_write(name) -> None:
    assert read(fields.Label, name) == name


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "bell\a", "nul\0", "x" * 1001, "line\u2028separator", "\x1b[31m"])
def test_a_label_is_neither_empty_nor_has_control_characters(name) -> None:
    assert hint(fields.Label, name)


def test_an_argument_may_be_anything_but_nul() -> None:
    assert read(fields.Argument, "a b\n'$(x)'") == "a b\n'$(x)'"
    assert "NUL" in hint(fields.Argument, "a\0b")


def test_a_batch_size_keeps_its_text_until_the_sequence_length_is_known() -> None:
    assert read(fields.BatchSize, "4Mi tokens") == "4Mi tokens"
    assert read(fields.BatchSize, "512 sequences") == "512 sequences"
    for wrong in (512, "512", "0 tokens", "512 samples", "-1 sequences", None):
        assert hint(fields.BatchSize, wrong)


def test_tokens_may_be_a_plain_number_only_where_nothing_else_can_be_meant() -> None:
    assert read(fields.SequenceLength, 4096) == read(fields.SequenceLength, "4Ki tokens") == 4096
    assert "bare number" in hint(fields.Tokens, 4096)
    assert read(fields.TokensSeen, 0) == read(fields.TokensSeen, "0 tokens") == 0
    assert "bare number" in hint(fields.TokensSeen, 1)
    assert hint(fields.TokensSeen, False)
    assert hint(fields.SequenceLength, True)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (fields.Bytes, "80GiB"),
        (fields.Duration, "36h"),
        (fields.Tokens, "4Mi tokens"),
        (fields.Usd, "120 USD"),
        (fields.Ratio, "5%"),
    ],
)
def test_a_quantity_is_written_back_as_it_was_read(kind, text) -> None:
    adapter = TypeAdapter(kind)
    assert adapter.dump_python(adapter.validate_python(text)) == text


@pytest.mark.parametrize("text", ["0s", "0GB", "0 tokens", "$0"])
def test_a_zero_limit_is_refused(text) -> None:
    kind = {"s": fields.Duration, "B": fields.Bytes, "n": fields.Tokens}.get(text[-1], fields.Usd)
    if text.endswith("tokens"):
        kind = fields.Tokens
    assert "greater than 0" in hint(kind, text)


def test_shorthands_expand_one_word_and_refuse_others() -> None:
    from typing import Annotated

    kind = Annotated[dict[str, int], fields.shorthand(lambda word: {word: 1}, words=("cost",))]
    assert read(kind, "cost") == {"cost": 1}
    assert read(kind, {"a": 2}) == {"a": 2}
    assert "did you mean 'cost'?" in hint(kind, "costs")


@steady
@given(st.text(max_size=30) | st.floats() | st.integers() | st.none())
def test_any_value_is_read_or_refused_by_validation(value) -> None:
    for kind in (fields.Bytes, fields.Duration, fields.BatchSize, fields.Label, fields.Stage, fields.Ratio, fields.Usd):
        try:
            read(kind, value)
        except ValidationError:
            continue
