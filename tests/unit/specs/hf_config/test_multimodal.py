"""Models that see: text and encoder are told apart, and what belongs to neither is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.specs.hf_config import reader
from airflow_llmsched.specs.hf_config.dialects import DIALECTS
from airflow_llmsched.specs.hf_config.multimodal import MULTIMODAL, TEXT_DEFAULTS

CLIP = {"model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "image_size": 28, "patch_size": 14, "projection_dim": 16}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip
LLAVA = {"model_type": "llava", "text_config": LLAMA, "vision_config": CLIP, "image_token_index": 99}


def shape_of(config: dict[str, Any]) -> ModelShape:
    return reader.to_shape(config, name="m", file="config.json")


def test_the_text_is_the_model_and_the_encoder_is_counted_beside_it() -> None:
    shape, alone = shape_of(LLAVA), shape_of(LLAMA)
    assert alone.encoder is None
    encoder = shape.encoder
    assert encoder is not None
    assert (encoder.num_layers, encoder.hidden_size) == (2, 64)
    assert encoder.num_projector_parameters == (64 + 1) * 32 + (32 + 1) * 32
    assert count_parameters(shape).total == count_parameters(alone).total + encoder.num_parameters
    assert count_parameters(shape).active == count_parameters(alone).total


def test_a_nested_text_leaves_out_what_its_class_says() -> None:
    shape = shape_of({**LLAVA, "text_config": {"model_type": "llama", "vocab_size": 32064}})
    assert (shape.num_layers, shape.hidden_size, shape.vocab_size) == (32, 4096, 32064)


def test_what_older_versions_wrote_into_every_nested_config_says_nothing() -> None:
    """As in Llama 3.2 Vision's config.json: the defaults of generation, twice."""
    generation = {
        "num_beams": 1, "top_k": 50, "do_sample": False, "bad_words_ids": None, "add_cross_attention": False,
        "pruned_heads": {}, "tie_encoder_decoder": False, "cross_attention_hidden_size": None, "prefix": None,
    }  # fmt: skip
    full = {**LLAVA, "text_config": {**LLAMA, **generation}, "vision_config": {**CLIP, **generation}}
    assert shape_of(full) == shape_of(LLAVA)


@pytest.mark.parametrize(
    ("kind", "total"),
    [
        ("llama", 6_738_415_616),
        ("mistral", 7_241_732_096),
        ("qwen2", 12_049_846_272),
        ("cohere2", 34_980_831_232),
        ("gemma", 8_537_680_896),
        ("gemma2", 2_614_341_888),
        ("gemma3_text", 2_628_658_432),
        ("llama4_text", 107_769_861_120),
        ("mllama_text_model", 9_775_192_080),
        ("qwen2_vl_text", 72_706_203_648),
        ("qwen2_5_vl_text", 72_706_203_648),
        ("qwen3_vl_text", 12_049_461_248),
    ],
)
def test_a_nested_text_that_says_nothing_is_what_its_class_makes(kind: str, total: int) -> None:
    """Totals of transformers 5.24.0, meta device, for configs without arguments."""
    shape = shape_of({**LLAVA, "text_config": {"model_type": kind}})
    assert count_parameters(replace(shape, encoder=None)).total == total


def test_the_text_may_be_beside_the_vision_of_qwens_first_files() -> None:
    vision = {"depth": 2, "embed_dim": 64, "hidden_size": 32}
    text = {**LLAMA, "num_key_value_heads": 4, "tie_word_embeddings": True}
    inline = {**text, "model_type": "qwen2_vl", "vision_config": vision}
    shape = shape_of(inline)
    assert (shape.hidden_size, shape.attention_qkv_bias, shape.tied_embeddings) == (32, True, True)
    with pytest.raises(SpecError, match="'kv_lora_rank'"):
        shape_of({**inline, "kv_lora_rank": 8})


def test_a_key_of_the_text_repeated_at_the_top_says_nothing_new() -> None:
    assert shape_of({**LLAVA, "vocab_size": 100}) == shape_of(LLAVA)
    with pytest.raises(SpecError) as caught:
        shape_of({**LLAVA, "vocab_size": 101})
    assert caught.value.path == "vocab_size"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"q_former_layers": 6}, "q_former_layers"),
        ({"text_config": {**LLAMA, "kv_lora_rank": 8}}, "text_config.kv_lora_rank"),
        ({"text_config": {**LLAMA, "num_key_value_heads": 3}}, "text_config.num_key_value_heads"),
        ({"text_config": {**LLAMA, "model_type": "t5"}}, "text_config.model_type"),
        ({"text_config": [1]}, "text_config"),
        ({"text_config": None}, "text_config"),
        ({"vision_config": None}, "vision_config"),
        ({"vision_config": {**CLIP, "num_experts": 4}}, "vision_config.num_experts"),
        ({"vision_config": {**CLIP, "hidden_size": "64"}}, "vision_config.hidden_size"),
        ({"vision_config": {"model_type": "sam"}}, "vision_config.model_type"),
        ({"vision_config": 3}, "vision_config"),
        ({"multimodal_projector_bias": 1}, "multimodal_projector_bias"),
    ],
)
def test_what_has_no_place_is_named_with_where_it_is(change: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        shape_of({**LLAVA, **change})
    assert caught.value.path == path


def test_several_feature_layers_widen_the_projector() -> None:
    one, two = (shape_of({**LLAVA, "vision_feature_layer": layers}).encoder for layers in (-2, [-2, -1]))
    assert one is not None
    assert two is not None
    assert two.num_projector_parameters - one.num_projector_parameters == 64 * 32


def test_every_kind_has_a_text_that_is_known_and_class_sizes_are_for_known_texts() -> None:
    assert {kind.text for kind in MULTIMODAL.values()} - set(DIALECTS) == {
        "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"
    }  # fmt: skip
    assert set(TEXT_DEFAULTS) - {kind.text for kind in MULTIMODAL.values()} <= set(DIALECTS)
