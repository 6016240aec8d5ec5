"""Shipped models have exactly the parameters their publishers' files hold."""

from __future__ import annotations

import pytest

from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.specs import presets
from airflow_llmsched.specs.shapes import shape_problems

# Totals published on the models' Hugging Face pages (safetensors parameter counts), typed in from there
PUBLISHED = {
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
}


def test_the_presets_are_those_published_and_the_demo_model() -> None:
    assert set(presets.names()) == {*PUBLISHED, "byte-gpt-1m"}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_preset_has_as_many_parameters_as_published(name: str) -> None:
    preset = presets.get(name)
    assert preset.num_parameters == PUBLISHED[name]
    assert count_parameters(preset.shape).total == PUBLISHED[name]
    assert preset.source.startswith("https://")
    assert preset.shape.name == name
    assert list(shape_problems(preset.shape, ())) == []


def test_the_demo_model_is_what_the_shipped_trainer_builds() -> None:
    shape = presets.get("byte-gpt-1m").shape
    assert count_parameters(shape).total == presets.get("byte-gpt-1m").num_parameters
    assert presets.get("byte-gpt-1m").num_parameters == 1_271_200
    assert (shape.vocab_size, shape.norm_has_bias, shape.mlp_bias) == (256, False, False)
    # rotary positions turn pairs of a head's elements
    assert shape.head_size * shape.num_heads == shape.hidden_size
    assert shape.head_size % 2 == 0


def test_an_unknown_preset_is_a_key_error_whatever_its_name() -> None:
    for name in ("nope", "../schema", ""):
        with pytest.raises(KeyError):
            presets.get(name)
