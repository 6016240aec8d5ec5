"""Models whose code transformers does not have: totals that agree with the published sizes."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.domain.workload import Positions
from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.specs.hf_config import reader

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Qwen-7B": (
        {"model_type": "qwen", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "intermediate_size": 22016, "kv_channels": 128, "vocab_size": 151936, "no_bias": True,
         "tie_word_embeddings": False},
        7_721_324_544,
    ),
    "chatglm3-6b": (
        {"model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "num_attention_heads": 32,
         "ffn_hidden_size": 13696, "kv_channels": 128, "padded_vocab_size": 65024, "multi_query_attention": True,
         "multi_query_group_num": 2, "add_bias_linear": False, "add_qkv_bias": True, "rmsnorm": True,
         "post_layer_norm": True},
        6_243_584_000,
    ),
    "phi-2, its first file": (
        {"model_type": "phi-msft", "n_embd": 2560, "n_layer": 32, "n_head": 32, "n_head_kv": None, "n_inner": None,
         "n_positions": 2048, "rotary_dim": 32, "vocab_size": 51200, "img_processor": None, "flash_attn": False},
        2_779_683_840,
    ),
    "falcon-7b, its first file": (
        {"model_type": "RefinedWebModel", "hidden_size": 4544, "n_layer": 32, "n_head": 71, "vocab_size": 65024,
         "multi_query": True, "parallel_attn": True, "bias": False, "alibi": False},
        6_921_720_704,
    ),
    "falcon-40b, its first file": (
        {"model_type": "RefinedWeb", "hidden_size": 8192, "n_layer": 60, "n_head": 128, "n_head_kv": 8,
         "vocab_size": 65024, "parallel_attn": True, "bias": False, "alibi": False},
        41_303_293_952,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_with_code_of_its_own_has_exactly_the_published_parameters(name: str) -> None:
    config, total = PUBLISHED[name]
    assert count_parameters(reader.to_shape(config, name=name, file="f")).total == total


def test_the_first_internlm_is_a_llama_with_four_biases_in_attention() -> None:
    llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
             "intermediate_size": 11008, "vocab_size": 103168}  # fmt: skip
    plain, biased = (
        count_parameters(reader.to_shape({**llama, "model_type": kind}, name="m", file="f")).total
        for kind in ("llama", "internlm")
    )
    assert biased - plain == 32 * 4 * 4096


def falcon(**more: Any) -> dict[str, Any]:
    return {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "vocab_size": 128, **more}  # fmt: skip


def test_the_three_decoders_of_falcon_differ_in_key_heads_norms_and_positions() -> None:
    seven = reader.to_shape(falcon(multi_query=True, parallel_attn=True), name="7b", file="f")
    forty = reader.to_shape(falcon(new_decoder_architecture=True, num_kv_heads=2), name="40b", file="f")
    old = reader.to_shape(falcon(multi_query=False, parallel_attn=False, alibi=True, bias=True), name="rw", file="f")
    assert [(each.num_kv_heads, each.num_norms_per_layer) for each in (seven, forty, old)] == [(1, 1), (2, 2), (4, 2)]
    assert [each.positions for each in (seven, forty, old)] == [Positions.ROTARY, Positions.ROTARY, Positions.ALIBI]
    assert [each.parallel_block for each in (seven, forty, old)] == [True, True, False]


def test_opt_has_two_more_positions_than_it_says_and_may_project_its_embedding() -> None:
    config = {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 96,
              "vocab_size": 128, "max_position_embeddings": 32, "word_embed_proj_dim": 16}  # fmt: skip
    shape = reader.to_shape(config, name="opt", file="f")
    assert (shape.max_positions, shape.embedding_size, shape.final_norm) == (34, 16, True)
    assert not reader.to_shape({**config, "do_layer_norm_before": False}, name="opt", file="f").final_norm
