from __future__ import annotations

from dataclasses import replace

from airflow_llmsched.planner.perf.kv_cache import kv_cache_bytes, kv_cache_bytes_per_token
from tests.support.models import DEEPSEEK_V3, LLAMA31_8B


def test_grouped_keys_and_values_of_llama_3_1_8b_take_128_kib_a_token_in_16_bits() -> None:
    assert kv_cache_bytes_per_token(LLAMA31_8B, bytes_per_value=2) == 128 * 1024


def test_latent_attention_keeps_the_latent_and_one_rotary_key_a_layer() -> None:
    """DeepSeek-AI 2024, "DeepSeek-V2", table 1: (d_c + d_h^R) l values a token."""
    assert kv_cache_bytes_per_token(DEEPSEEK_V3, bytes_per_value=2) == 2 * (512 + 64) * 61


def test_a_window_bounds_what_its_layers_keep() -> None:
    windowed = replace(LLAMA31_8B, attention_window_tokens=1024, full_attention_layers=(0, 1))
    whole = kv_cache_bytes(LLAMA31_8B, num_tokens=8192, bytes_per_value=2)
    assert kv_cache_bytes(windowed, num_tokens=8192, bytes_per_value=2) == whole * 2 // 32 + whole * 30 // 32 // 8
    assert kv_cache_bytes(windowed, num_tokens=512, bytes_per_value=2) == whole // 16


def test_cross_attention_keeps_nothing_of_the_text() -> None:
    crossed = replace(LLAMA31_8B, cross_attention_layers=(3, 7))
    assert kv_cache_bytes_per_token(crossed, bytes_per_value=2) == 30 * 4 * 1024
