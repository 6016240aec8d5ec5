"""Facts: exact totals of public checkpoints (shapes from config.json, totals as their authors published)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.workload import EncoderShape, ExpertShape, LoraTarget, ModelShape, Positions
from airflow_llmsched.planner.perf.layers import LayerKind, layer_kinds
from airflow_llmsched.planner.perf.parameters import (
    count_lora_parameters,
    count_parameters,
    count_trained_parameters,
    layer_matrices,
    layer_parameters,
)
from tests.support.models import (
    DEEPSEEK_V3,
    GEMMA2_9B,
    GPT2,
    GPT_NEOX_20B,
    GPT_OSS_20B,
    GRANITE_1B_A400M,
    LLAMA2_7B,
    LLAMA4_MAVERICK,
    LLAMA31_8B,
    MISTRAL_7B,
    MIXTRAL_8X7B,
    PHI3_MINI,
    QWEN3_4B,
    QWEN3_30B_A3B,
    QWEN25_7B,
)


@pytest.mark.parametrize(
    ("shape", "total"),
    [
        (LLAMA2_7B, 6_738_415_616),
        (LLAMA31_8B, 8_030_261_248),
        (MISTRAL_7B, 7_241_732_096),
        (MIXTRAL_8X7B, 46_702_792_704),
        (QWEN25_7B, 7_615_616_512),
        (QWEN3_4B, 4_022_468_096),
        (QWEN3_30B_A3B, 30_532_122_624),
        (PHI3_MINI, 3_821_079_552),
        (GPT_NEOX_20B, 20_554_567_680),
        (GRANITE_1B_A400M, 1_334_628_352),
        (GPT2, 124_439_808),
        (GEMMA2_9B, 9_241_705_984),
        (GPT_OSS_20B, 20_914_757_184),
    ],
    ids=lambda value: value.name if isinstance(value, ModelShape) else None,
)
def test_the_total_of_a_public_checkpoint_is_exact(shape: ModelShape, total: int) -> None:
    assert count_parameters(shape).total == total


@pytest.mark.parametrize(
    ("shape", "active"),
    [
        (MIXTRAL_8X7B, 12_879_925_248),
        (QWEN3_30B_A3B, 3_353_032_704),
        (GRANITE_1B_A400M, 428_658_688),
        (GPT_OSS_20B, 4_187_440_704),
    ],
    ids=lambda value: value.name if isinstance(value, ModelShape) else None,
)
def test_active_parameters_of_a_mixture_of_experts_are_exact(shape: ModelShape, active: int) -> None:
    assert count_parameters(shape).active == active


def test_both_conventions_of_non_embedding_and_active_are_named() -> None:
    assert round(count_parameters(QWEN25_7B).non_embedding / 1e9, 2) == 6.53
    assert round(count_parameters(QWEN3_4B).non_embedding / 1e9, 1) == 3.6
    qwen = count_parameters(QWEN3_30B_A3B)
    assert qwen.active - qwen.active_without_input_embedding == 151_936 * 2048
    tied = count_parameters(QWEN3_4B)
    assert tied.active_without_input_embedding == tied.total


def test_shared_experts_and_dense_first_layers_are_counted_apart_from_routed_ones() -> None:
    experts = ExpertShape(num_routed=8, num_active=2, expert_hidden_size=16, num_shared=1, num_dense_layers_first=1)
    shape = ModelShape(
        name="moe", num_layers=3, hidden_size=32, num_heads=4, num_kv_heads=4, head_size=8, ffn_hidden_size=64,
        vocab_size=100, experts=experts,
    )  # fmt: skip
    count = count_parameters(shape)
    assert count.mlp == 3 * 32 * 64 + 2 * (3 * 32 * 16)
    assert count.routed_experts == 2 * 8 * (3 * 32 * 16)
    assert count.active_routed_experts == 2 * 2 * (3 * 32 * 16)
    assert count.router == 2 * 32 * 8


def test_the_biases_that_balance_deepseek_v3_are_stored_and_not_trained() -> None:
    """transformers 5.24.0 keeps them as buffers: 671,026,404,352 parameters and 58 layers of 256 biases."""
    count = count_parameters(DEEPSEEK_V3)
    assert count.total == 671_026_404_352 + 58 * 256
    assert count.trained == 671_026_404_352
    assert round(count.active / 1e9, 1) == 37.6


def test_multi_token_prediction_is_named_apart_from_the_published_total() -> None:
    """DeepSeek-V3's README_WEIGHTS.md: 11.5B besides the shared embedding and head, and the projection to h."""
    count = count_parameters(DEEPSEEK_V3)
    assert round((count.predict_ahead - 2 * 7168**2) / 1e9, 1) == 11.5
    assert count.total_with_predict_ahead == count.total + count.predict_ahead


def test_llama_4_has_experts_in_every_other_layer_and_a_shared_one_beside_them() -> None:
    """Its files hold 402B (huggingface.co), of which the encoder of images is 0.9B; 17B are active."""
    count = count_parameters(LLAMA4_MAVERICK)
    assert round(count.total / 1e9, 1) == 400.7
    assert round(count.active / 1e9) == 17


def test_projections_to_a_latent_are_on_every_tensor_parallel_rank() -> None:
    layer = layer_parameters(DEEPSEEK_V3, LayerKind())
    assert layer.attention_replicated == 7168 * (1536 + 512 + 64)
    assert layer.attention_split == 1536 * 128 * 192 + 512 * 128 * (128 + 128) + 128 * 128 * 7168


def test_cross_attention_has_four_matrices_two_norms_of_a_head_and_two_gates() -> None:
    """Llama 3.2 Vision: it takes the place of attention to the text."""
    crossed = replace(LLAMA31_8B, cross_attention_layers=(3,))
    layer = layer_parameters(crossed, layer_kinds(crossed)[3])
    assert layer.attention == 2 * 4096 * 4096 + 2 * 1024 * 4096 + 2
    assert layer.norms == 2 * 4096 + 2 * 128


def test_an_embedding_of_another_width_has_projections_both_ways() -> None:
    narrow = replace(GPT2, embedding_size=128)
    assert count_parameters(narrow).token_embedding == 50257 * 128
    assert count_parameters(narrow).output_head == 2 * 128 * 768


def test_biases_of_heads_and_routers_are_counted_where_they_are() -> None:
    assert count_parameters(replace(GPT2, head_bias=True)).output_head == 50257
    router = count_parameters(GPT_OSS_20B).router
    assert router == 24 * 32 * (2880 + 1)


def test_lora_counts_two_factors_for_every_matrix() -> None:
    h, f = 4096, 11008
    expected = 32 * 8 * (4 * (h + h) + 3 * (h + f))
    assert count_lora_parameters(LLAMA2_7B, rank=8) == expected


def test_lora_adapts_the_layers_that_it_is_told_to() -> None:
    """PEFT 0.18 on Llama-2-7b, r=8: q_proj and v_proj have 4,194,304 trainable parameters."""
    assert count_lora_parameters(LLAMA2_7B, rank=8, targets=[LoraTarget.QUERY, LoraTarget.VALUE]) == 4_194_304
    head = count_lora_parameters(LLAMA2_7B, rank=8, targets=[LoraTarget.OUTPUT_HEAD])
    assert head == 8 * (32000 + 4096)


def test_adapters_of_a_mixture_may_leave_its_routed_experts_out() -> None:
    everywhere = count_lora_parameters(MIXTRAL_8X7B, rank=4)
    experts = count_lora_parameters(MIXTRAL_8X7B, rank=4, targets=[LoraTarget.EXPERTS])
    assert experts == 32 * 8 * 4 * 3 * (4096 + 14336)
    assert everywhere - experts == 32 * 4 * (2 * (4096 + 4096) + 2 * (4096 + 1024))


def test_every_matrix_of_a_layer_has_a_target() -> None:
    for shape in (DEEPSEEK_V3, GPT_OSS_20B, GPT2, LLAMA4_MAVERICK):
        assert count_lora_parameters(shape, rank=1) == sum(
            matrix.number * (matrix.num_rows + matrix.num_columns)
            for kind in layer_kinds(shape)
            for matrix in layer_matrices(shape, kind)
        )


def test_what_is_trained_is_all_but_what_a_rule_sets_or_keeps() -> None:
    assert count_trained_parameters(LLAMA2_7B) == count_parameters(LLAMA2_7B).total
    count = count_parameters(DEEPSEEK_V3)
    assert count_trained_parameters(DEEPSEEK_V3) == count.total_with_predict_ahead - 59 * 256
    encoder = EncoderShape(
        num_layers=2, hidden_size=8, num_layer_parameters=100, num_other_parameters=10, num_projector_parameters=5
    )
    seeing = replace(LLAMA2_7B, encoder=encoder)
    assert count_trained_parameters(seeing) - count_trained_parameters(seeing, freezes_encoder=True) == 215


def test_norms_without_weights_and_full_width_qk_norms_are_counted_as_said() -> None:
    bare = replace(LLAMA2_7B, norm_has_weight=False)
    assert count_parameters(bare).norms == 0
    wide = replace(LLAMA31_8B, qk_norm=True, qk_norm_full_width=True)
    assert count_parameters(wide).norms - count_parameters(LLAMA31_8B).norms == 32 * (32 + 8) * 128


@st.composite
def any_shape(draw: st.DrawFn) -> ModelShape:
    size = st.integers(1, 6)
    flag = st.booleans()
    kv_heads, group, head = draw(size), draw(size), draw(size)
    experts = ExpertShape(
        num_routed=draw(st.integers(1, 4)),
        num_active=1,
        expert_hidden_size=draw(size),
        num_shared=draw(st.integers(0, 2)),
    )
    return ModelShape(
        name="any", num_layers=draw(size), hidden_size=kv_heads * group * head, num_heads=kv_heads * group,
        num_kv_heads=kv_heads, head_size=head, ffn_hidden_size=draw(size), vocab_size=draw(size),
        max_positions=draw(size), positions=draw(st.sampled_from(Positions)),
        gated_mlp=draw(flag), tied_embeddings=draw(flag), norm_has_bias=draw(flag), attention_qkv_bias=draw(flag),
        attention_out_bias=draw(flag), mlp_bias=draw(flag), qk_norm=draw(flag),
        experts=experts if draw(flag) else None,
    )  # fmt: skip


@given(shape=any_shape())
def test_layers_and_embeddings_add_up_to_the_total(shape: ModelShape) -> None:
    count = count_parameters(shape)
    final_norm = shape.hidden_size * (2 if shape.norm_has_bias else 1)
    per_layer = layer_parameters(shape, LayerKind(is_moe=shape.experts is not None)).total
    assert count.total == count.embedding + shape.num_layers * per_layer + final_norm
    assert count.active <= count.total
