"""Shapes of the measured models, typed from their public config.json files (huggingface.co, read 2026-11)."""

from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.workload import ExpertShape, ModelShape, Positions
from airflow_llmsched.specs.hf_config import reader as hf_config

_LLAMA2_7B = ModelShape(
    name="llama-2-7b", num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, head_size=128,
    ffn_hidden_size=11008, vocab_size=32000,
)  # fmt: skip
_LLAMA2_13B = replace(
    _LLAMA2_7B,
    name="llama-2-13b",
    num_layers=40,
    hidden_size=5120,
    num_heads=40,
    num_kv_heads=40,
    ffn_hidden_size=13824,
)
_LLAMA2_70B = replace(
    _LLAMA2_7B, name="llama-2-70b", num_layers=80, hidden_size=8192, num_heads=64, num_kv_heads=8, ffn_hidden_size=28672
)
_LLAMA3_8B = replace(_LLAMA2_7B, name="llama-3-8b", num_kv_heads=8, ffn_hidden_size=14336, vocab_size=128256)
_LLAMA3_70B = replace(_LLAMA2_70B, name="llama-3-70b", vocab_size=128256)
_LLAMA3_405B = replace(
    _LLAMA3_70B, name="llama-3.1-405b", num_layers=126, hidden_size=16384, num_heads=128, ffn_hidden_size=53248
)
_QWEN3_30B = ModelShape(
    name="qwen3-30b-a3b", num_layers=48, hidden_size=2048, num_heads=32, num_kv_heads=4, head_size=128,
    ffn_hidden_size=6144, vocab_size=151936, qk_norm=True,
    experts=ExpertShape(num_routed=128, num_active=8, expert_hidden_size=768),
)  # fmt: skip
_QWEN3_235B = replace(
    _QWEN3_30B, name="qwen3-235b-a22b", num_layers=94, hidden_size=4096, num_heads=64, ffn_hidden_size=12288,
    experts=ExpertShape(num_routed=128, num_active=8, expert_hidden_size=1536),
)  # fmt: skip
_GROK1 = ModelShape(
    name="grok-1", num_layers=64, hidden_size=6144, num_heads=48, num_kv_heads=8, head_size=128,
    ffn_hidden_size=32768, vocab_size=131072, tied_embeddings=True,
    experts=ExpertShape(num_routed=8, num_active=2, expert_hidden_size=32768),
)  # fmt: skip
_NEMOTRON_8B = ModelShape(
    name="nemotron-8b", num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, head_size=128,
    ffn_hidden_size=16384, vocab_size=256000, gated_mlp=False, norm_has_bias=True,
)  # fmt: skip  # NeMo's recipe nemotron3_8b: squared ReLU, rotary positions
_NEMOTRON_22B = replace(
    _NEMOTRON_8B, name="nemotron-22b", num_layers=40, hidden_size=6144, num_heads=48, num_kv_heads=48,
    ffn_hidden_size=24576,
)  # fmt: skip
_NEMOTRON_340B = replace(
    _NEMOTRON_8B, name="nemotron-340b", num_layers=96, hidden_size=18432, num_heads=96, num_kv_heads=8, head_size=192,
    ffn_hidden_size=73728,
)  # fmt: skip

_DEEPSEEK_V3 = hf_config.to_shape(
    {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "vocab_size": 129280, "tie_word_embeddings": False, "num_nextn_predict_layers": 1,
    },
    name="deepseek-v3-mtp",
    file="deepseek-ai/DeepSeek-V3 config.json",
)  # fmt: skip
_GPT_OSS_120B = hf_config.to_shape(
    {
        "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 128,
        "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128, "attention_bias": True,
        "layer_types": ["sliding_attention", "full_attention"] * 18, "tie_word_embeddings": False,
    },
    name="gpt-oss-120b",
    file="openai/gpt-oss-120b config.json",
)  # fmt: skip

NAMED = {
    shape.name: shape
    for shape in (
        _LLAMA2_7B, _LLAMA2_13B, _LLAMA2_70B, _LLAMA3_8B, _LLAMA3_70B, _LLAMA3_405B, _QWEN3_30B, _QWEN3_235B, _GROK1,
        _NEMOTRON_8B, _NEMOTRON_22B, _NEMOTRON_340B, _DEEPSEEK_V3, _GPT_OSS_120B,
        replace(_DEEPSEEK_V3, name="deepseek-v3", num_predict_ahead_layers=0),
    )
}  # fmt: skip


def gpt(
    *, hidden_size: int, num_layers: int, num_heads: int, max_positions: int, vocab_size: int = 51200
) -> ModelShape:
    """Return GPT-2's architecture in another size, as Megatron-LM trains it: its 50,257 words padded to 51,200."""
    return ModelShape(
        name=f"gpt-{num_layers}x{hidden_size}", num_layers=num_layers, hidden_size=hidden_size, num_heads=num_heads,
        num_kv_heads=num_heads, head_size=hidden_size // num_heads, ffn_hidden_size=4 * hidden_size,
        vocab_size=vocab_size, gated_mlp=False, tied_embeddings=True, positions=Positions.LEARNED,
        max_positions=max_positions, norm_has_bias=True, attention_qkv_bias=True, attention_out_bias=True,
        mlp_bias=True,
    )  # fmt: skip
