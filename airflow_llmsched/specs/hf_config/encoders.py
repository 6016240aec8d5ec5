"""Encoders of images with their projectors, counted exactly: one function for each kind.

Structure and class defaults are those of transformers 5.24 (``modeling_*.py``, read in November 2026). A nested config
leaves out what its class would say, so defaults are merged under it before it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.specs.hf_config.keys import Keys

Counted = tuple[int, int, int, int]
"""Number of layers, hidden size, parameters of one layer, parameters outside the layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A kind of encoder. ``ignored`` are keys of its config that change no size."""

    count: Callable[[Keys], Counted]
    defaults: Mapping[str, Any]
    ignored: frozenset[str] = frozenset()


def linear(inputs: int, outputs: int, *, bias: bool) -> int:
    """Parameters of one linear layer."""
    return (inputs + bias) * outputs


def block(hidden: int, inner: int, *, attention_bias: bool, mlp_bias: bool, gated: bool, norm_has_bias: bool) -> int:
    """Parameters of one Transformer layer with as many key heads as query heads, and two norms."""
    attention = 4 * linear(hidden, hidden, bias=attention_bias)
    mlp = (1 + gated) * linear(hidden, inner, bias=mlp_bias) + linear(inner, hidden, bias=mlp_bias)
    return attention + mlp + 2 * hidden * (1 + norm_has_bias)


def _sizes(keys: Keys) -> tuple[int, int, int]:
    keys.ignore("num_attention_heads", "projection_dim", "vocab_size", "num_image_tokens", "projector_hidden_act")
    return keys.need("num_hidden_layers"), keys.need("hidden_size"), keys.need("intermediate_size")


def _num_patches(keys: Keys) -> int:
    return (keys.need("image_size") // keys.need("patch_size")) ** 2


def _patch_values(keys: Keys) -> int:
    channels = keys.size("num_channels", 3) or 3
    return channels * keys.need("patch_size") ** 2


def _clip(keys: Keys) -> Counted:
    """CLIP (Radford et al. 2021): class token, learned positions, norms before and after."""
    layers, hidden, inner = _sizes(keys)
    other = hidden * (1 + _patch_values(keys) + _num_patches(keys) + 1 + 4)
    return layers, hidden, _plain(hidden, inner), other


def _siglip(keys: Keys) -> Counted:
    """SigLIP (Zhai et al. 2023): as below, with a pooling head that may be left off."""
    layers, hidden, per_layer, other = _siglip_headless(keys)
    if keys.flag("vision_use_head", True):
        other += hidden + per_layer - 2 * hidden
    return layers, hidden, per_layer, other


def _siglip_headless(keys: Keys) -> Counted:
    """Idefics 3 and SmolVLM: SigLIP's layers, a bias on patches, learned positions, no class token."""
    layers, hidden, inner = _sizes(keys)
    return layers, hidden, _plain(hidden, inner), hidden * (_patch_values(keys) + 1 + _num_patches(keys) + 2)


def _internvl(keys: Keys) -> Counted:
    """InternViT (Chen et al. 2023): a scale on what each half of a layer gives, and norms on queries and keys."""
    layers, hidden, inner = _sizes(keys)
    keys.only("num_channels", 3)
    side, patch = (_square(keys, key) for key in ("image_size", "patch_size"))
    has_bias, norm_has_bias = keys.flag("attention_bias", False), keys.word("norm_type") != "rms_norm"
    per_layer = block(hidden, inner, attention_bias=False, mlp_bias=True, gated=False, norm_has_bias=norm_has_bias)
    per_layer += hidden * (3 * has_bias + 1 + 2 + 2 * keys.flag("use_qk_norm", False))
    other = hidden * (3 * patch**2 + 1 + 1)
    other += hidden * keys.flag("use_mask_token", False)
    other += hidden * ((side // patch) ** 2 + 1) * keys.flag("use_absolute_position_embeddings", True)
    other += 0 if keys.flag("use_mean_pooling", True) else 2 * hidden
    return layers, hidden, per_layer, other


def _square(keys: Keys, key: str) -> int:
    """Read a side that may be written twice."""
    value = keys.raw(key)
    if not isinstance(value, list):
        return keys.need(key)
    if len(value) != 2 or value[0] != value[1] or not isinstance(value[0], int) or value[0] < 1:  # height and width
        keys.refuse(key, "must be a whole number, or the same one twice")
    return int(value[0])


def _pixtral(keys: Keys) -> Counted:
    """Pixtral (Mistral 2024): rotary positions, a gated MLP, no biases."""
    layers, hidden, inner = _sizes(keys)
    keys.ignore("image_size", "head_dim")
    per_layer = block(hidden, inner, attention_bias=False, mlp_bias=False, gated=True, norm_has_bias=False)
    return layers, hidden, per_layer, hidden * (_patch_values(keys) + 1)


def _llama4(keys: Keys) -> Counted:
    """Llama 4: as CLIP, with a shuffle of pixels and two more matrices at the end."""
    layers, hidden, inner = _sizes(keys)
    num_positions = _num_patches(keys) + 1
    wide = keys.need("projector_output_dim")
    adapter = linear(inner, keys.need("projector_input_dim"), bias=False) + linear(wide, wide, bias=False)
    other = hidden * (_patch_values(keys) + 1 + num_positions + 4) + adapter
    return layers, hidden, _plain(hidden, inner), other


def _mllama(keys: Keys) -> Counted:
    """Llama 3.2 Vision: two stacks, the second with two gates a layer, and positions of tiles for each aspect ratio."""
    layers, hidden, inner = _sizes(keys)
    num_global, tiles = keys.need("num_global_layers"), keys.need("max_num_tiles")
    ratios = keys.raw("supported_aspect_ratios")
    if not isinstance(ratios, list):
        keys.refuse("supported_aspect_ratios", "must be a list")
    num_ids, num_positions = len(ratios) + 1, _num_patches(keys) + 1
    per_layer = block(hidden, inner, attention_bias=False, mlp_bias=True, gated=False, norm_has_bias=True)
    tile_positions = 2 * (num_ids * tiles * hidden + 1)
    positions = num_positions * hidden + num_ids * tiles * num_positions * hidden + 1
    other = hidden * (_patch_values(keys) + 1 + 4) + tile_positions + positions + 2 * num_global
    return layers + num_global, hidden, per_layer, other


def _qwen2(keys: Keys) -> Counted:
    """Qwen2-VL: patches of two frames, a plain MLP, and neighbours merged by two matrices."""
    layers, hidden = keys.need("depth"), keys.need("embed_dim")
    inner = hidden * keys.need("mlp_ratio")
    merger = 2 * hidden + _merger(keys, hidden, keys.need("hidden_size"))
    return layers, hidden, _plain(hidden, inner), hidden * _frame_values(keys) + merger


def _qwen2_5(keys: Keys) -> Counted:
    """Qwen2.5-VL: a gated MLP with biases and RMSNorm."""
    layers, hidden = keys.need("depth"), keys.need("hidden_size")
    per_layer = block(
        hidden, keys.need("intermediate_size"), attention_bias=True, mlp_bias=True, gated=True, norm_has_bias=False
    )
    merger = hidden + _merger(keys, hidden, keys.need("out_hidden_size"))
    return layers, hidden, per_layer, hidden * _frame_values(keys) + merger


def _qwen3(keys: Keys) -> Counted:
    """Qwen3-VL: learned positions, and one more merger for each layer whose output enters the text model early."""
    layers, hidden, inner = keys.need("depth"), keys.need("hidden_size"), keys.need("intermediate_size")
    taken = keys.numbers("deepstack_visual_indexes", below=layers) or ()
    mergers = _merger(keys, hidden, keys.need("out_hidden_size"))
    neighbours = keys.need("spatial_merge_size") ** 2
    other = hidden * (_frame_values(keys) + 1 + keys.need("num_position_embeddings"))
    other += 2 * hidden + mergers + len(taken) * (2 * hidden * neighbours + mergers)
    return layers, hidden, _plain(hidden, inner), other


def _plain(hidden: int, inner: int) -> int:
    return block(hidden, inner, attention_bias=True, mlp_bias=True, gated=False, norm_has_bias=True)


def _frame_values(keys: Keys) -> int:
    return keys.need("in_channels") * keys.need("temporal_patch_size") * keys.need("patch_size") ** 2


def _merger(keys: Keys, hidden: int, outputs: int) -> int:
    merged = hidden * keys.need("spatial_merge_size") ** 2
    return linear(merged, merged, bias=True) + linear(merged, outputs, bias=True)


_QWEN_IGNORED = frozenset(
    {"num_heads", "in_chans", "spatial_patch_size", "window_size", "fullatt_block_indexes", "tokens_per_second"}
)
_CLIP_DEFAULTS = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "image_size": 224}
_QWEN_DEFAULTS = {"depth": 32, "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
_QWEN3 = Tower(
    count=_qwen3,
    defaults={
        **_QWEN_DEFAULTS, "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16,
        "out_hidden_size": 3584, "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
    },
    ignored=_QWEN_IGNORED,
)  # fmt: skip

_IDEFICS3 = Tower(
    count=_siglip_headless,
    defaults={**_CLIP_DEFAULTS, "hidden_size": 1152, "num_hidden_layers": 12, "patch_size": 32},
    ignored=frozenset({"max_image_size", "size", "use_base_siglip", "tie_word_embeddings"}),
)

TOWERS: Mapping[str, Tower] = {
    "clip_vision_model": Tower(count=_clip, defaults={**_CLIP_DEFAULTS, "patch_size": 32}),
    "siglip_vision_model": Tower(count=_siglip, defaults={**_CLIP_DEFAULTS, "patch_size": 16}),
    "idefics3_vision": _IDEFICS3,
    "smolvlm_vision": _IDEFICS3,
    "internvl_vision": Tower(
        count=_internvl,
        defaults={
            "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "image_size": 448,
            "patch_size": 14,
        },
        ignored=frozenset({"layer_scale_init_value", "projection_dropout"}),
    ),
    "pixtral": Tower(
        count=_pixtral,
        defaults={"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 16},
    ),
    "llama4_vision_model": Tower(
        count=_llama4,
        defaults={
            "hidden_size": 768, "intermediate_size": 5632, "num_hidden_layers": 34, "image_size": 448,
            "patch_size": 14, "projector_input_dim": 4096, "projector_output_dim": 4096, "vision_output_dim": 7680,
        },
        ignored=frozenset(
            {"vision_output_dim", "pixel_shuffle_ratio", "projector_dropout", "multi_modal_projector_bias",
             "vision_feature_layer", "vision_feature_select_strategy"}
        ),
    ),
    "mllama_vision_model": Tower(
        count=_mllama,
        defaults={
            "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_global_layers": 8,
            "image_size": 448, "patch_size": 14, "max_num_tiles": 4, "vision_output_dim": 7680,
            "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
        },
        ignored=frozenset(
            {"attention_heads", "intermediate_layers_indices", "vision_output_dim", "max_aspect_ratio_id"}
        ),
    ),
    "qwen2_vl_vision": Tower(
        count=_qwen2,
        defaults={**_QWEN_DEFAULTS, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4},
        ignored=_QWEN_IGNORED,
    ),
    "qwen2_5_vl_vision": Tower(
        count=_qwen2_5,
        defaults={**_QWEN_DEFAULTS, "hidden_size": 3584, "intermediate_size": 3420, "out_hidden_size": 3584},
        ignored=_QWEN_IGNORED,
    ),
    "qwen3_vl_vision": _QWEN3,
    "qwen3_vl_moe_vision": _QWEN3,
}  # fmt: skip
