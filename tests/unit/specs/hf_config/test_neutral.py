from __future__ import annotations

import pytest

from airflow_llmsched.specs.hf_config.dialects import DIALECTS
from airflow_llmsched.specs.hf_config.neutral import is_neutral

READ_UNTIL_NEUTRAL = {"max_position_embeddings", "_remove_final_layer_norm", "_sliding_window_pattern"}
"""Keys that one architecture takes a size from, and that say nothing in any other."""


@pytest.mark.parametrize("key", ["rope_theta", "torch_dtype", "quantization_config", "_name_or_path", "summary_type"])
def test_keys_of_functions_positions_and_bookkeeping_are_neutral(key: str) -> None:
    assert is_neutral(key)


@pytest.mark.parametrize(("key", "on"), [("add_cross_attention", True), ("pruned_heads", {"0": [1]})])
def test_a_switch_that_is_off_says_nothing_and_on_it_does(key: str, on: object) -> None:
    assert is_neutral(key, None)
    assert is_neutral(key, type(on)())
    assert not is_neutral(key, on)


def test_no_key_that_a_dialect_takes_a_size_from_is_neutral() -> None:
    for dialect in DIALECTS.values():
        experts = dialect.experts.keys.values() if dialect.experts else ()
        structural = {*dialect.keys.values(), *experts, *dialect.only} - READ_UNTIL_NEUTRAL
        assert [key for key in structural if is_neutral(key, value=1)] == []
