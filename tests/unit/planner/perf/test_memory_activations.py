"""Measured figures: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", fig 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from airflow_llmsched.domain.hardware import NumberFormat
from airflow_llmsched.domain.layout import Offload, ParallelLayout, PipelineSchedule, Recompute, RecomputeModule
from airflow_llmsched.domain.software import LossKernel, Software
from airflow_llmsched.domain.workload import ModelShape, PrecisionSpec
from airflow_llmsched.planner.layout_table import LayoutTable
from airflow_llmsched.planner.perf.job import TransformerJob
from airflow_llmsched.planner.perf.layers import LayerKind
from airflow_llmsched.planner.perf.memory import memory_breakdown, memory_terms
from airflow_llmsched.planner.perf.memory_activations import (
    gradient_bytes,
    kept_bytes,
    kept_tensors,
    loss_bytes,
    recomputed_bytes,
)
from airflow_llmsched.units import GIB
from tests.support.fleets import job
from tests.support.models import DEEPSEEK_V3, GPT2, LLAMA2_7B, LLAMA31_8B, MIXTRAL_8X7B, megatron_gpt

FP16 = PrecisionSpec(compute=NumberFormat.FP16, parameters=NumberFormat.FP16)
OF_2022 = Software(fused_attention=False, has_dropout=True)
DENSE, MOE = LayerKind(), LayerKind(is_moe=True)
PAPER = {
    22: (64, 6144, 48, 1, 4),
    175: (96, 12288, 96, 8, 1),
    530: (128, 20480, 105, 35, 1),
    1000: (160, 25600, 128, 64, 1),
}
"""Heads, hidden size, layers, pipeline degree and micro-batch by billions of parameters; tensor degree 8."""


def paper_job(billions: int) -> TransformerJob:
    heads, hidden, layers, _, _ = PAPER[billions]
    model = megatron_gpt(name="paper", num_heads=heads, hidden_size=hidden, num_layers=layers)
    return job(model, sequence_length_tokens=2048, precision=FP16, software=OF_2022)


def paper_layout(billions: int, policy: Recompute, *, sequence_parallel: bool) -> ParallelLayout:
    """Return the paper's layout; its two largest pipelines but one are interleaved with 3 chunks a stage."""
    _, _, _, pp, micro = PAPER[billions]
    interleaves = billions in {175, 530}
    return ParallelLayout(
        dp=1, tp=8, pp=pp, vp=3 if interleaves else 1,
        schedule=PipelineSchedule.INTERLEAVED if interleaves else PipelineSchedule.ONE_F_ONE_B,
        micro_batch_size=micro, num_micro_batches=4 * pp, recompute=policy, sequence_parallel=sequence_parallel,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("billions", "policy", "measured_gib"),
    [
        (22, Recompute.NONE, 59.25),
        (22, Recompute.SELECTIVE, 9.5625),
        (175, Recompute.NONE, 66.84375),
        (175, Recompute.SELECTIVE, 12.3515625),
        (530, Recompute.NONE, 114.0234375),
        (530, Recompute.SELECTIVE, 23.076171875),
        (1000, Recompute.NONE, 131.25),
        (1000, Recompute.SELECTIVE, 26.5625),
    ],
)
def test_activations_are_within_two_percent_of_the_measured_ones(
    billions: int, policy: Recompute, measured_gib: float
) -> None:
    """ "None" was measured without sequence parallelism, "selective" with it. The embedding's mask is taken off."""
    layout = paper_layout(billions, policy, sequence_parallel=policy is Recompute.SELECTIVE)
    in_memory = memory_breakdown(paper_job(billions), layout)["activations"]
    hidden, micro, pp = PAPER[billions][1], layout.micro_batch_size, layout.pp
    num_in_flight = pp * (1 + (pp - 1) / (pp * layout.vp)) if layout.vp > 1 else pp
    masks = num_in_flight * micro * 2048 * hidden / (8 if layout.sequence_parallel else 1)
    assert (in_memory - masks) / GIB == pytest.approx(measured_gib, rel=0.02)


@pytest.mark.parametrize(
    ("billions", "sequence", "selective", "both", "full"),
    [
        (22, 66.84, 49.42, 16.18, 7.64),
        (175, 62.04, 56.53, 18.49, 8.71),
        (530, 58.31, 62.04, 20.27, 9.42),
        (1000, 58.31, 62.04, 20.27, 9.42),
    ],
)
def test_each_technique_keeps_the_published_share_of_activations(
    billions: int, sequence: float, selective: float, both: float, full: float
) -> None:
    """In percent of no recomputation and no sequence parallelism: the paper's figure 7, as read off its plot."""

    def layer(policy: Recompute, *, sequence_parallel: bool) -> float:
        table = LayoutTable.of([paper_layout(billions, policy, sequence_parallel=sequence_parallel)])
        return float(kept_bytes(paper_job(billions), table, DENSE)[0])

    whole = layer(Recompute.NONE, sequence_parallel=False)
    shares = [
        layer(Recompute.NONE, sequence_parallel=True),
        layer(Recompute.SELECTIVE, sequence_parallel=False),
        layer(Recompute.SELECTIVE, sequence_parallel=True),
        layer(Recompute.FULL, sequence_parallel=False),
    ]
    assert [100 * each / whole for each in shares] == pytest.approx([sequence, selective, both, full], abs=0.15)


def test_a_gpt_layer_keeps_what_the_paper_counts() -> None:
    """Equation 1 of the paper: s b h (34 + 5 a s / h) in 16 bits."""
    one = job(GPT2, sequence_length_tokens=1024, precision=FP16, software=OF_2022)
    assert kept(one, Recompute.NONE, micro_batch_size=2) == 1024 * 2 * (34 * 768 + 5 * 12 * 1024)
    assert kept(one, Recompute.SELECTIVE, micro_batch_size=2) == 1024 * 2 * 34 * 768


def kept(
    one: TransformerJob, policy: Recompute, *modules: RecomputeModule, kind: LayerKind = DENSE, **layout: int | bool
) -> float:
    return float(kept_bytes(one, table_of(policy, *modules, **layout), kind)[0])


def table_of(policy: Recompute, *modules: RecomputeModule, **layout: int | bool) -> LayoutTable:
    values = {"dp": 1} | layout
    return LayoutTable.of([ParallelLayout(recompute=policy, recompute_modules=modules, **values)])  # type: ignore[arg-type]


COMPILED = Software(fused_elementwise=True)
HIDDEN = 4096 * 4096 * 2  # one tensor of the hidden size in 16 bits, 4,096 tokens of Llama 8B


@pytest.mark.parametrize(
    ("modules", "dropped"),
    [
        ((RecomputeModule.NORMS,), 2.0),
        ((RecomputeModule.MLP_ACTIVATION,), 3.5),
        ((RecomputeModule.MLP,), 3 * 3.5),
        ((RecomputeModule.MLP, RecomputeModule.MLP_ACTIVATION), 3 * 3.5),
        ((RecomputeModule.QKV,), 1.5),
        ((RecomputeModule.NORMS, RecomputeModule.QKV), 3.5),
        # torchtitan keeps the input, query, value, context and first MLP product: 1 + 1 + 0.25 + 1 + 3.5
        ((RecomputeModule.EVERY_SECOND_PRODUCT,), 17 - 6.75),
    ],
)
def test_modules_drop_their_own_tensors(modules: tuple[RecomputeModule, ...], dropped: float) -> None:
    """Llama 3.1 8B, in hidden sizes: 4 of input, norms and middle; 1 + 0.25 + 0.25 + 1 of attention; 3 * 3.5 of MLP."""
    one = job(LLAMA31_8B, sequence_length_tokens=4096, software=COMPILED)
    sums = 4096 * 32 * 4
    everything = kept(one, Recompute.NONE)
    assert everything == 17 * HIDDEN + sums
    assert everything - kept(one, Recompute.MODULES, *modules) == dropped * HIDDEN
    again = recomputed_bytes(one, table_of(Recompute.MODULES, *modules), DENSE)[0]
    assert again == dropped * HIDDEN


def test_checkpointing_by_op_saves_the_last_product_unless_compiled() -> None:
    eager, compiled = (
        kept(
            job(LLAMA31_8B, sequence_length_tokens=4096, software=software),
            Recompute.MODULES,
            RecomputeModule.EVERY_SECOND_PRODUCT,
        )
        for software in (Software(), COMPILED)
    )
    assert eager - compiled == HIDDEN


def test_full_recomputation_keeps_the_input_and_brings_the_rest_back() -> None:
    one = job(LLAMA31_8B, sequence_length_tokens=4096)
    assert kept(one, Recompute.FULL) == HIDDEN
    again = recomputed_bytes(one, table_of(Recompute.FULL), DENSE)[0]
    assert again + HIDDEN == kept(one, Recompute.NONE)


def test_fused_attention_keeps_sums_instead_of_scores() -> None:
    unfused = job(LLAMA2_7B, sequence_length_tokens=4096, software=Software(fused_attention=False))
    fused = job(LLAMA2_7B, sequence_length_tokens=4096)
    scores = 2 * 32 * 4096 * 4096
    assert kept(unfused, Recompute.NONE) - kept(fused, Recompute.NONE) == scores - 4 * 32 * 4096
    assert kept(unfused, Recompute.SELECTIVE) == kept(fused, Recompute.SELECTIVE)


def test_fp8_products_keep_their_inputs_in_one_byte() -> None:
    """Norms and activations halve; the context is kept for the attention kernel and again as it was multiplied."""
    fp8 = PrecisionSpec(compute=NumberFormat.FP8)
    wide, narrow = (
        kept(job(LLAMA31_8B, sequence_length_tokens=4096, precision=precision, software=COMPILED), Recompute.NONE)
        for precision in (PrecisionSpec(), fp8)
    )
    assert wide - narrow == (0.5 * (2 + 3.5) - 0.5) * HIDDEN


def test_key_and_value_heads_are_copied_to_more_ranks_than_heads() -> None:
    one = job(LLAMA31_8B, sequence_length_tokens=4096)
    by_name = {
        tensor.name: tensor.num_bytes_C
        for tensor in kept_tensors(one, LayoutTable.of([ParallelLayout(dp=1, tp=tp) for tp in (8, 16)]), DENSE)
    }
    assert by_name["key"][0] == by_name["key"][1]
    assert by_name["query"][0] == 2 * by_name["query"][1]


def test_gathered_inputs_stay_whole_where_they_are_not_gathered_again() -> None:
    again, stay = (
        kept(job(LLAMA31_8B, sequence_length_tokens=4096, software=replace(COMPILED, regathers_inputs=each)),
             Recompute.NONE, tp=8)
        for each in (True, False)
    )  # fmt: skip
    assert stay - again == 2 * HIDDEN * 7 / 8


def expert_tensors(load: float = 1.1, **layout: int) -> float:
    one = job(MIXTRAL_8X7B, sequence_length_tokens=4096, software=replace(COMPILED, expert_load_ratio=load))
    table = table_of(Recompute.NONE, **layout)
    return sum(float(each.num_bytes_C[0]) for each in kept_tensors(one, table, MOE) if each.name.startswith("expert"))


def test_experts_keep_two_copies_of_each_token() -> None:
    """Mixtral: the input and three tensors of the inner width, 3.5 hidden sizes each, for 2 experts a token."""
    assert expert_tensors() == 2 * (1 + 3 * 3.5) * HIDDEN


def test_the_fullest_of_spread_experts_has_more_than_its_share() -> None:
    assert expert_tensors(dp=8, ep=8) == pytest.approx(1.1 * expert_tensors(dp=8))
    assert expert_tensors(load=2.0, dp=8, ep=8) == pytest.approx(2.0 * expert_tensors(dp=8))


def test_no_rank_gets_more_tokens_than_its_group_can_send() -> None:
    """With 2 ranks of 4 experts each, the 2 copies of every token of both can come to one rank: twice the average."""
    assert expert_tensors(load=5.0, dp=2, ep=2) == 2 * expert_tensors(dp=2)


def test_narrow_experts_split_like_the_rest_and_whole_ones_share_out_tokens() -> None:
    """Inputs are gathered for split experts; inner tensors are as large either way."""
    split, whole = expert_tensors(dp=1, tp=8), expert_tensors(dp=1, tp=8, expert_tp=1)
    inputs = 2 * HIDDEN
    assert split - whole == pytest.approx(inputs * (1 - 1 / 8))


def test_latent_attention_keeps_latents_and_can_project_them_again() -> None:
    """DeepSeek-V3: 128 heads with keys of 192 and values of 128; latents of 1,536 and 512, and 64 of position."""
    one = job(DEEPSEEK_V3, sequence_length_tokens=4096, software=COMPILED)
    sizes = {
        tensor.name: float(tensor.num_bytes_C[0]) / (2 * 4096)
        for tensor in kept_tensors(one, table_of(Recompute.NONE), MOE)
    }
    assert (sizes["latents"], sizes["latent_norms"]) == (1536 + 512 + 64, 1536 + 512)
    assert (sizes["query"], sizes["key"], sizes["value"], sizes["context"]) == (24576, 24576, 16384, 16384)
    everything = kept(one, Recompute.NONE, kind=MOE)
    projected = everything - kept(one, Recompute.MODULES, RecomputeModule.QKV, kind=MOE)
    assert projected == 2 * 4096 * (2048 + 24576 + 24576 + 16384)


def test_a_parallel_block_has_no_middle_and_sandwich_norms_keep_what_they_read() -> None:
    def names(model: ModelShape) -> set[str]:
        return {tensor.name for tensor in kept_tensors(job(model), table_of(Recompute.NONE), DENSE)}

    assert names(LLAMA2_7B) - names(replace(LLAMA2_7B, parallel_block=True, num_norms_per_layer=1)) == {
        "middle", "mlp_norm",
    }  # fmt: skip
    assert names(replace(LLAMA2_7B, num_norms_per_layer=4)) - names(LLAMA2_7B) == {"norms_after"}


def test_each_further_token_predicted_has_logits_and_a_layer_of_its_own() -> None:
    layout = ParallelLayout(dp=1, recompute=Recompute.FULL)
    plain, ahead = (
        memory_breakdown(job(replace(LLAMA31_8B, num_predict_ahead_layers=number)), layout) for number in (0, 1)
    )
    assert ahead["logits"] == 2 * plain["logits"]
    assert ahead["activations"] * 32 == plain["activations"] * 33


@pytest.mark.parametrize(
    ("loss", "tp", "bytes_per_logit"),
    [
        (LossKernel.FUSED, 1, 4), (LossKernel.VOCAB_PARALLEL, 1, 6), (LossKernel.EAGER, 1, 14),
        (LossKernel.EAGER, 8, 18), (LossKernel.VOCAB_PARALLEL, 8, 6),
    ],
)  # fmt: skip
def test_loss_holds_so_many_bytes_a_logit(loss: LossKernel, tp: int, bytes_per_logit: int) -> None:
    one = job(LLAMA31_8B, sequence_length_tokens=4096, software=Software(loss=loss))
    inputs = (2 / tp + (1 if tp > 1 else 0)) * HIDDEN
    assert loss_bytes(one, table_of(Recompute.NONE, tp=tp))[0] == inputs + bytes_per_logit * 4096 * 128256 // tp


def test_an_input_that_stays_gathered_is_there_as_it_came_and_in_order() -> None:
    again, stays = (
        float(loss_bytes(job(LLAMA31_8B, sequence_length_tokens=4096, software=Software(regathers_inputs=each)),
                         table_of(Recompute.NONE, tp=8))[0])
        for each in (True, False)
    )  # fmt: skip
    assert stays - again == HIDDEN


def test_gradients_of_unfused_attention_are_those_of_its_scores() -> None:
    one = job(GPT2, sequence_length_tokens=1024, software=OF_2022)
    inside = max(2 * 2 * 12 * 1024 * 1024, 2 * 8 * 768 * 1024)
    assert gradient_bytes(one, table_of(Recompute.NONE), DENSE)[0] == inside + 2 * 768 * 1024


def test_a_micro_batch_beyond_all_memory_never_wraps_around() -> None:
    layouts = [ParallelLayout(dp=1, micro_batch_size=4**power, num_micro_batches=1) for power in range(26)]
    terms = memory_terms(job(LLAMA2_7B), LayoutTable.of(layouts))
    totals_C = np.sum(list(terms.values()), axis=0)
    assert (np.diff(totals_C) >= 0).all()
    assert totals_C[-1] > 2**56


def test_offloaded_activations_leave_two_layers_in_transit() -> None:
    layout = ParallelLayout(dp=1, micro_batch_size=1)
    here = memory_breakdown(job(LLAMA2_7B), layout)["activations"]
    away = memory_breakdown(job(LLAMA2_7B), replace(layout, offload=Offload.ACTIVATIONS_HOST))["activations"]
    assert away == here * 2 / 32


@pytest.mark.parametrize("model", [LLAMA2_7B, MIXTRAL_8X7B, GPT2], ids=lambda model: model.name)
@pytest.mark.parametrize("policy", Recompute)
def test_what_is_kept_and_what_is_recomputed_are_all_there_is(model: ModelShape, policy: Recompute) -> None:
    one = job(model, sequence_length_tokens=1024, software=replace(OF_2022, fused_elementwise=True))
    kind = MOE if model.experts else DENSE
    modules = (RecomputeModule.NORMS, RecomputeModule.QKV) if policy is Recompute.MODULES else ()
    table = table_of(policy, *modules, tp=2)
    everything = kept(one, Recompute.NONE, kind=kind, tp=2)
    assert kept_bytes(one, table, kind)[0] + recomputed_bytes(one, table, kind)[0] == everything
