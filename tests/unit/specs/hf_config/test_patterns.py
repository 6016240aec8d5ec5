"""Rules by layer; what they make of whole files is in ``test_dialects``."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.specs.hf_config import patterns
from airflow_llmsched.specs.hf_config.keys import Keys


def keys(**config: Any) -> Keys:
    return Keys(config, file="config.json")


@pytest.mark.parametrize(
    ("told", "full"),
    [({}, [3, 7]), ({"sliding_window_pattern": 2}, [1, 3, 5, 7]), ({"_sliding_window_pattern": None}, [3, 7])],
)
def test_every_so_manyth_layer_attends_to_the_start(told: dict[str, Any], full: list[int]) -> None:
    is_full = patterns.every(4)
    assert [number for number in range(8) if is_full(keys(**told), number, 8)] == full


def test_with_letters_the_last_layer_always_attends_to_the_start() -> None:
    is_full = patterns.letters(4)
    told = keys(sliding_window_pattern="LLG")
    assert [number for number in range(5) if is_full(told, number, 5)] == [2, 4]


def test_windows_of_all_layers_or_of_none_need_no_list() -> None:
    fields = {"num_layers": 3}
    everywhere = patterns.windows(patterns.no_layer)(keys(sliding_window=8), fields)
    assert everywhere == {"attention_window_tokens": 8, "full_attention_layers": ()}
    nowhere = patterns.windows(patterns.every(1))(keys(sliding_window=8), fields)
    assert nowhere == {"attention_window_tokens": None, "full_attention_layers": ()}


def test_layers_of_experts_up_to_the_end_are_said_by_the_first() -> None:
    assert patterns.after_first(2)(keys(), {"num_layers": 4}) == {"num_dense_layers_first": 2}
    assert patterns.after_first(2)(keys(), {"num_layers": 2}) == {"layers": ()}
    listed = patterns.after_first(2)(keys(mlp_layer_types=["sparse", "dense", "sparse"]), {"num_layers": 3})
    assert listed == {"layers": (0, 2)}
    alternating = patterns.interleaved(keys(interleave_moe_layer_step=2), {"num_layers": 4})
    assert alternating == {"layers": (1, 3)}
