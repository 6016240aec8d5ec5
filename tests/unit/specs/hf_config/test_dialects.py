"""Every dialect agrees with the code that defines it, for small models with all switches in several positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.layers import layer_kinds
from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.specs.hf_config import reader
from airflow_llmsched.specs.hf_config.dialects import DIALECTS

GOLDEN = Path(__file__).parents[3] / "golden"
SMALL = json.loads((GOLDEN / "hf_small_models.json").read_text())
"""Random small configs, and what transformers 5.24.0 stores for them: sizes of the state dict of a model built on
PyTorch's meta device, tied tensors once (made on 2026-11-30)."""
WITHOUT_A_SMALL_ONE = {
    "deepseek", "kimi_k2", "internlm", "internlm2", "qwen", "chatglm", "baichuan", "dbrx", "RefinedWeb",
    "RefinedWebModel", "Yi", "phi-msft", "stablelm_epoch",
}  # fmt: skip
"""Types that transformers 5.24.0 does not build, or not small: whole models of them are in ``test_reader`` and
``test_older``."""


def shape_of(config: dict[str, Any]) -> ModelShape:
    return reader.to_shape(config, name="m", file="config.json")


@pytest.mark.parametrize("kind", sorted({row["config"]["model_type"] for row in SMALL}))
def test_a_dialect_counts_what_its_own_code_stores(kind: str) -> None:
    for row in SMALL:
        if row["config"]["model_type"] == kind:
            assert count_parameters(shape_of(row["config"])).total == row["num_parameters"], row["config"]


def test_every_dialect_is_compared_with_its_code_or_with_published_models() -> None:
    assert {row["config"]["model_type"] for row in SMALL} | WITHOUT_A_SMALL_ONE == set(DIALECTS)


def config(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind, "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128, "head_dim": 16, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "bounded"),
    [
        (config("gemma2"), {0, 2, 4}),
        (config("gemma3_text"), {0, 1, 2, 3, 4}),
        (config("gemma3_text", sliding_window_pattern=2), {0, 2, 4}),
        (config("olmo3"), {0, 1, 2, 4, 5}),
        (config("cohere2", sliding_window_pattern=3), {0, 1, 3, 4}),
        (config("exaone4", sliding_window_pattern="LLG"), {0, 1, 3, 4}),
        (config("mistral"), {0, 1, 2, 3, 4, 5}),
        (config("mistral", sliding_window=None), set()),
        (config("phi3"), set()),
        (config("qwen2", use_sliding_window=True, sliding_window=32, max_window_layers=4), {4, 5}),
        (config("qwen2", use_sliding_window=False, sliding_window=32, max_window_layers=4), set()),
        (config("gpt_oss", num_local_experts=4, num_experts_per_tok=2), {0, 2, 4}),
        (config("gemma2", layer_types=["full_attention"] * 5 + ["sliding_attention"]), {5}),
    ],
)
def test_windows_bound_the_layers_that_the_architecture_says(told: dict[str, Any], bounded: set[int]) -> None:
    kinds = layer_kinds(shape_of(told))
    assert {number for number, kind in enumerate(kinds) if kind.window_tokens} == bounded


@pytest.mark.parametrize(
    ("told", "sparse"),
    [
        (config("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8), {0, 1, 2, 3, 4, 5}),
        (
            config(
                "qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, decoder_sparse_step=2,
                mlp_only_layers=[3],
            ),
            {1, 5},
        ),
        (
            config(
                "llama4_text", intermediate_size_mlp=128, num_local_experts=4, num_experts_per_tok=1,
                interleave_moe_layer_step=2,
            ),
            {1, 3, 5},
        ),
        (config("deepseek", n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, n_shared_experts=1,
                first_k_dense_replace=1, moe_layer_freq=2), {2, 4}),
        (config("ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=8, moe_layer_start_index=2,
                moe_layer_end_index=-1), {2, 3, 4, 5}),
    ],
)  # fmt: skip
def test_experts_are_in_the_layers_that_the_file_says(told: dict[str, Any], sparse: set[int]) -> None:
    kinds = layer_kinds(shape_of(told))
    assert {number for number, kind in enumerate(kinds) if kind.is_moe} == sparse


def test_a_mixture_with_no_layer_of_experts_is_dense() -> None:
    told = config(
        "qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, mlp_only_layers=[0, 1, 2, 3, 4, 5]
    )
    assert shape_of(told).experts is None


def test_latent_attention_takes_no_size_from_the_number_of_key_heads() -> None:
    told = config(
        "deepseek_v3", kv_lora_rank=24, q_lora_rank=None, qk_nope_head_dim=12, qk_rope_head_dim=4, v_head_dim=8,
        moe_intermediate_size=8, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
    )  # fmt: skip
    shape = shape_of(told)
    assert (shape.head_size, shape.num_kv_heads, shape.value_head_size) == (16, 4, 8)
    assert shape == shape_of({**told, "num_key_value_heads": 1})


@pytest.mark.parametrize(
    ("told", "path"),
    [
        (config("gemma2", layer_types=["full_attention"]), "layer_types"),
        (config("gemma2", layer_types=["linear_attention"] * 6), "layer_types"),
        (config("gemma2", sliding_window=None, layer_types=["sliding_attention"] * 6), "sliding_window"),
        (config("qwen2", use_sliding_window=False, layer_types=["sliding_attention"] * 6), "layer_types"),
        (config("exaone4", sliding_window_pattern="LX"), "sliding_window_pattern"),
        (config("ernie4_5", use_bias=True), "use_bias"),
        (config("deepseek_v3", qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=4), "kv_lora_rank"),
        (config("mllama_text_model", tie_word_embeddings=True), "tie_word_embeddings"),
        (config("llama4_text", num_local_experts=4, num_experts_per_tok=1, no_rope_layers=[1]), "no_rope_layers"),
        (
            {"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 128,
             "attention_types": [[["global"], 10**12]]},
            "attention_types",
        ),
        (
            {"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 128,
             "attn_config": {"qk_ln": True}},
            "attn_config.qk_ln",
        ),
    ],
)  # fmt: skip
def test_what_a_dialect_cannot_say_is_refused_by_its_key(told: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        shape_of(told)
    assert caught.value.path == path
