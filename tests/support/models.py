"""Public model shapes, typed from their config.json files (huggingface.co, read 2026), for tests."""

from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.workload import ExpertShape, LatentAttention, ModelShape, Positions

LLAMA2_7B = ModelShape(
    name="Llama-2-7b", num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, head_size=128,
    ffn_hidden_size=11008, vocab_size=32000,
)  # fmt: skip
LLAMA2_70B = ModelShape(
    name="Llama-2-70b", num_layers=80, hidden_size=8192, num_heads=64, num_kv_heads=8, head_size=128,
    ffn_hidden_size=28672, vocab_size=32000,
)  # fmt: skip
LLAMA31_8B = replace(LLAMA2_7B, name="Llama-3.1-8B", num_kv_heads=8, ffn_hidden_size=14336, vocab_size=128256)
MISTRAL_7B = replace(LLAMA31_8B, name="Mistral-7B", vocab_size=32000)
MIXTRAL_8X7B = replace(
    MISTRAL_7B, name="Mixtral-8x7B", experts=ExpertShape(num_routed=8, num_active=2, expert_hidden_size=14336)
)
QWEN25_7B = ModelShape(
    name="Qwen2.5-7B", num_layers=28, hidden_size=3584, num_heads=28, num_kv_heads=4, head_size=128,
    ffn_hidden_size=18944, vocab_size=152064, attention_qkv_bias=True,
)  # fmt: skip
QWEN3_4B = ModelShape(
    name="Qwen3-4B", num_layers=36, hidden_size=2560, num_heads=32, num_kv_heads=8, head_size=128,
    ffn_hidden_size=9728, vocab_size=151936, tied_embeddings=True, qk_norm=True,
)  # fmt: skip
QWEN3_30B_A3B = ModelShape(
    name="Qwen3-30B-A3B", num_layers=48, hidden_size=2048, num_heads=32, num_kv_heads=4, head_size=128,
    ffn_hidden_size=6144, vocab_size=151936, qk_norm=True,
    experts=ExpertShape(num_routed=128, num_active=8, expert_hidden_size=768),
)  # fmt: skip
PHI3_MINI = ModelShape(
    name="Phi-3-mini", num_layers=32, hidden_size=3072, num_heads=32, num_kv_heads=32, head_size=96,
    ffn_hidden_size=8192, vocab_size=32064,
)  # fmt: skip
_BIASES_EVERYWHERE = ModelShape(
    name="biases", num_layers=1, hidden_size=1, num_heads=1, num_kv_heads=1, head_size=1, ffn_hidden_size=1,
    vocab_size=1, gated_mlp=False, norm_has_bias=True, attention_qkv_bias=True, attention_out_bias=True, mlp_bias=True,
)  # fmt: skip
GPT_NEOX_20B = replace(
    _BIASES_EVERYWHERE, name="gpt-neox-20b", num_layers=44, hidden_size=6144, num_heads=64, num_kv_heads=64,
    head_size=96, ffn_hidden_size=24576, vocab_size=50432,
)  # fmt: skip
GPT2 = replace(
    _BIASES_EVERYWHERE, name="gpt2", num_layers=12, hidden_size=768, num_heads=12, num_kv_heads=12, head_size=64,
    ffn_hidden_size=3072, vocab_size=50257, tied_embeddings=True, positions=Positions.LEARNED, max_positions=1024,
)  # fmt: skip
GRANITE_1B_A400M = ModelShape(
    name="granite-1b-a400m", num_layers=24, hidden_size=1024, num_heads=16, num_kv_heads=8, head_size=64,
    ffn_hidden_size=512, vocab_size=49155, tied_embeddings=True,
    experts=ExpertShape(num_routed=32, num_active=8, expert_hidden_size=512),
)  # fmt: skip
DEEPSEEK_V3 = ModelShape(
    name="DeepSeek-V3", num_layers=61, hidden_size=7168, num_heads=128, num_kv_heads=128, head_size=192,
    ffn_hidden_size=18432, vocab_size=129280, num_predict_ahead_layers=1,
    latent=LatentAttention(kv_latent_size=512, rope_head_size=64, value_head_size=128, query_latent_size=1536),
    experts=ExpertShape(
        num_routed=256, num_active=8, expert_hidden_size=2048, num_shared=1, num_dense_layers_first=3,
        correction_bias=True,
    ),
)  # fmt: skip
GPT_OSS_20B = ModelShape(
    name="gpt-oss-20b", num_layers=24, hidden_size=2880, num_heads=64, num_kv_heads=8, head_size=64,
    ffn_hidden_size=2880, vocab_size=201088, attention_qkv_bias=True, attention_out_bias=True, mlp_bias=True,
    attention_sinks=True, attention_window_tokens=128, full_attention_layers=tuple(range(1, 24, 2)),
    experts=ExpertShape(num_routed=32, num_active=4, expert_hidden_size=2880, router_bias=True),
)  # fmt: skip
GEMMA2_9B = ModelShape(
    name="gemma-2-9b", num_layers=42, hidden_size=3584, num_heads=16, num_kv_heads=8, head_size=256,
    ffn_hidden_size=14336, vocab_size=256000, tied_embeddings=True, num_norms_per_layer=4,
    attention_window_tokens=4096, full_attention_layers=tuple(range(1, 42, 2)),
)  # fmt: skip
LLAMA4_MAVERICK = ModelShape(
    name="Llama-4-Maverick-17B-128E", num_layers=48, hidden_size=5120, num_heads=40, num_kv_heads=8, head_size=128,
    ffn_hidden_size=16384, vocab_size=202048, attention_window_tokens=8192,
    full_attention_layers=tuple(range(3, 48, 4)),
    experts=ExpertShape(
        num_routed=128, num_active=1, expert_hidden_size=8192, num_shared=1, layers=tuple(range(1, 48, 2))
    ),
)  # fmt: skip


def megatron_gpt(
    *, name: str, num_heads: int, hidden_size: int, num_layers: int, sequence_length_tokens: int = 2048
) -> ModelShape:
    """Return a GPT of the Megatron-LM papers: vocabulary 51,200, learned positions, tied head, biases everywhere."""
    return replace(
        GPT2, name=name, num_layers=num_layers, hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_heads,
        head_size=hidden_size // num_heads, ffn_hidden_size=4 * hidden_size, vocab_size=51200,
        max_positions=sequence_length_tokens,
    )  # fmt: skip
