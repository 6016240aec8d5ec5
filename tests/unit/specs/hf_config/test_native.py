"""Shapes of ``params.json``: the same models as in Hugging Face's words."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.specs.hf_config import reader
from airflow_llmsched.specs.hf_config.native import is_native

MISTRAL = {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
           "norm_eps": 1e-5, "vocab_size": 32000}  # fmt: skip
MIXTRAL = {**MISTRAL, "moe": {"num_experts_per_tok": 2, "num_experts": 8}}
LLAMA31 = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "multiple_of": 1024,
           "ffn_dim_multiplier": 1.3, "norm_eps": 1e-5, "rope_theta": 500000.0, "use_scaled_rope": True}  # fmt: skip
LLAMA2_7B = {"dim": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 32000, "multiple_of": 256, "norm_eps": 1e-5}


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (MISTRAL, 7_241_732_096),
        ({**MISTRAL, "sliding_window": 4096, "model_type": "transformer"}, 7_241_732_096),
        (MIXTRAL, 46_702_792_704),
        (LLAMA31, 8_030_261_248),
        (LLAMA2_7B, 6_738_415_616),
    ],
)
def test_a_native_file_has_the_parameters_of_the_model(config: dict[str, Any], total: int) -> None:
    assert count_parameters(reader.to_shape(config, name="m", file="params.json")).total == total


def test_a_window_and_tied_embeddings_are_read() -> None:
    shape = reader.to_shape({**MISTRAL, "sliding_window": 4096, "tied_embeddings": True}, name="m", file="f")
    assert (shape.attention_window_tokens, shape.tied_embeddings) == (4096, True)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"vocab_size": -1}, "vocab_size"),
        ({"moe": {"num_experts": 8}}, "moe.num_experts_per_tok"),
        ({"moe": {"num_experts": 8, "num_experts_per_tok": 2, "expert_tp": 2}}, "moe.expert_tp"),
        ({"vision_encoder": {"hidden_size": 1024}}, "vision_encoder"),
        ({"use_biases": True}, "use_biases"),
        ({"hidden_dim": None}, "hidden_dim"),
    ],
)
def test_what_is_unknown_of_a_native_file_is_named(change: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        reader.to_shape({**MISTRAL, **change}, name="m", file="f")
    assert caught.value.path == path


@pytest.mark.parametrize("factor", ["1.3", True, 0, -1.0, 1e9])
def test_a_factor_that_is_no_number_of_its_size_is_refused(factor: object) -> None:
    with pytest.raises(SpecError, match="ffn_dim_multiplier"):
        reader.to_shape({**LLAMA31, "ffn_dim_multiplier": factor}, name="m", file="f")


def test_a_file_with_an_architecture_is_not_native() -> None:
    assert is_native(MISTRAL)
    assert not is_native({**MISTRAL, "model_type": "llama"})
    assert not is_native({"dim": 4096})
    assert not is_native({**MISTRAL, "model_type": []})
