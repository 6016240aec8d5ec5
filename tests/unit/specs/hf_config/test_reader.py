"""Hugging Face configs are placed key by key, and what cannot be placed is named, never guessed.

Configs and totals are facts from the models' public ``config.json`` and weight files on huggingface.co.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.workload import ModelShape, Positions
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.specs import presets
from airflow_llmsched.specs.hf_config import reader
from airflow_llmsched.specs.hf_config.dialects import DIALECTS
from airflow_llmsched.specs.hf_config.multimodal import MULTIMODAL
from tests.support.specs import steady


def sizes(  # noqa: PLR0917  # a row of a table
    kind: str, hidden: int, layers: int, heads: int, kv: int | None, ffn: int, vocab: int, **more: Any
) -> dict[str, Any]:
    config = {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        **more,
    }
    return config if kv is None else {**config, "num_key_value_heads": kv}


LLAMA31_8B = sizes("llama", 4096, 32, 32, 8, 14336, 128256, tie_word_embeddings=False)
MIXTRAL = sizes("mixtral", 4096, 32, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2)
QWEN3_30B = sizes(
    "qwen3_moe", 2048, 48, 32, 4, 6144, 151936, head_dim=128, moe_intermediate_size=768, num_experts_per_tok=8,
    decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True, tie_word_embeddings=False,
)  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}

GOLDEN = Path(__file__).parents[3] / "golden"
TOTALS: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-2-7b": (sizes("llama", 4096, 32, 32, 32, 11008, 32000), 6_738_415_616),
    "Llama-2-7b, an older copy": (sizes("llama", 4096, 32, 32, None, 11008, 32000), 6_738_415_616),
    "Llama-3.1-8B": (LLAMA31_8B, 8_030_261_248),
    "Mistral-7B-v0.1": (sizes("mistral", 4096, 32, 32, 8, 14336, 32000, sliding_window=4096), 7_241_732_096),
    "Mistral-7B-v0.3": (sizes("mistral", 4096, 32, 32, 8, 14336, 32768, sliding_window=None), 7_248_023_552),
    "Mixtral-8x7B": (MIXTRAL, 46_702_792_704),
    "Qwen2.5-7B": (sizes("qwen2", 3584, 28, 28, 4, 18944, 152064, use_sliding_window=False), 7_615_616_512),
    "Qwen3-4B": (
        sizes("qwen3", 2560, 36, 32, 8, 9728, 151936, head_dim=128, tie_word_embeddings=True, attention_bias=False),
        4_022_468_096,
    ),
    "Qwen3-30B-A3B": ({**QWEN3_30B, "num_experts": 128}, 30_532_122_624),
    "Qwen3-30B-A3B, saved again by a later version": ({**QWEN3_30B, "num_local_experts": 128}, 30_532_122_624),
    "gemma-7b": (sizes("gemma", 3072, 28, 16, 16, 24576, 256000, head_dim=256), 8_537_680_896),
    "gemma-2b": (sizes("gemma", 2048, 18, 8, 1, 16384, 256000, head_dim=256), 2_506_172_416),
    "Yi-6B, its first file": (sizes("Yi", 4096, 32, 32, 4, 11008, 64000), 6_061_035_520),
    "stablelm-3b-4e1t, its first file": (
        sizes("stablelm_epoch", 2560, 32, 32, 32, 6912, 50304, rope_pct=0.25, norm_eps=1e-5), 2_795_443_200
    ),
    "Phi-3-mini": (sizes("phi3", 3072, 32, 32, 32, 8192, 32064, tie_word_embeddings=False), 3_821_079_552),
    "gpt-neox-20b": (sizes("gpt_neox", 6144, 44, 64, None, 24576, 50432, tie_word_embeddings=False), 20_554_567_680),
    "granite-3.0-1b-a400m": (
        sizes(
            "granitemoe", 1024, 24, 16, 8, 512, 49155,
            num_local_experts=32, num_experts_per_tok=8, tie_word_embeddings=True,
        ),
        1_334_628_352,
    ),
    "OLMo-1B": (sizes("olmo", 2048, 16, 16, 16, 8192, 50304, tie_word_embeddings=True), 1_176_764_416),
    "OLMo-2-7B": (sizes("olmo2", 4096, 32, 32, 32, 11008, 100352, tie_word_embeddings=False), 7_298_617_344),
    "gpt2": (GPT2, 124_439_808),
}  # fmt: skip


PUBLIC: dict[str, dict[str, Any]] = {
    row["model"]: row for row in json.loads((GOLDEN / "hf_public_models.json").read_text())
}
"""Models of huggingface.co, typed by their config.json. Totals are what transformers 5.24.0 stores for each on
PyTorch's meta device (2026-11-30), tied tensors once; for the six that it does not build, sizes as published."""


def shape_of(config: dict[str, Any]) -> ModelShape:
    return reader.to_shape(config, name="m", file="config.json")


def refusal(config: dict[str, Any]) -> SpecError:
    with pytest.raises(SpecError) as caught:
        shape_of(config)
    assert caught.value.file == "config.json"
    return caught.value


@pytest.mark.parametrize("name", TOTALS)
def test_a_public_config_has_exactly_the_published_parameters(name: str) -> None:
    config, total = TOTALS[name]
    assert count_parameters(shape_of(config)).total == total


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_model_has_exactly_the_parameters_that_its_files_store(name: str) -> None:
    assert count_parameters(shape_of(PUBLIC[name]["config"])).total == PUBLIC[name]["num_parameters"]


@pytest.mark.parametrize(
    ("name", "billion"),
    [
        ("Qwen/Qwen1.5-MoE-A2.7B", 2.7),
        ("deepseek-ai/DeepSeek-V2", 21.4),
        ("moonshotai/Kimi-K2-Instruct", 32.9),
        ("databricks/dbrx-base", 36.5),
        ("meta-llama/Llama-4-Scout-17B-16E", 17.2),
        ("Qwen/Qwen3-235B-A22B", 22.2),
    ],
)
def test_active_parameters_of_public_mixtures_are_what_their_names_and_cards_say(name: str, billion: float) -> None:
    assert round(count_parameters(shape_of(PUBLIC[name]["config"])).active / 1e9, 1) == billion


def test_how_weights_are_quantised_changes_nothing() -> None:
    config = PUBLIC["deepseek-ai/DeepSeek-V3"]["config"]
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    quantised = {**config, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert shape_of(plain) == shape_of(quantised)


@pytest.mark.parametrize(
    ("name", "active"),
    [("Mixtral-8x7B", 12_879_925_248), ("Qwen3-30B-A3B", 3_353_032_704), ("granite-3.0-1b-a400m", 428_658_688)],
)
def test_a_mixture_of_experts_has_the_published_active_parameters(name: str, active: int) -> None:
    assert count_parameters(shape_of(TOTALS[name][0])).active == active


def test_a_config_and_its_preset_are_the_same_model() -> None:
    for preset, config in (("llama-3.1-8b", LLAMA31_8B), ("mixtral-8x7b", MIXTRAL)):
        assert reader.to_shape(config, name=preset, file="f") == presets.get(preset).shape


def test_tied_embeddings_default_by_architecture() -> None:
    assert not shape_of(LLAMA31_8B).tied_embeddings
    assert shape_of(GPT2).tied_embeddings
    assert shape_of(sizes("gemma", 64, 2, 4, 4, 128, 300)).tied_embeddings


def test_a_key_left_out_takes_the_default_of_its_architecture_but_null_does_not() -> None:
    absent = sizes("mistral", 4096, 2, 32, None, 14336, 32000)
    assert (shape_of(absent).num_kv_heads, shape_of(absent).attention_window_tokens) == (8, 4096)
    null = {**absent, "num_key_value_heads": None, "sliding_window": None, "head_dim": None}
    assert (shape_of(null).num_kv_heads, shape_of(null).attention_window_tokens, shape_of(null).head_size) == (
        32,
        None,
        128,
    )
    assert shape_of(sizes("qwen3", 2560, 2, 32, 8, 9728, 1000)).head_size == 128
    assert shape_of(sizes("llama", 2560, 2, 32, 8, 9728, 1000)).head_size == 80


def test_gpt2_reads_its_own_key_names() -> None:
    shape = shape_of({**GPT2, "n_inner": None})
    assert (shape.positions, shape.max_positions, shape.ffn_hidden_size) == (Positions.LEARNED, 1024, 3072)
    assert shape_of({**GPT2, "n_inner": 5}).ffn_hidden_size == 5


def test_two_spellings_of_one_key_must_agree() -> None:
    assert shape_of({**QWEN3_30B, "num_experts": 128, "num_local_experts": 128}).experts is not None
    error = refusal({**QWEN3_30B, "num_experts": 128, "num_local_experts": 64})
    assert (error.path, error.value) == ("num_local_experts", 64)


def test_attention_biases_are_read_where_the_architecture_has_a_switch() -> None:
    biased = shape_of({**LLAMA31_8B, "attention_bias": True, "mlp_bias": True})
    assert biased.attention_qkv_bias
    assert biased.attention_out_bias
    assert biased.mlp_bias
    qwen2 = shape_of(TOTALS["Qwen2.5-7B"][0])
    assert (qwen2.attention_qkv_bias, qwen2.attention_out_bias) == (True, False)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("jamba", {"attn_layer_period": 8, "mamba_d_state": 16}),
        ("mamba2", {"state_size": 128}),
        ("t5", {"d_kv": 64, "relative_attention_num_buckets": 32}),
    ],
)
def test_an_unknown_architecture_is_refused_with_the_keys_it_leaves_unplaced(kind: str, keys: dict[str, int]) -> None:
    error = refusal({"model_type": kind, "rope_theta": 1e4, **keys})
    assert (error.path, error.value) == ("model_type", kind)
    for key in keys:
        assert repr(key) in str(error)
    assert "rope_theta" not in str(error)


def test_a_structural_key_without_a_place_is_named() -> None:
    error = refusal({**LLAMA31_8B, "kv_lora_rank": 512, "num_nextn_predict_layers": 1})
    assert "'kv_lora_rank', 'num_nextn_predict_layers'" in str(error)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({**QWEN3_30B, "num_experts": 128, "mlp_only_layers": [48]}, "mlp_only_layers"),
        ({**QWEN3_30B, "num_experts": 128, "decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({**TOTALS["Qwen2.5-7B"][0], "use_sliding_window": 1}, "use_sliding_window"),
        ({**LLAMA31_8B, "num_hidden_layers": 5000}, "num_hidden_layers"),
        ({**TOTALS["Qwen2.5-7B"][0], "layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention"),
        (QWEN3_30B, "num_experts"),
        ({**LLAMA31_8B, "hidden_size": None}, "hidden_size"),
        ({**LLAMA31_8B, "intermediate_size": None}, "intermediate_size"),
        ({**LLAMA31_8B, "num_attention_heads": 3}, "num_attention_heads"),
        ({**LLAMA31_8B, "num_key_value_heads": 7}, "num_key_value_heads"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({**LLAMA31_8B, "hidden_size": "4096"}, "hidden_size"),
        ({**LLAMA31_8B, "hidden_size": True}, "hidden_size"),
        ({**LLAMA31_8B, "num_hidden_layers": -1}, "num_hidden_layers"),
        ({**LLAMA31_8B, "tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({}, "model_type"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_key(config: dict[str, Any], path: str) -> None:
    assert refusal(config).path == path


def test_a_list_of_layers_that_are_all_alike_is_fine() -> None:
    config = {**TOTALS["Qwen2.5-7B"][0], "layer_types": ["full_attention"] * 28}
    assert shape_of(config) == shape_of(TOTALS["Qwen2.5-7B"][0])


def test_a_file_is_read_and_named_after_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({**LLAMA31_8B, "rope_scaling": {"factor": 8.0}, "_name_or_path": "x"})
    )
    shape = reader.read(folder / "config.json")
    assert (shape.name, shape.num_layers) == ("Llama-3.1-8B", 32)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not valid JSON"),
        (b"[1]", "one JSON object"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 200_000, "not valid JSON"),
        (b" " * (2**20 + 1), "larger than"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(SpecError, match=says) as caught:
        reader.read(tmp_path / "config.json")
    assert caught.value.file == str(tmp_path / "config.json")


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(SpecError, match="cannot be read"):
            reader.read(path)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2**40)
    | st.floats()
    | st.text(max_size=4)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=1)
)


BASES = [row["config"] for row in PUBLIC.values()] + [config for config, _ in TOTALS.values()]


@steady
@given(st.sampled_from(BASES), st.data())
def test_a_mutated_config_is_read_or_refused_as_a_spec_error(base: dict[str, Any], data: st.DataObject) -> None:
    changes = data.draw(st.dictionaries(st.sampled_from([*base, "extra"]), VALUES, max_size=3))
    try:
        shape = shape_of({**base, **changes})
    except SpecError:
        return
    assert count_parameters(shape).total > 0


def test_public_models_are_of_most_architectures() -> None:
    seen = {row["config"]["model_type"] for row in PUBLIC.values()}
    assert set(MULTIMODAL) <= seen
    assert len(seen & set(DIALECTS)) > 50


def test_the_page_of_the_docs_lists_the_architectures_that_are_read(checkout: Path) -> None:
    page = (checkout / "docs" / "reference" / "models.md").read_text()
    table = page[page.index("| architectures |") : page.index("Not readable")]
    listed = re.findall(r"`([A-Za-z0-9_-]+)`", table.split("|---|---|", 1)[1])
    assert sorted(listed) == sorted({*DIALECTS, *MULTIMODAL})
