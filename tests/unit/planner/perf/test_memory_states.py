"""Measured figures: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", fig 1."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, ParallelLayout
from airflow_llmsched.domain.software import Software
from airflow_llmsched.domain.workload import EncoderShape, ModelShape, OptimizerKind, OptimizerSpec, PrecisionSpec
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.memory_states import (
    RankParameters,
    expert_shards,
    optimizer_bytes_per_parameter,
    rank_parameters,
    state_terms,
    trained_parameters,
)
from airflow_llmsched.planner.perf.parameters import count_lora_parameters, count_parameters
from airflow_llmsched.planner.perf.stages import telling_stages
from airflow_llmsched.units import GIB
from tests.support.fleets import FULL_PRECISION, TINY, job
from tests.support.models import (
    DEEPSEEK_V3,
    GEMMA2_9B,
    GPT2,
    GPT_OSS_20B,
    LLAMA2_7B,
    LLAMA4_MAVERICK,
    LLAMA31_8B,
    MIXTRAL_8X7B,
    megatron_gpt,
)

STATES = ("weights", "compute_copies", "gradients", "optimizer")
FP16 = PrecisionSpec(compute=NumberFormat.FP16, parameters=NumberFormat.FP16)
MIXED = PrecisionSpec(compute=NumberFormat.BF16, parameters=NumberFormat.FP32)


def first_stage(one: TransformerJob, layout: ParallelLayout) -> dict[str, int]:
    table = LayoutTable.of([layout])
    terms = state_terms(one, table, next(telling_stages(one.model, table)))
    return {name: int(values[0]) for name, values in terms.items()}


def parameters_of(model: ModelShape, layout: ParallelLayout) -> RankParameters:
    table = LayoutTable.of([layout])
    return rank_parameters(model, table, next(telling_stages(model, table)))


@pytest.mark.parametrize(
    ("heads", "hidden", "layers", "pp", "measured_gib"),
    [
        (64, 6144, 48, 1, 45.5625),
        (96, 12288, 96, 8, 45.5625),
        (128, 20480, 105, 35, 31.640625),
        (160, 25600, 128, 64, 32.958984375),
    ],
)
def test_weights_and_optimizer_are_within_five_percent_of_the_measured_ones(
    heads: int, hidden: int, layers: int, pp: int, measured_gib: float
) -> None:
    """The published figures are those of the layers, so embeddings (18 bytes a parameter) are taken off."""
    model = megatron_gpt(name="paper", num_heads=heads, hidden_size=hidden, num_layers=layers)
    layout = ParallelLayout(dp=1, tp=8, pp=pp, num_micro_batches=4 * pp)
    terms = first_stage(job(model, sequence_length_tokens=2048, precision=FP16), layout)
    embeddings = 18 * (51200 // 8 + 2048) * hidden
    assert (sum(terms[name] for name in STATES) - embeddings) / GIB == pytest.approx(measured_gib, rel=0.05)


def test_one_rank_holds_the_whole_model_in_eighteen_bytes_a_parameter() -> None:
    """2 weights, 4 gradients, 4 master weights, 8 AdamW states."""
    terms = first_stage(job(LLAMA31_8B), ParallelLayout(dp=1))
    assert sum(terms[name] for name in STATES) == 18 * count_parameters(LLAMA31_8B).total
    assert terms["optimizer"] == 12 * count_parameters(LLAMA31_8B).total


@pytest.mark.parametrize(
    "model",
    [GPT2, GPT_OSS_20B, DEEPSEEK_V3, GEMMA2_9B, LLAMA4_MAVERICK,
     replace(GPT2, name="narrow-embedding", embedding_size=512, head_bias=True, embedding_norm=True)],
    ids=lambda model: model.name,
)  # fmt: skip
def test_one_rank_has_every_parameter_that_is_counted(model: ModelShape) -> None:
    """With embeddings of another width, and with blocks that predict further ahead, which totals leave out."""
    held = parameters_of(model, ParallelLayout(dp=1))
    count = count_parameters(model)
    assert held.total_C[0] == count.total_with_predict_ahead
    if not model.num_predict_ahead_layers:
        assert held.expert_C[0] == count.routed_experts


def test_blocks_that_predict_ahead_are_on_the_last_stage() -> None:
    table = LayoutTable.of([ParallelLayout(dp=1, pp=4)])

    def held_by_ends(model: ModelShape) -> tuple[int, int]:
        first, *_, last = (rank_parameters(model, table, stage) for stage in telling_stages(model, table))
        return int(first.total_C[0]), int(last.total_C[0])

    plain, ahead = (held_by_ends(replace(DEEPSEEK_V3, num_predict_ahead_layers=number)) for number in (0, 1))
    assert (ahead[0] - plain[0], ahead[1] - plain[1]) == (0, count_parameters(DEEPSEEK_V3).predict_ahead)


def test_full_precision_keeps_no_second_copy_of_the_weights() -> None:
    terms = first_stage(job(TINY, precision=FULL_PRECISION), ParallelLayout(dp=1))
    assert terms["optimizer"] == 8 * count_parameters(TINY).total
    assert terms["compute_copies"] == 0


def test_full_precision_weights_under_16_bit_products_are_cast() -> None:
    terms = first_stage(job(LLAMA2_7B, precision=MIXED), ParallelLayout(dp=1))
    assert terms["compute_copies"] == 2 * count_parameters(LLAMA2_7B).total


@pytest.mark.parametrize(("stored", "num_copies"), [(NumberFormat.BF16, 2), (NumberFormat.FP8, 1)])
def test_fp8_products_read_a_weight_as_it_is_and_transposed(stored: NumberFormat, num_copies: int) -> None:
    fp8 = PrecisionSpec(compute=NumberFormat.FP8, parameters=stored)
    terms = first_stage(job(LLAMA2_7B, precision=fp8), ParallelLayout(dp=1))
    count = count_parameters(LLAMA2_7B)
    assert terms["compute_copies"] == num_copies * (count.total - count.embedding - 4096)  # the last norm is an end too


def test_embeddings_stored_wide_are_cast_though_the_layers_multiply_in_fp8() -> None:
    fp8 = PrecisionSpec(compute=NumberFormat.FP8, parameters=NumberFormat.FP32)
    terms = first_stage(job(LLAMA2_7B, precision=fp8), ParallelLayout(dp=1))
    assert terms["compute_copies"] == 2 * count_parameters(LLAMA2_7B).total


@pytest.mark.parametrize(
    ("kind", "state", "stored", "num_bytes"),
    [
        (OptimizerKind.ADAMW, NumberFormat.FP32, NumberFormat.BF16, 12.0),
        (OptimizerKind.ADAMW, NumberFormat.BF16, NumberFormat.BF16, 4.0),
        (OptimizerKind.ADAMW, NumberFormat.FP8, NumberFormat.BF16, 2 * (1 + 4 / 256) + 4),
        (OptimizerKind.ADAMW, NumberFormat.FP32, NumberFormat.FP32, 8.0),
        (OptimizerKind.SGD_MOMENTUM, NumberFormat.FP32, NumberFormat.BF16, 8.0),
        (OptimizerKind.SGD, NumberFormat.FP32, NumberFormat.FP32, 0.0),
    ],
)
def test_each_optimizer_keeps_its_own_bytes_a_parameter(
    kind: OptimizerKind, state: NumberFormat, stored: NumberFormat, num_bytes: float
) -> None:
    one = job(
        GPT2, optimizer=OptimizerSpec(kind=kind, state_format=state), precision=PrecisionSpec(parameters=stored)
    )  # fmt: skip
    assert optimizer_bytes_per_parameter(one) == num_bytes


def test_lora_keeps_gradients_and_states_for_its_factors_only() -> None:
    terms = first_stage(job(LLAMA2_7B, lora_rank=16), ParallelLayout(dp=1))
    trained = count_lora_parameters(LLAMA2_7B, rank=16)
    assert terms["gradients"] == 4 * trained
    assert terms["optimizer"] == 12 * trained
    assert terms["weights"] == 2 * (count_parameters(LLAMA2_7B).total + trained)


def test_lora_shares_its_factors_out_over_the_stages_of_a_pipeline() -> None:
    layout = ParallelLayout(dp=1, pp=4)
    table, one = LayoutTable.of([layout]), job(LLAMA2_7B, lora_rank=16)
    first = next(iter(telling_stages(LLAMA2_7B, table)))
    trained = trained_parameters(one, table, first, parameters_of(LLAMA2_7B, layout))
    assert trained.total_C[0] == count_lora_parameters(LLAMA2_7B, rank=16) // 4


def test_an_encoder_that_keeps_its_weights_has_no_gradients_on_the_stage_that_holds_it() -> None:
    encoder = EncoderShape(
        num_layers=2, hidden_size=8, num_layer_parameters=100, num_other_parameters=10, num_projector_parameters=5
    )
    seeing = replace(LLAMA2_7B, encoder=encoder)
    table = LayoutTable.of([ParallelLayout(dp=1, pp=2)])
    frozen = [
        held.total_C[0] - trained_parameters(job(seeing, freezes_encoder=True), table, stage, held).total_C[0]
        for stage in telling_stages(seeing, table)
        for held in (rank_parameters(seeing, table, stage),)
    ]
    assert sorted(frozen) == [0, 215]


@pytest.mark.parametrize("model", [LLAMA31_8B, GPT2, MIXTRAL_8X7B], ids=lambda model: model.name)
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_the_stages_of_a_pipeline_hold_the_whole_model_between_them(model: ModelShape, pp: int) -> None:
    """With equal layers: first, last, and pp - 2 stages of layers alone. A tied head is kept on both ends."""
    table = LayoutTable.of([ParallelLayout(dp=1, pp=pp)])
    stages = [int(rank_parameters(model, table, stage).total_C[0]) for stage in telling_stages(model, table)]
    count = count_parameters(model)
    layers = count.total - count.embedding - model.hidden_size * (2 if model.norm_has_bias else 1)
    held = stages[0] if pp == 1 else stages[0] + stages[-1] + (pp - 2) * layers // pp
    copies = count.token_embedding if model.tied_embeddings and pp > 1 else 0
    assert held == count.total + copies


def test_expert_parallelism_shares_out_the_experts_and_nothing_else() -> None:
    spread, together = (parameters_of(MIXTRAL_8X7B, ParallelLayout(dp=8, ep=ep)) for ep in (8, 1))
    assert spread.dense_C[0] == together.dense_C[0]
    assert together.expert_C[0] == 8 * spread.expert_C[0] == count_parameters(MIXTRAL_8X7B).routed_experts


def test_experts_that_are_not_split_are_whole_beside_split_layers() -> None:
    split, whole = (parameters_of(MIXTRAL_8X7B, ParallelLayout(dp=1, tp=8, expert_tp=each)) for each in (None, 1))
    assert split.dense_C[0] == whole.dense_C[0]
    assert whole.expert_C[0] == 8 * split.expert_C[0]


@pytest.mark.parametrize(
    ("layout", "num_shards"),
    [
        (ParallelLayout(dp=8, ep=2), 4),
        (ParallelLayout(dp=8, ep=8), 1),
        (ParallelLayout(dp=2, tp=8, ep=4, expert_tp=1), 4),
        (ParallelLayout(dp=2, tp=8, ep=4), 1),
        (ParallelLayout(dp=16, ep=2, shard_size=8), 4),
    ],
)
def test_an_expert_is_sharded_over_the_ranks_that_have_it(layout: ParallelLayout, num_shards: int) -> None:
    assert expert_shards(LayoutTable.of([layout])).tolist() == [num_shards]


def test_a_shard_group_keeps_a_whole_copy() -> None:
    """HSDP over 8 of 64 replicas needs what full sharding over 8 needs."""
    hybrid = first_stage(job(LLAMA2_7B), ParallelLayout(dp=64, zero_stage=3, shard_size=8))
    assert hybrid == first_stage(job(LLAMA2_7B), ParallelLayout(dp=8, zero_stage=3))
    assert hybrid["weights"] > first_stage(job(LLAMA2_7B), ParallelLayout(dp=64, zero_stage=3))["weights"]


def test_full_sharding_gathers_both_ends_and_two_layers() -> None:
    """And has a buffer of the largest unit to gather into, one to reduce from in FP32, and a layer's gradients."""
    parameters = parameters_of(LLAMA31_8B, ParallelLayout(dp=8))
    ends, layer = int(parameters.ends_C[0]), int(parameters.layer_C[0])
    assert ends == 2 * 128256 * 4096 + 4096
    terms = first_stage(job(LLAMA31_8B, precision=MIXED), ParallelLayout(dp=8, zero_stage=3))
    assert terms["compute_copies"] == 0
    assert terms["sharding_buffers"] == 2 * (ends + 2 * layer) + 2 * ends + 4 * ends + 2 * layer


def test_a_compiler_that_plans_memory_gathers_into_place() -> None:
    """The larger of both ends and two layers, and one reduction."""
    parameters = parameters_of(LLAMA31_8B, ParallelLayout(dp=8))
    ends, layer = int(parameters.ends_C[0]), int(parameters.layer_C[0])
    one = job(LLAMA31_8B, precision=MIXED, software=Software(has_sharding_buffers=False))
    terms = first_stage(one, ParallelLayout(dp=8, zero_stage=3))
    assert terms["sharding_buffers"] == 2 * max(ends, 2 * layer) + 4 * max(ends, layer)


def test_weights_that_stay_gathered_are_whole_and_so_are_their_gradients() -> None:
    one = job(LLAMA31_8B, precision=MIXED, software=Software(keeps_gathered_weights=True))
    parameters = parameters_of(LLAMA31_8B, ParallelLayout(dp=8))
    whole, ends = int(parameters.total_C[0]), int(parameters.ends_C[0])
    terms = first_stage(one, ParallelLayout(dp=8, zero_stage=3))
    assert terms["sharding_buffers"] == 2 * (whole + ends) + 4 * whole + 4 * ends


@pytest.mark.parametrize(
    ("offload", "zero", "gone"),
    [
        (Offload.OPTIMIZER_HOST, 1, {"optimizer"}),
        (Offload.OPTIMIZER_NVME, 2, {"optimizer", "gradients"}),
        (Offload.PARAMETERS_HOST, 3, {"optimizer", "gradients", "weights"}),
        (Offload.PARAMETERS_NVME, 3, {"optimizer", "gradients", "weights"}),
        (Offload.ACTIVATIONS_HOST, 3, set()),
    ],
)
def test_what_is_offloaded_is_not_in_the_accelerators_memory(offload: Offload, zero: int, gone: set[str]) -> None:
    """Gradients go where the optimizer is as soon as a rank has only its own shard of them (ZeRO 2)."""
    layout = ParallelLayout(dp=8, zero_stage=zero)
    here, away = (first_stage(job(LLAMA2_7B), each) for each in (layout, replace(layout, offload=offload)))
    assert {name for name in here if away[name] != here[name]} == gone
    assert all(away[name] == 0 for name in gone)
