"""The table of dialects of today's architectures: one row each. Older key names are in ``older``.

Key names and class defaults are those of transformers 5.24 (``configuration_*.py`` of each model type, read in November
2026), and of the models' own code for types that transformers does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmsched.specs.hf_config import patterns
from airflow_llmsched.specs.hf_config.dialect import Derive, Dialect, Experts, Fields
from airflow_llmsched.specs.hf_config.keys import Keys
from airflow_llmsched.specs.hf_config.older import OLDER

SIZES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "ffn_hidden_size": "intermediate_size",
    "vocab_size": "vocab_size",
}
_ATTENTION_BIAS = {"attention_qkv_bias": "attention_bias", "attention_out_bias": "attention_bias"}
_LLAMA_KEYS = SIZES | _ATTENTION_BIAS | {"mlp_bias": "mlp_bias"}
_LAYER_NORM: dict[str, Any] = {"norm_has_bias": True}
_WINDOW = (patterns.windows(patterns.no_layer),)
_EXPERTS = {"num_active": "num_experts_per_tok"}
_LOCAL_EXPERTS = _EXPERTS | {"num_routed": "num_local_experts", "expert_hidden_size": "intermediate_size"}
_MOE_WIDTH = _EXPERTS | {"num_routed": "num_experts", "expert_hidden_size": "moe_intermediate_size"}
_RENAMED_EXPERTS = {"num_local_experts": "num_experts"}
_DEEPSEEK_EXPERTS = _EXPERTS | {
    "num_routed": "n_routed_experts",
    "expert_hidden_size": "moe_intermediate_size",
    "num_shared": "n_shared_experts",
}
_GEMMA_UNUSED = frozenset({"use_bidirectional_attention", "num_image_tokens", "sliding_window_size"})
"""PaliGemma sees its prefix both ways, which MFU's convention of whole scores counts already."""
_MTP = {"num_predict_ahead_layers": "num_nextn_predict_layers"}
_MLA_KEYS = {name: key for name, key in SIZES.items() if name not in {"num_kv_heads", "head_size"}} | _ATTENTION_BIAS


def _balanced(by_default: bool) -> Derive:
    """DeepSeek's balancing without auxiliary loss, named by ``topk_method``, has a bias for each expert."""

    def derive(keys: Keys, _fields: Fields) -> Fields:
        method = keys.word("topk_method")
        return {"correction_bias": by_default if method is None else method == "noaux_tc"}

    return derive


def _shared_of_qwen(keys: Keys, _fields: Fields) -> Fields:
    return {
        "num_shared": 1,
        "shared_gate": True,
        "shared_hidden_size": keys.size("shared_expert_intermediate_size", 5632),
    }


def _shared_of_granite(keys: Keys, _fields: Fields) -> Fields:
    width = keys.count("shared_intermediate_size")
    return {"num_shared": 1, "shared_hidden_size": width} if width else {}


def _parallel_if(key: str) -> Derive:
    """With a parallel block one norm serves both attention and MLP (StableLM)."""

    def derive(keys: Keys, _fields: Fields) -> Fields:
        return {"parallel_block": True, "num_norms_per_layer": 1} if keys.flag(key, False) else {}

    return derive


def _cross_layers(keys: Keys, fields: Fields) -> Fields:
    """Llama 3.2 Vision. Its input embedding has rows for images, so that the head cannot be tied to it."""
    layers = keys.numbers("cross_attention_layers", below=fields["num_layers"])
    keys.only("tie_word_embeddings", False)
    return {"cross_attention_layers": (3, 8, 13, 18, 23, 28, 33, 38) if layers is None else layers}


_LLAMA = Dialect(keys=_LLAMA_KEYS)
_MISTRAL = Dialect(
    keys=SIZES,
    defaults={"num_kv_heads": 8},
    derive=(patterns.windows(patterns.no_layer, default=4096),),
)
_COHERE: dict[str, Any] = {"num_norms_per_layer": 1, "parallel_block": True}
_DEEPSEEK_V3 = Dialect(
    keys=_MLA_KEYS | _MTP,
    only={"mlp_bias": (False,)},
    experts=Experts(
        keys=_DEEPSEEK_EXPERTS,
        may_be_absent=True,
        derive=(patterns.after_first(3), _balanced(by_default=True)),
    ),
    derive=(patterns.latent,),
)

_STABLELM = Dialect(
    keys=SIZES | {"attention_qkv_bias": "use_qkv_bias", "qk_norm": "qk_layernorm"},
    facts=_LAYER_NORM | {"qk_norm_full_width": True},
    defaults={"num_kv_heads": 32},
    derive=(_parallel_if("use_parallel_residual"),),
)

_DENSE: dict[str, Dialect] = {
    "llama": _LLAMA,
    "Yi": _LLAMA,
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "ministral3": Dialect(keys=SIZES, defaults={"num_kv_heads": 8, "head_size": 128}, derive=_WINDOW),
    "qwen2": Dialect(
        keys=SIZES,
        facts={"attention_qkv_bias": True},
        defaults={"num_kv_heads": 32},
        derive=(patterns.qwen_windows,),
    ),
    "qwen3": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        facts={"qk_norm": True},
        defaults={"head_size": 128, "num_kv_heads": 32},
        derive=(patterns.qwen_windows,),
    ),
    "gemma": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        defaults={"head_size": 256, "num_kv_heads": 16},
        unused=_GEMMA_UNUSED,
        tied_by_default=True,
    ),
    "gemma2": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        facts={"num_norms_per_layer": 4},
        defaults={"head_size": 256, "num_kv_heads": 4},
        unused=_GEMMA_UNUSED,
        derive=(patterns.windows(patterns.every(2), default=4096),),
        tied_by_default=True,
    ),
    "gemma3_text": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        facts={"num_norms_per_layer": 4, "qk_norm": True},
        defaults={"head_size": 256, "num_kv_heads": 4},
        only={"use_bidirectional_attention": (False,)},
        derive=(patterns.windows(patterns.every(6), default=4096),),
        tied_by_default=True,
    ),
    "granite": _LLAMA,
    "arcee": Dialect(keys=_LLAMA_KEYS, facts={"gated_mlp": False}),
    "helium": Dialect(
        keys=SIZES | {"attention_qkv_bias": "attention_bias", "mlp_bias": "mlp_bias"}, defaults={"head_size": 128}
    ),
    "seed_oss": Dialect(
        keys=SIZES
        | {
            "attention_qkv_bias": "attention_bias",
            "attention_out_bias": "attention_out_bias",
            "mlp_bias": "mlp_bias",
        },
        defaults={"num_kv_heads": 8, "head_size": 128, "attention_qkv_bias": True},
    ),
    "smollm3": Dialect(
        keys=_LLAMA_KEYS, defaults={"num_kv_heads": 4}, derive=(patterns.qwen_windows,), tied_by_default=True
    ),
    "exaone": Dialect(keys=_LLAMA_KEYS, aliases={"num_layers": "num_hidden_layers"}),
    "exaone4": Dialect(
        keys=SIZES,
        facts={"qk_norm": True},
        derive=(patterns.windows(patterns.letters(4), default=4096),),
    ),
    "olmo": Dialect(keys=SIZES | _ATTENTION_BIAS, facts={"norm_has_weight": False}),
    "olmo2": Dialect(keys=SIZES | _ATTENTION_BIAS, facts={"qk_norm": True, "qk_norm_full_width": True}),
    "olmo3": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        facts={"qk_norm": True, "qk_norm_full_width": True},
        derive=(patterns.windows(patterns.every(4), default=4096),),
    ),
    "phi3": Dialect(
        keys=SIZES,
        only={"attention_bias": (False,), "mlp_bias": (False,), "lm_head_bias": (False,)},
        derive=_WINDOW,
    ),
    "starcoder2": Dialect(
        keys=SIZES | {"attention_qkv_bias": "use_bias", "attention_out_bias": "use_bias", "mlp_bias": "use_bias"},
        facts=_LAYER_NORM | {"gated_mlp": False},
        only={"mlp_type": ("default",)},
        defaults={"num_kv_heads": 2, "attention_qkv_bias": True, "attention_out_bias": True, "mlp_bias": True},
        derive=_WINDOW,
        tied_by_default=True,
    ),
    "stablelm": _STABLELM,
    "stablelm_epoch": _STABLELM,
    "cohere": Dialect(
        keys=SIZES | _ATTENTION_BIAS | {"qk_norm": "use_qk_norm"},
        facts=_COHERE | {"qk_norm_full_width": True},
        tied_by_default=True,
    ),
    "cohere2": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        facts=_COHERE,
        only={
            "use_qk_norm": (False,),
            "use_gated_activation": (True,),
            "use_parallel_block": (True,),
        },
        derive=(patterns.windows(patterns.every(4), default=4096),),
        unused=frozenset(
            {"order_of_interleaved_layers", "layer_switch", "use_parallel_embedding", "position_embedding_type"}
        ),
        tied_by_default=True,
    ),
    "nemotron": Dialect(keys=_LLAMA_KEYS, facts=_LAYER_NORM | {"gated_mlp": False}),
    "glm": Dialect(
        keys=SIZES | {"attention_qkv_bias": "attention_bias"},
        defaults={"num_kv_heads": 2, "head_size": 128, "attention_qkv_bias": True},
    ),
    "glm4": Dialect(
        keys=SIZES | {"attention_qkv_bias": "attention_bias"},
        facts={"num_norms_per_layer": 4},
        defaults={"num_kv_heads": 2, "head_size": 128, "attention_qkv_bias": True},
    ),
    "internlm2": Dialect(
        keys=SIZES | {"attention_qkv_bias": "bias", "attention_out_bias": "bias"},
    ),
    "internlm3": Dialect(
        keys=SIZES | {"attention_qkv_bias": "qkv_bias", "attention_out_bias": "bias", "mlp_bias": "bias"},
        defaults={"num_kv_heads": 2, "head_size": 128},
        only={"attention_bias": (False,), "mlp_bias": (False,)},
    ),
    "ernie4_5": Dialect(
        keys=SIZES,
        defaults={"num_kv_heads": 2, "head_size": 128},
        only={"use_bias": (False,)},
        tied_by_default=True,
    ),
    "hunyuan_v1_dense": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        facts={"qk_norm": True},
        only={"use_qk_norm": (True,), "mlp_bias": (False,), "use_cla": (False,), "num_experts": (1,)},
    ),
    "jais2": Dialect(
        keys=_LLAMA_KEYS,
        facts=_LAYER_NORM | {"gated_mlp": False},
        defaults={"attention_qkv_bias": True, "attention_out_bias": True, "mlp_bias": True},
    ),
    "minicpm3": Dialect(keys=_MLA_KEYS | {"mlp_bias": "mlp_bias"}, derive=(patterns.latent,), tied_by_default=True),
    "mllama_text_model": Dialect(
        keys=SIZES,
        facts={"num_extra_embedding_rows": 8},
        defaults={"num_kv_heads": 8},
        derive=(_cross_layers,),
    ),
}

_MIXTURES: dict[str, Dialect] = {
    "mixtral": Dialect(
        keys=SIZES,
        defaults={"num_kv_heads": 8},
        aliases={"num_experts": "num_local_experts"},
        experts=Experts(keys=_LOCAL_EXPERTS),
        derive=_WINDOW,
    ),
    "phimoe": Dialect(
        keys=SIZES | _ATTENTION_BIAS | {"head_bias": "lm_head_bias"},
        facts=_LAYER_NORM,
        defaults={"num_kv_heads": 8},
        experts=Experts(keys=_LOCAL_EXPERTS),
        derive=_WINDOW,
    ),
    "qwen2_moe": Dialect(
        keys=SIZES | {"attention_qkv_bias": "qkv_bias"},
        defaults={"num_kv_heads": 16, "attention_qkv_bias": True},
        aliases=_RENAMED_EXPERTS,
        experts=Experts(keys=_MOE_WIDTH, derive=(patterns.sparse_steps, _shared_of_qwen)),
        derive=(patterns.qwen_windows,),
    ),
    "qwen3_moe": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        facts={"qk_norm": True},
        defaults={"num_kv_heads": 4},
        aliases=_RENAMED_EXPERTS,
        experts=Experts(keys=_MOE_WIDTH, derive=(patterns.sparse_steps,)),
        derive=(patterns.qwen_windows,),
    ),
    "granitemoe": Dialect(keys=SIZES | _ATTENTION_BIAS, experts=Experts(keys=_LOCAL_EXPERTS)),
    "granitemoeshared": Dialect(
        keys=SIZES | _ATTENTION_BIAS, experts=Experts(keys=_LOCAL_EXPERTS, derive=(_shared_of_granite,))
    ),
    "olmoe": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        facts={"qk_norm": True, "qk_norm_full_width": True},
        aliases=_RENAMED_EXPERTS,
        experts=Experts(
            keys=_EXPERTS | {"num_routed": "num_experts", "expert_hidden_size": "intermediate_size"},
        ),
    ),
    "flex_olmo": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        facts={"qk_norm": True, "qk_norm_full_width": True},
        aliases=_RENAMED_EXPERTS,
        experts=Experts(keys=_EXPERTS | {"num_routed": "num_experts", "expert_hidden_size": "intermediate_size"}),
    ),
    "gpt_oss": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        facts={"attention_sinks": True, "mlp_bias": True},
        defaults={
            "num_kv_heads": 8,
            "head_size": 64,
            "attention_qkv_bias": True,
            "attention_out_bias": True,
        },
        experts=Experts(keys=_LOCAL_EXPERTS, facts={"router_bias": True}),
        aliases={"num_experts": "num_local_experts"},
        derive=(patterns.windows(patterns.every(2), default=128),),
        unused=frozenset({"experts_per_token"}),
    ),
    "deepseek": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        experts=Experts(keys=_DEEPSEEK_EXPERTS, may_be_absent=True, derive=(patterns.after_first(0),)),
    ),
    "deepseek_v2": Dialect(
        keys=_MLA_KEYS,
        only={"mlp_bias": (False,)},
        experts=Experts(
            keys=_DEEPSEEK_EXPERTS,
            may_be_absent=True,
            derive=(patterns.after_first(0), _balanced(by_default=False)),
        ),
        derive=(patterns.latent,),
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe": Dialect(
        keys=SIZES | {"attention_qkv_bias": "attention_bias", "qk_norm": "use_qk_norm"} | _MTP,
        defaults={"num_kv_heads": 8},
        experts=Experts(
            keys=_DEEPSEEK_EXPERTS,
            defaults={"num_shared": 1},
            facts={"correction_bias": True},
            derive=(patterns.after_first(1),),
        ),
    ),
    "glm4_moe_lite": Dialect(
        keys=_MLA_KEYS | _MTP,
        experts=Experts(
            keys=_DEEPSEEK_EXPERTS,
            defaults={"num_shared": 1},
            facts={"correction_bias": True},
            derive=(patterns.after_first(1),),
        ),
        derive=(patterns.latent,),
    ),
    "dots1": Dialect(
        keys=SIZES | _ATTENTION_BIAS,
        facts={"qk_norm": True},
        experts=Experts(
            keys=_DEEPSEEK_EXPERTS,
            facts={"correction_bias": True},
            derive=(patterns.after_first(0),),
        ),
        derive=(patterns.windows(patterns.before("max_window_layers", 62), default=4096),),
    ),
    "ernie4_5_moe": Dialect(
        keys=SIZES,
        defaults={"num_kv_heads": 4},
        only={"use_bias": (False,)},
        # the published files in this form have no weights of its multi-token prediction
        unused=frozenset({"num_nextn_predict_layers"}),
        experts=Experts(
            keys={
                "num_routed": "moe_num_experts",
                "num_active": "moe_k",
                "expert_hidden_size": "moe_intermediate_size",
                "num_shared": "moe_num_shared_experts",
            },
            defaults={"num_shared": 2},
            facts={"correction_bias": True},
            derive=(patterns.between,),
        ),
        tied_by_default=True,
    ),
    "minimax_m2": Dialect(
        keys=SIZES,
        facts={"qk_norm": True, "qk_norm_full_width": True},
        defaults={"num_kv_heads": 8, "head_size": 128},
        only={
            "use_qk_norm": (True,),
            "qk_norm_type": ("per_layer",),
            "use_routing_bias": (True,),
            "shared_intermediate_size": (0,),
            "attn_type_list": ([1],),
        },
        # the published files have no weights of its multi-token prediction
        unused=frozenset(
            {"use_mtp", "num_mtp_modules", "mtp_transformer_layers", "mlp_intermediate_size", "shared_moe_mode"}
        ),
        derive=_WINDOW,
        experts=Experts(keys=_LOCAL_EXPERTS, facts={"correction_bias": True}),
        aliases={"num_experts": "num_local_experts"},
    ),
    "llama4_text": Dialect(
        keys=SIZES | _ATTENTION_BIAS | {"ffn_hidden_size": "intermediate_size_mlp"},
        defaults={"num_kv_heads": 8, "ffn_hidden_size": 16384},
        experts=Experts(
            keys=_LOCAL_EXPERTS,
            facts={"num_shared": 1},
            derive=(patterns.interleaved,),
        ),
        unused=frozenset({"use_qk_norm", "for_llm_compressor"}),
        derive=(patterns.chunks,),
    ),
}

DIALECTS: Mapping[str, Dialect] = _DENSE | _MIXTURES | OLDER
