"""``params.json`` as Mistral's and Meta's own code write it, without a ``model_type`` that names an architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmsched.domain.workload import ExpertShape
from airflow_llmsched.specs.hf_config import patterns
from airflow_llmsched.specs.hf_config.dialect import Dialect, Fields
from airflow_llmsched.specs.hf_config.keys import Keys


def is_native(config: Mapping[str, Any]) -> bool:
    """Whether a file has the words of native code, and none of Hugging Face's."""
    return config.get("model_type") in (None, "transformer") and {"dim", "n_layers"} <= config.keys()


def _width(keys: Keys, fields: Fields) -> Fields:
    """Mistral writes the width of the MLP; Llama's follows from the hidden size, two factors and a rounding."""
    if "hidden_dim" in keys:
        return {"ffn_hidden_size": keys.need("hidden_dim")}
    multiple = keys.need("multiple_of")
    factor = keys.raw("ffn_dim_multiplier")
    if factor is not None and (isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < 64):
        keys.refuse("ffn_dim_multiplier", "must be a number above 0")
    width = int((1 if factor is None else factor) * int(2 * 4 * fields["hidden_size"] / 3))
    return {"ffn_hidden_size": -(-width // multiple) * multiple}


def _experts(keys: Keys, fields: Fields) -> Fields:
    """Mixtral: experts as wide as the MLP would be."""
    if keys.raw("moe") is None:
        return {}
    moe = keys.nested("moe")
    experts = ExpertShape(
        num_routed=moe.need("num_experts"),
        num_active=moe.need("num_experts_per_tok"),
        expert_hidden_size=fields["ffn_hidden_size"],
    )
    return {"experts": experts}


NATIVE = Dialect(
    keys={
        "num_layers": "n_layers",
        "hidden_size": "dim",
        "num_heads": "n_heads",
        "num_kv_heads": "n_kv_heads",
        "head_size": "head_dim",
        "vocab_size": "vocab_size",
    },
    only={"use_biases": (False,)},
    aliases={"tied_embeddings": "tie_word_embeddings"},
    unused=frozenset({"use_scaled_rope", "max_batch_size"}),
    derive=(_width, _experts, patterns.windows(patterns.no_layer)),
    mlp_is_4h=True,
)
