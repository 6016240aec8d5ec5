"""Dialects of older architectures, each with key names of its own: GPT-2 to Falcon, and models with remote code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_llmsched.domain.workload import ExpertShape, Positions
from airflow_llmsched.specs.hf_config import patterns
from airflow_llmsched.specs.hf_config.dialect import Dialect, Fields
from airflow_llmsched.specs.hf_config.keys import Keys

_BIASES = {"attention_qkv_bias": True, "attention_out_bias": True, "mlp_bias": True}
_GPT: dict[str, Any] = {"norm_has_bias": True, "gated_mlp": False}
_SIZES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
}
_LLAMA_LIKE = _SIZES | {"ffn_hidden_size": "intermediate_size"}
_GPT2_KEYS = {
    "num_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_heads": "n_head",
    "ffn_hidden_size": "n_inner",
    "vocab_size": "vocab_size",
}
_PHI = _GPT | _BIASES | {"head_bias": True, "num_norms_per_layer": 1, "parallel_block": True}
_GPT2_ALIASES = {"num_hidden_layers": "n_layer", "hidden_size": "n_embd", "num_attention_heads": "n_head"}
_GPTJ = Dialect(
    keys=_GPT2_KEYS,
    facts=_GPT | {"mlp_bias": True, "head_bias": True, "num_norms_per_layer": 1, "parallel_block": True},
    unused=frozenset({"n_positions"}),
    aliases=_GPT2_ALIASES,
    mlp_is_4h=True,
)


def _opt(keys: Keys, fields: Fields) -> Fields:
    """OPT: two more rows of positions than it has, and norms, biases and projections that hang on switches."""
    is_before = keys.flag("do_layer_norm_before", True)
    has_bias = keys.flag("enable_bias", True)
    is_affine = keys.flag("layer_norm_elementwise_affine", True)
    width = keys.size("word_embed_proj_dim")
    return {
        "max_positions": (keys.size("max_position_embeddings", 2048) or 2048) + 2,
        "final_norm": is_before and not keys.flag("_remove_final_layer_norm", False),
        "norm_has_bias": is_affine,
        "norm_has_weight": is_affine,
        "embedding_size": None if width == fields["hidden_size"] else width,
        **dict.fromkeys(_BIASES, has_bias),
    }


def _single_key_head(keys: Keys, fields: Fields) -> Fields:
    """GPT-BigCode: one key head, or as many as query heads."""
    keys.ignore("num_key_value_heads")
    return {"num_kv_heads": 1 if keys.flag("multi_query", True) else fields["num_heads"]}


def _falcon(keys: Keys, fields: Fields) -> Fields:
    """Three decoders: the 40B's (grouped keys), the 7B's (one key head, one norm) and the RW's (two norms).

    The first files of the 40B have a type of their own and no key for it.
    """
    is_new = keys.flag("new_decoder_architecture", fields.get("num_norms_per_layer") == 2)
    is_parallel = keys.flag("parallel_attn", True)
    multi_query = keys.flag("multi_query", True)
    grouped = keys.size("num_kv_heads") or fields["num_heads"]
    num_norms = keys.size("num_ln_in_parallel_attn") or (2 if is_new else 1)
    alibi = keys.flag("alibi", False)
    return {
        "num_kv_heads": grouped if is_new else 1 if multi_query else fields["num_heads"],
        "num_norms_per_layer": 2 if not (is_new or is_parallel) else num_norms if is_new else 1,
        "parallel_block": is_new or is_parallel,
        "positions": Positions.ALIBI if alibi else Positions.ROTARY,
        **dict.fromkeys(_BIASES, keys.flag("bias", False)),
    }


def _mpt(keys: Keys, _fields: Fields) -> Fields:
    attention = keys.nested("attn_config")
    for key, value in (("attn_type", "multihead_attention"), ("qk_ln", False), ("alibi", True), ("prefix_lm", False)):
        attention.only(key, value)
    attention.ignore("attn_uses_sequence_id")
    return {}


def _dbrx(keys: Keys, _fields: Fields) -> Fields:
    attention, mlp = keys.nested("attn_config"), keys.nested("ffn_config")
    experts = ExpertShape(
        num_routed=mlp.size("moe_num_experts", 4) or mlp.need("moe_num_experts"),
        num_active=mlp.size("moe_top_k", 1) or mlp.need("moe_top_k"),
        expert_hidden_size=mlp.size("ffn_hidden_size", 3584) or mlp.need("ffn_hidden_size"),
    )
    mlp.ignore("hidden_size", "ffn_act_fn", "moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights")
    mlp.ignore("moe_weight_parallelism", "uniform_expert_assignment")
    keys.ignore("num_key_value_heads")
    return {
        "experts": experts,
        "ffn_hidden_size": experts.expert_hidden_size,
        "num_kv_heads": attention.size("kv_n_heads", 1) or 1,
    }


def _chatglm(keys: Keys, fields: Fields) -> Fields:
    """ChatGLM 2 to 4: grouped keys behind a switch, and biases in two groups."""
    groups = keys.size("multi_query_group_num", 1) or 1
    every_bias = keys.flag("add_bias_linear", False)
    return {
        "num_kv_heads": groups if keys.flag("multi_query_attention", False) else fields["num_heads"],
        "attention_qkv_bias": every_bias or keys.flag("add_qkv_bias", False),
        "attention_out_bias": every_bias,
        "mlp_bias": every_bias,
    }


def _qwen1(keys: Keys, _fields: Fields) -> Fields:
    """The first Qwen writes the width of gate and up together."""
    return {"ffn_hidden_size": max(1, keys.need("intermediate_size") // 2)}


_FALCON = Dialect(
    only={"ff_factor": (4,)},
    keys=_SIZES | {"ffn_hidden_size": "ffn_hidden_size"},
    facts=_GPT,
    derive=(_falcon,),
    aliases={"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_head_kv": "num_kv_heads"},
    tied_by_default=True,
    mlp_is_4h=True,
)

OLDER: dict[str, Dialect] = {
    "gpt2": Dialect(
        keys=_GPT2_KEYS | {"max_positions": "n_positions"},
        facts=_GPT | _BIASES | {"positions": Positions.LEARNED},
        defaults={"max_positions": 1024},
        only={"add_cross_attention": (False,)},
        aliases=_GPT2_ALIASES,
        tied_by_default=True,
        mlp_is_4h=True,
    ),
    "gpt_bigcode": Dialect(
        keys=_GPT2_KEYS | {"max_positions": "n_positions"},
        facts=_GPT | _BIASES | {"positions": Positions.LEARNED},
        defaults={"max_positions": 1024},
        only={"add_cross_attention": (False,)},
        derive=(_single_key_head,),
        aliases=_GPT2_ALIASES,
        unused=frozenset({"inference_runner", "validate_runner_input", "pad_key_length", "max_batch_size"}),
        tied_by_default=True,
        mlp_is_4h=True,
    ),
    "gpt_neo": Dialect(
        keys={
            "num_layers": "num_layers",
            "hidden_size": "hidden_size",
            "num_heads": "num_heads",
            "ffn_hidden_size": "intermediate_size",
            "vocab_size": "vocab_size",
            "max_positions": "max_position_embeddings",
        },
        facts=_GPT | {"positions": Positions.LEARNED, "attention_out_bias": True, "mlp_bias": True},
        defaults={"max_positions": 2048},
        derive=(patterns.global_and_local,),
        aliases={"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
        tied_by_default=True,
        mlp_is_4h=True,
    ),
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "gpt_neox": Dialect(
        keys=_LLAMA_LIKE
        | {
            "attention_qkv_bias": "attention_bias",
            "attention_out_bias": "attention_bias",
            "parallel_block": "use_parallel_residual",
        },
        facts=_GPT | {"mlp_bias": True},
        defaults={"attention_qkv_bias": True, "attention_out_bias": True, "parallel_block": True},
    ),
    "opt": Dialect(
        keys=_SIZES | {"ffn_hidden_size": "ffn_dim"},
        facts=_GPT | {"positions": Positions.LEARNED},
        derive=(_opt,),
        tied_by_default=True,
    ),
    "bloom": Dialect(
        keys={"num_layers": "n_layer", "hidden_size": "hidden_size", "num_heads": "n_head", "vocab_size": "vocab_size"},
        facts=_GPT | _BIASES | {"positions": Positions.ALIBI, "embedding_norm": True},
        aliases={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
        unused=frozenset(
            {
                "n_inner",
                "offset_alibi",
                "bias_dropout_fusion",
                "skip_bias_add",
                "skip_bias_add_qkv",
                "masked_softmax_fusion",
            }
        ),
        tied_by_default=True,
        mlp_is_4h=True,
    ),
    "mpt": Dialect(
        keys={"num_layers": "n_layers", "hidden_size": "d_model", "num_heads": "n_heads", "vocab_size": "vocab_size"},
        facts={"gated_mlp": False, "positions": Positions.ALIBI},
        only={"expansion_ratio": (4,), "no_bias": (True,)},
        unused=frozenset({"learned_pos_emb"}),
        derive=(_mpt,),
        tied_by_default=True,
        mlp_is_4h=True,
    ),
    "falcon": _FALCON,
    "RefinedWeb": replace(_FALCON, facts=_GPT | {"num_norms_per_layer": 2}),
    "RefinedWebModel": _FALCON,
    "phi": Dialect(
        keys=_LLAMA_LIKE | {"num_kv_heads": "num_key_value_heads", "qk_norm": "qk_layernorm"},
        facts=_PHI | {"qk_norm_has_bias": True},
    ),
    "phi-msft": Dialect(
        keys=_GPT2_KEYS | {"num_kv_heads": "n_head_kv"},
        facts=_PHI,
        only={"img_processor": ()},
        unused=frozenset({"n_positions", "flash_attn", "flash_rotary", "fused_dense"}),
        mlp_is_4h=True,
    ),
    "persimmon": Dialect(
        keys=_LLAMA_LIKE | {"qk_norm": "qk_layernorm"},
        facts=_GPT | _BIASES | {"qk_norm_has_bias": True},
        defaults={"qk_norm": True},
        unused=frozenset({"num_key_value_heads"}),
    ),
    "dbrx": Dialect(
        keys={"num_layers": "n_layers", "hidden_size": "d_model", "num_heads": "n_heads", "vocab_size": "vocab_size"},
        derive=(_dbrx,),
        mlp_is_4h=True,
    ),
    "baichuan": Dialect(keys=_LLAMA_LIKE, unused=frozenset({"z_loss_weight"})),
    "internlm": Dialect(
        keys=_LLAMA_LIKE | {"attention_qkv_bias": "bias", "attention_out_bias": "bias"},
        defaults={"attention_qkv_bias": True, "attention_out_bias": True},
    ),
    "qwen": Dialect(
        keys=_LLAMA_LIKE | {"head_size": "kv_channels"},
        facts={"attention_qkv_bias": True},
        only={"no_bias": (True,)},
        derive=(_qwen1,),
    ),
    "chatglm": Dialect(
        keys={
            "num_layers": "num_layers",
            "hidden_size": "hidden_size",
            "num_heads": "num_attention_heads",
            "head_size": "kv_channels",
            "ffn_hidden_size": "ffn_hidden_size",
            "vocab_size": "padded_vocab_size",
        },
        only={"rmsnorm": (True,), "post_layer_norm": (True,), "original_rope": (True,)},
        derive=(_chatglm,),
        unused=frozenset({"vocab_size", "bias_dropout_fusion", "multi_query_group_num"}),
    ),
}
