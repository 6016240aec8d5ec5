"""Files of models that see: a text model nested in the file or beside it, an encoder, and what lies between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_llmsched.domain.workload import EncoderShape
from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs.hf_config.encoders import TOWERS, linear
from airflow_llmsched.specs.hf_config.keys import Keys, refuse_unplaced

Config = Mapping[str, Any]
Project = Callable[[Keys, Keys, int, int], int]
"""Parameters between encoder and text: keys of the file, of its vision config, width of the encoder and of the text."""

_BASE = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
_QWEN2_VL = {
    "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 152064,
}  # fmt: skip
TEXT_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "llama": {**_BASE, "intermediate_size": 11008, "vocab_size": 32000},
    "mistral": {**_BASE, "intermediate_size": 14336, "vocab_size": 32000},
    "qwen2": {**_BASE, "intermediate_size": 22016, "vocab_size": 151936},
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3_vl_text": {**_BASE, "intermediate_size": 22016, "vocab_size": 151936, "num_key_value_heads": 32},
    "qwen3_vl_moe_text": {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_key_value_heads": 16, "vocab_size": 151936, "moe_intermediate_size": 1408, "num_experts_per_tok": 4,
    },
    "cohere2": {
        "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40, "num_attention_heads": 64,
        "vocab_size": 256000,
    },
    "gemma": {
        "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16,
        "vocab_size": 256000,
    },
    "gemma2": {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "vocab_size": 256000,
    },
    "gemma3_text": {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "vocab_size": 262208,
    },
    "llama4_text": {
        "hidden_size": 5120, "intermediate_size": 8192, "num_hidden_layers": 48, "num_attention_heads": 40,
        "vocab_size": 202048, "num_local_experts": 16, "num_experts_per_tok": 1,
    },
    "mllama_text_model": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 40, "num_attention_heads": 32,
        "vocab_size": 128256,
    },
}  # fmt: skip
"""Sizes that a nested config leaves out where they are its class's own (transformers 5.24)."""
_SAME_AS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
"""Texts that are an architecture of their own name but for class defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Multimodal:
    """One ``model_type``: what its text and vision are where the file does not say, and its projector.

    ``text_may_be_inline``: older files have the text's keys beside ``vision_config`` instead of in ``text_config``.
    """

    text: str
    vision: str
    project: Project
    text_may_be_inline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A file taken apart: keys of the text model with its ``model_type``, where they are, and the encoder."""

    text: Config
    path: str
    encoder: EncoderShape


def take_apart(config: Config, kind: Multimodal, *, file: str) -> Parts:
    """Separate text and encoder, and count the latter. Raises ``SpecError`` for keys that have no place."""
    top = Keys(config, file=file)
    vision = _object(top, "vision_config")
    is_inline = "text_config" not in config and kind.text_may_be_inline
    if is_inline:
        text = {key: value for key, value in config.items() if key not in {"vision_config", "model_type"}}
    else:
        text = _object(top, "text_config")
    named = str(text.get("model_type", kind.text))
    text = {**TEXT_DEFAULTS.get(named, {}), **text, "model_type": _SAME_AS.get(named, named)}
    if top.raw("tie_word_embeddings") is not None:
        text["tie_word_embeddings"] = config["tie_word_embeddings"]
    hidden_size = Keys(text, file=file, path="text_config.").need("hidden_size")
    encoder = _encoder(top, vision, kind, hidden_size, file)
    # files repeat keys of the text model at the top: the same value twice says nothing new
    unplaced = [key for key in top.left_over() if key not in text or text[key] != config[key]]
    if unplaced and not is_inline:
        refuse_unplaced(unplaced, file=file)
    return Parts(text=text, encoder=encoder, path="" if is_inline else "text_config.")


def _encoder(top: Keys, vision: Config, kind: Multimodal, text_hidden: int, file: str) -> EncoderShape:
    named = str(vision.get("model_type", kind.vision))
    # Qwen's first files name the whole model here
    tower = TOWERS.get(kind.vision if named in MULTIMODAL else named)
    if tower is None:
        hint = f"is an encoder not known here; known: {', '.join(sorted(TOWERS))}. Give model.shape instead"
        raise SpecError(path="vision_config.model_type", value=named, hint=hint, file=file)
    keys = Keys({**tower.defaults, **vision}, file=file, path="vision_config.")
    keys.ignore(*tower.ignored)
    num_layers, hidden, per_layer, other = tower.count(keys)
    projector = kind.project(top, keys, hidden, text_hidden)
    keys.require_all_placed()
    return EncoderShape(
        num_layers=num_layers,
        hidden_size=hidden,
        num_layer_parameters=per_layer,
        num_other_parameters=other,
        num_projector_parameters=projector,
    )


def _object(keys: Keys, key: str) -> dict[str, Any]:
    value = keys.raw(key)
    if not isinstance(value, dict):
        keys.refuse(key, "must be an object: the shape cannot be known without it")
    return value


def _num_feature_layers(top: Keys) -> int:
    layers = top.raw("vision_feature_layer")
    return len(layers) if isinstance(layers, list) else 1


def _two_layers(top: Keys, _vision: Keys, width: int, text_hidden: int) -> int:
    """LLaVA: a matrix to the text's width and one more."""
    bias = top.flag("multimodal_projector_bias", True)
    return linear(width * _num_feature_layers(top), text_hidden, bias=bias) + linear(
        text_hidden, text_hidden, bias=bias
    )


def _two_layers_and_newline(top: Keys, vision: Keys, width: int, text_hidden: int) -> int:
    """LLaVA-NeXT: one trained embedding besides, for the end of a row of tiles."""
    top.ignore("use_image_newline_parameter")
    return _two_layers(top, vision, width, text_hidden) + text_hidden


def _merged_patches(top: Keys, _vision: Keys, width: int, text_hidden: int) -> int:
    """Mistral 3: a norm, neighbours merged, then two layers."""
    bias = top.flag("multimodal_projector_bias", False)
    merged = width * (top.size("spatial_merge_size", 2) or 2) ** 2
    layers = linear(width * _num_feature_layers(top), text_hidden, bias=bias) + linear(
        text_hidden, text_hidden, bias=bias
    )
    return width + linear(merged, width, bias=False) + layers


def _one_matrix(bias: bool) -> Project:
    """PaliGemma and Llama: one matrix from what the encoder gives."""

    def project(top: Keys, vision: Keys, width: int, text_hidden: int) -> int:
        top.ignore("projection_dim")
        return linear(vision.size("vision_output_dim") or width, text_hidden, bias=bias)

    return project


def _matrix_and_norm(_top: Keys, _vision: Keys, width: int, text_hidden: int) -> int:
    """Gemma 3: a norm and a matrix."""
    return width + linear(width, text_hidden, bias=False)


def _shuffled_pixels(top: Keys, _vision: Keys, width: int, text_hidden: int) -> int:
    """Idefics 3: neighbours side by side, and one matrix."""
    return linear(width * (top.size("scale_factor", 2) or 2) ** 2, text_hidden, bias=False)


def _normed_neighbours(top: Keys, _vision: Keys, width: int, text_hidden: int) -> int:
    """InternVL: neighbours side by side, a norm, and two layers."""
    top.ignore("vision_feature_layer")
    ratio = top.raw("downsample_ratio")
    if ratio not in (None, 0.5):
        top.refuse("downsample_ratio", "changes the model in a way that is not modelled; only 0.5 is")
    merged = 4 * width
    return 2 * merged + linear(merged, text_hidden, bias=True) + linear(text_hidden, text_hidden, bias=True)


def _gated_neighbours(top: Keys, _vision: Keys, width: int, text_hidden: int) -> int:
    """Aya Vision: neighbours side by side, a norm, and a gated pair of layers."""
    merged = width * (top.size("downsample_factor", 2) or 2) ** 2
    inner = top.size("alignment_intermediate_size") or text_hidden
    return 2 * merged + linear(merged, inner, bias=True) + linear(inner // 2, text_hidden, bias=True)


def _in_the_encoder(_top: Keys, _vision: Keys, _width: int, _text_hidden: int) -> int:
    """Qwen-VL: its mergers are counted with the encoder."""
    return 0


MULTIMODAL: Mapping[str, Multimodal] = {
    "llava": Multimodal(text="llama", vision="clip_vision_model", project=_two_layers),
    "llava_next": Multimodal(text="llama", vision="clip_vision_model", project=_two_layers_and_newline),
    "paligemma": Multimodal(text="gemma", vision="siglip_vision_model", project=_one_matrix(bias=True)),
    "idefics3": Multimodal(text="llama", vision="idefics3_vision", project=_shuffled_pixels),
    "smolvlm": Multimodal(text="llama", vision="smolvlm_vision", project=_shuffled_pixels),
    "internvl": Multimodal(text="qwen2", vision="internvl_vision", project=_normed_neighbours),
    "aya_vision": Multimodal(text="cohere2", vision="siglip_vision_model", project=_gated_neighbours),
    "gemma3": Multimodal(text="gemma3_text", vision="siglip_vision_model", project=_matrix_and_norm),
    "mistral3": Multimodal(text="mistral", vision="pixtral", project=_merged_patches),
    "llama4": Multimodal(text="llama4_text", vision="llama4_vision_model", project=_one_matrix(bias=False)),
    "mllama": Multimodal(text="mllama_text_model", vision="mllama_vision_model", project=_one_matrix(bias=True)),
    "qwen2_vl": Multimodal(
        text="qwen2_vl_text", vision="qwen2_vl_vision", project=_in_the_encoder, text_may_be_inline=True
    ),
    "qwen2_5_vl": Multimodal(
        text="qwen2_5_vl_text", vision="qwen2_5_vl_vision", project=_in_the_encoder, text_may_be_inline=True
    ),
    "qwen3_vl": Multimodal(text="qwen3_vl_text", vision="qwen3_vl_vision", project=_in_the_encoder),
    "qwen3_vl_moe": Multimodal(text="qwen3_vl_moe_text", vision="qwen3_vl_moe_vision", project=_in_the_encoder),
}
