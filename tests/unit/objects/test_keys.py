from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.errors import SpecError
from airflow_llmsched.objects.keys import TEMP_PREFIX, check_folder, check_key, check_prefix
from airflow_llmsched.testing.store_contract import AWKWARD_KEYS, BAD_KEYS

PARTS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\x7f"), min_size=1, max_size=20)


@pytest.mark.parametrize("key", AWKWARD_KEYS)
def test_a_legal_key_comes_back_unchanged(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", BAD_KEYS)
def test_an_illegal_key_is_named_in_the_error(key: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_key(key)
    assert caught.value.value == key
    assert caught.value.hint.startswith("must ")


def test_a_key_is_measured_in_bytes_not_characters() -> None:
    assert check_key("漢" * 85)  # 255 bytes
    with pytest.raises(SpecError, match="255 bytes"):
        check_key("漢" * 86)
    with pytest.raises(SpecError, match="1024 bytes"):
        check_key("/".join(["x" * 200] * 6))


def test_a_prefix_may_be_empty_end_with_a_slash_or_in_mid_name() -> None:
    for prefix in ("", "a/", "a/b", "a/b/"):
        assert check_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["/", "//", "a//", "..", "../", "a/../b", TEMP_PREFIX, "a/" + TEMP_PREFIX + "1"])
def test_a_prefix_never_leaves_the_root_nor_names_unfinished_writes(prefix: str) -> None:
    with pytest.raises(SpecError):
        check_prefix(prefix)


@given(st.lists(PARTS, min_size=1, max_size=5))
def test_every_beginning_of_a_legal_key_at_a_slash_is_a_legal_prefix(parts: list[str]) -> None:
    key = "/".join(parts)
    try:
        check_key(key)
    except SpecError:
        assert any(part in (".", "..") or part.startswith(TEMP_PREFIX) for part in parts)
        return
    for count in range(len(parts)):
        check_prefix("".join(part + "/" for part in parts[:count]))


@pytest.mark.parametrize("prefix", ["", "a/", "a/b c/"])
def test_a_folder_is_the_root_or_ends_with_a_slash(prefix: str) -> None:
    assert check_folder(prefix) == prefix


@pytest.mark.parametrize("prefix", ["a", "a/b", "/", "../", "a//"])
def test_what_names_no_folder_is_refused(prefix: str) -> None:
    with pytest.raises(SpecError):
        check_folder(prefix)
