"""Shapes of the measured models: presets, under the names that rows have for them, and some that have no preset."""

from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.domain.workload import ExpertShape, ModelShape, Positions
from airflow_llmsched.specs import presets

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
_PRESETS = {
    "llama-2-7b": "llama-2-7b",
    "llama-2-13b": "llama-2-13b",
    "llama-2-70b": "llama-2-70b",
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.1-405b": "llama-3.1-405b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "nemotron-340b": "nemotron-4-340b",
    "deepseek-v3-mtp": "deepseek-v3",
    "gpt-oss-120b": "gpt-oss-120b",
}
_SHAPES = (
    *(replace(presets.get(preset).shape, name=name) for name, preset in _PRESETS.items()),
    replace(presets.get("deepseek-v3").shape, num_predict_ahead_layers=0),
    _GROK1,
    _NEMOTRON_8B,
    _NEMOTRON_22B,
)
NAMED = {shape.name: shape for shape in _SHAPES}


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
