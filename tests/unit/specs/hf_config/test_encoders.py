"""Sizes of encoders by hand; whole public models are in ``test_multimodal``."""

from __future__ import annotations

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs.hf_config.encoders import TOWERS, block, linear
from airflow_llmsched.specs.hf_config.keys import Keys


def test_a_linear_layer_has_a_row_more_with_a_bias() -> None:
    assert linear(3, 5, bias=False) == 15
    assert linear(3, 5, bias=True) == 20


def test_a_block_has_four_square_matrices_an_mlp_and_two_norms() -> None:
    plain = block(4, 8, attention_bias=True, mlp_bias=True, gated=False, norm_has_bias=True)
    assert plain == 4 * (16 + 4) + (32 + 8) + (32 + 4) + 2 * 8
    gated = block(4, 8, attention_bias=False, mlp_bias=False, gated=True, norm_has_bias=False)
    assert gated == 4 * 16 + 3 * 32 + 2 * 4


def test_clip_vit_l_14_at_336_pixels_has_the_published_parameters() -> None:
    """OpenAI's CLIP ViT-L/14@336px: 303.5M in its vision tower without the projection (304.3M with it)."""
    keys = Keys(
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "image_size": 336, "patch_size": 14},
        file="f",
    )
    layers, _, per_layer, other = TOWERS["clip_vision_model"].count(keys)
    assert layers * per_layer + other == 303_507_456


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("clip_vision_model", 87_456_000),
        ("siglip_vision_model", 92_884_224),
        ("pixtral", 403_489_792),
        ("idefics3_vision", 152_395_776),
        ("smolvlm_vision", 152_395_776),
        ("internvl_vision", 303_938_560),
        ("qwen2_vl_vision", 675_759_104),
        ("qwen2_5_vl_vision", 3_083_025_152),
        ("qwen3_vl_vision", 566_949_104),
        ("qwen3_vl_moe_vision", 566_949_104),
    ],
)
def test_an_encoder_that_says_nothing_is_what_its_class_makes(name: str, total: int) -> None:
    """Totals of transformers 5.24.0, meta device, for configs without arguments."""
    tower = TOWERS[name]
    layers, _, per_layer, other = tower.count(Keys(tower.defaults, file="f"))
    assert layers * per_layer + other == total


@pytest.mark.parametrize("side", [[448, 224], [448], ["448", "448"], "448", 0])
def test_a_side_is_one_number_or_the_same_one_twice(side: object) -> None:
    tower = TOWERS["internvl_vision"]
    square = tower.count(Keys({**tower.defaults, "image_size": [448, 448]}, file="f"))
    assert square == tower.count(Keys(tower.defaults, file="f"))
    broken = Keys({**tower.defaults, "image_size": side}, file="f")
    with pytest.raises(SpecError, match="image_size"):
        tower.count(broken)


def test_an_encoder_names_what_it_cannot_read() -> None:
    tower = TOWERS["mllama_vision_model"]
    with pytest.raises(SpecError, match="supported_aspect_ratios"):
        tower.count(Keys({**tower.defaults, "supported_aspect_ratios": 4}, file="f"))
