from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.domain.checkpoint import CheckpointRef, Damaged, Sound, Verdict, VerifyDepth
from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.progress import ChannelCursor

REF = CheckpointRef(step=7, path="/c/step-7", format="dcp", torn_reason=None, world_size=4)


def test_a_value_survives_json():
    assert codec.from_json(CheckpointRef, codec.to_json(REF)) == REF
    assert codec.from_plain(CheckpointRef, json.loads(json.dumps(codec.to_plain(REF)))) == REF


@pytest.mark.parametrize(
    "verdict", [Sound(depth=VerifyDepth.SIZES, num_bytes=1, digest="d"), Damaged(reason="a.distcp is 3 bytes short")]
)
def test_a_union_is_read_back_as_the_member_it_was(verdict):
    assert codec.from_json(Verdict, codec.to_json(verdict, Verdict)) == verdict


@given(st.dictionaries(st.text(), st.integers(min_value=0), max_size=5))
def test_any_cursor_survives_json_whatever_its_names_hold(positions):
    cursor = ChannelCursor(positions=positions)
    assert codec.from_json(ChannelCursor, codec.to_json(cursor)) == cursor


def test_a_key_of_a_newer_writer_is_ignored():
    plain = codec.to_plain(AttemptKey(run=RunKey("ls-a"), generation=1, attempt=2)) | {"added_later": True}
    assert codec.from_plain(AttemptKey, plain).attempt == 2


@pytest.mark.parametrize("damage", [{"step": "seven"}, {"path": None}])
def test_a_mismatch_is_an_error_and_no_guess(damage):
    with pytest.raises(ValidationError):
        codec.from_plain(CheckpointRef, codec.to_plain(REF) | damage)


def test_a_missing_field_is_an_error():
    with pytest.raises(ValidationError, match="path"):
        codec.from_json(CheckpointRef, b'{"step": 1, "format": "dcp"}')


def test_what_was_prepared_is_not_built_by_its_first_use():
    @dataclass(frozen=True)
    class Fresh:
        number: int

    codec.prepare(Fresh)
    num_built = codec._adapter.cache_info().misses
    assert codec.from_plain(Fresh, codec.to_plain(Fresh(1))) == Fresh(1)
    assert codec._adapter.cache_info().misses == num_built


def test_json_of_somebody_else_is_read_or_refused_however_deep_it_is():
    assert codec.parse_json(b'{"a": [1]}') == codec.parse_json('{"a": [1]}') == {"a": [1]}
    with pytest.raises(json.JSONDecodeError):
        codec.parse_json("{")
    with pytest.raises(ValueError, match="too deep"):
        codec.parse_json("[" * 5_000 + "]" * 5_000)
