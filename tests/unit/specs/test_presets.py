"""Shipped models have exactly the parameters their publishers' files hold."""

from __future__ import annotations

import pytest

from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.specs import presets
from airflow_llmsched.specs.shapes import shape_problems

# Totals of the models' weight files: from their Hugging Face pages, or what transformers 5.24.0 stores for their
# configs on PyTorch's meta device (2026-11-30; see hf_config/test_reader.py)
PUBLISHED = {
    "bloom-176b": 176_247_271_424,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "falcon-180b": 178_557_088_768,
    "gemma-2-27b": 27_227_128_320,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-12b": 12_187_325_040,
    "gemma-3-1b": 999_885_952,
    "gemma-3-27b": 27_432_406_640,
    "gemma-3-4b": 4_300_079_472,
    "glm-4.5-air": 106_852_251_264,
    "glm-4.5": 352_797_829_024,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2-1.5b": 1_557_611_200,
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "kimi-k2": 1_026_408_232_448,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-4-maverick": 401_583_781_376,
    "llama-4-scout": 108_641_793_536,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 24_011_361_280,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "nemotron-4-340b": 341_029_195_776,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-7b": 7_298_617_344,
    "olmoe-1b-7b": 6_919_161_856,
    "phi-4": 14_659_507_200,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "smollm3-3b": 3_075_098_624,
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
