from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.workload import ModelShape
from airflow_llmsched.planner.perf.flops import flops_per_token, layer_flops, num_keys_per_token, part_flop
from airflow_llmsched.planner.perf.layers import LayerKind, distinct_kinds, layer_kinds
from airflow_llmsched.planner.perf.ops import Part
from airflow_llmsched.planner.perf.parameters import count_parameters
from tests.support.models import (
    DEEPSEEK_V3,
    GEMMA2_9B,
    GPT2,
    LLAMA2_7B,
    LLAMA4_MAVERICK,
    LLAMA31_8B,
    MIXTRAL_8X7B,
    megatron_gpt,
)

DEEPSEEK_V3_ALONE = replace(DEEPSEEK_V3, num_predict_ahead_layers=0)


@pytest.mark.parametrize(
    "shape",
    [LLAMA2_7B, LLAMA31_8B, MIXTRAL_8X7B, GEMMA2_9B, LLAMA4_MAVERICK, DEEPSEEK_V3_ALONE],
    ids=lambda shape: shape.name,
)
def test_without_scores_training_takes_six_operations_per_multiplied_parameter(shape: ModelShape) -> None:
    """Kaplan et al. 2020: 6 N. What is not multiplied: input embeddings and norms."""
    count = count_parameters(shape)
    multiplied = count.active - count.norms - count.correction_biases
    multiplied -= 0 if shape.tied_embeddings else count.token_embedding
    assert flops_per_token(shape, sequence_length_tokens=4096).training_without_scores_flop == 6 * multiplied


def test_scores_add_12_layers_times_hidden_times_sequence_to_training() -> None:
    """PaLM, appendix B: 12 L H Q T."""
    flops = flops_per_token(LLAMA2_7B, sequence_length_tokens=2048)
    assert flops.training_flop - flops.training_without_scores_flop == 12 * 32 * 4096 * 2048


def test_a_gpt_with_full_recomputation_takes_what_the_megatron_paper_says() -> None:
    """Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s / 6h + V / 16 l h), logits not recomputed."""
    h, layers, s, vocab = 12288, 96, 2048, 51200
    shape = megatron_gpt(name="175B", num_heads=96, hidden_size=h, num_layers=layers)
    flops = flops_per_token(shape, sequence_length_tokens=s)
    again_flop = sum(part_flop(shape, sequence_length_tokens=s).values())
    published = 96 * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert flops.training_flop + again_flop == pytest.approx(published, rel=1e-12)


@pytest.mark.parametrize("shape", [GPT2, GEMMA2_9B, MIXTRAL_8X7B, DEEPSEEK_V3_ALONE], ids=lambda shape: shape.name)
def test_the_parts_of_all_layers_are_the_forward_pass_without_logits(shape: ModelShape) -> None:
    flops, parts = flops_per_token(shape, sequence_length_tokens=1024), part_flop(shape, sequence_length_tokens=1024)
    assert sum(parts.values()) == flops.forward_flop - flops.logits_flop
    assert (parts[Part.CORE], parts[Part.MLP]) == (flops.scores_flop, flops.mlp_flop)
    assert parts[Part.QKV] + parts[Part.OUT] == flops.projections_flop


def test_the_layers_of_multi_token_prediction_have_parts_too() -> None:
    one, two = (part_flop(each, sequence_length_tokens=4096) for each in (DEEPSEEK_V3_ALONE, DEEPSEEK_V3))
    assert two[Part.OUT] == one[Part.OUT] * 62 // 61
    assert two[Part.ROUTING] == one[Part.ROUTING] * 59 // 58


def test_a_window_bounds_the_keys_that_a_token_attends_to() -> None:
    windowed = replace(LLAMA31_8B, attention_window_tokens=1024)
    [kind] = distinct_kinds(windowed)
    short = layer_flops(LLAMA31_8B, LayerKind(), sequence_length_tokens=1024)
    assert layer_flops(windowed, kind, sequence_length_tokens=8192) == short
    assert layer_flops(windowed, kind, sequence_length_tokens=512).scores_flop < short.scores_flop


def test_a_model_with_alternating_windows_sums_its_layers() -> None:
    flops = flops_per_token(GEMMA2_9B, sequence_length_tokens=8192)
    assert flops.scores_flop == 21 * 4 * 16 * 256 * 4096 + 21 * 4 * 16 * 256 * 8192


@given(sequence=st.integers(1, 300), window=st.none() | st.integers(1, 400))
def test_causal_keys_are_the_mean_of_what_each_token_sees(sequence: int, window: int | None) -> None:
    seen = [min(position + 1, window or sequence) for position in range(sequence)]
    mean = num_keys_per_token(LayerKind(window_tokens=window), sequence, causal=True)
    assert mean == pytest.approx(sum(seen) / sequence)


def test_causal_scores_are_about_half_of_those_that_mfu_counts() -> None:
    whole, causal = (flops_per_token(LLAMA31_8B, sequence_length_tokens=8192, causal=each) for each in (False, True))
    assert causal.scores_flop / whole.scores_flop == pytest.approx(0.5, rel=1e-3)
    assert causal.forward_without_scores_flop == whole.forward_without_scores_flop


def test_latent_attention_multiplies_keys_of_one_width_and_values_of_another() -> None:
    layer = layer_flops(DEEPSEEK_V3, LayerKind(), sequence_length_tokens=4096)
    assert layer.scores_flop == 2 * 128 * (192 + 128) * 4096


def test_predicting_ahead_takes_a_layer_a_projection_of_two_inputs_and_logits() -> None:
    alone, ahead = (flops_per_token(each, sequence_length_tokens=4096) for each in (DEEPSEEK_V3_ALONE, DEEPSEEK_V3))
    last = layer_flops(DEEPSEEK_V3, layer_kinds(DEEPSEEK_V3)[-1], sequence_length_tokens=4096)
    assert ahead.forward_flop - alone.forward_flop == last.forward_flop + 4 * 7168**2 + alone.logits_flop


def test_backward_is_twice_forward() -> None:
    flops = flops_per_token(LLAMA31_8B, sequence_length_tokens=8192)
    assert flops.backward_flop == 2 * flops.forward_flop
    assert flops.training_flop == 3 * flops.forward_flop
